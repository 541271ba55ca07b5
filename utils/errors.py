"""Errors that several rooms raise and catch: bad settings and bad training data."""

from __future__ import annotations

from utils import redact


class DataError(ValueError):
    """Training data are not as required; the message states where, what was got and wanted, and what to do.

    A secret in the value, such as the password in an address, is replaced.
    """

    def __str__(self) -> str:
        return redact.text(super().__str__())


class UnusableError(DataError):
    """An input cannot be used at all: a missing file, a tokenizer without an end-of-text token."""


class ForeignFileError(UnusableError):
    """A file that the suite did not write is where an output belongs; it stays as it is."""


class ConfigError(ValueError):
    """A setting is not allowed; the message states where, key, value, allowed values and what to do.

    A secret in the value is replaced.
    """

    def __str__(self) -> str:
        return redact.text(super().__str__())
