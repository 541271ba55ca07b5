"""Errors that several rooms raise and catch: bad settings and bad training data."""

from __future__ import annotations

from utils import redact


class DataError(ValueError):
    """Training data that is not what it should be; the message says where, what was got and wanted, what to do.

    A secret in what was got, such as the password in an address, is not repeated.
    """

    def __str__(self) -> str:
        return redact.text(super().__str__())


class UnusableError(DataError):
    """What was named cannot be worked with at all: a missing file, a tokenizer without an end-of-text token."""


class ConfigError(ValueError):
    """Settings that cannot be: the message names where, key, value, what is allowed and what to do.

    A secret in what was got is not repeated.
    """

    def __str__(self) -> str:
        return redact.text(super().__str__())
