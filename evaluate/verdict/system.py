"""The table of what makes runs one system, beside framework, device and layout: runs that differ are never averaged.

Reports, pairs of a verdict, acceptance, history and the gap by kind of time all read this table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from utils.frameworks import reads
from utils.results.schema import Result
from utils.settings.keys import NO_RECIPE
from utils.settings.profiling import NO_PROFILE


class Trait(NamedTuple):
    """A setting that belongs to a system."""

    key: str
    """In `training_config`."""
    usual: str
    """Value that a text leaves out. Results of before the setting existed, and logs, count as having it."""
    words: str
    """Text of a value."""
    usual_words: str
    is_free: bool = False
    """True for a setting that each side chooses for itself with the method `best`."""


TRAITS = (
    Trait("fp8_recipe", NO_RECIPE, "recipe {}", "no recipe"),
    Trait("recompute", "none", "recompute {}", "no recomputation", is_free=True),
    Trait("optimizer_state", "fp32", "{} optimizer state", "fp32 optimizer state"),
    Trait("gradient_dtype", "fp32", "{} gradients", "fp32 gradients"),
    Trait("layers", "auto", "LAYERS={}", "LAYERS=auto", is_free=True),
    Trait("hf_kernels", "stock", "{} kernels", "stock kernels", is_free=True),
    Trait("profile", NO_PROFILE, "profile of {}", "no profile"),
    Trait("routing", "learned", "{} routing", "learned routing"),
)


class Setting(NamedTuple):
    """The work of a run and the traits of its system."""

    model_size: str
    sequence_length: int | None
    global_batch_size: int | None
    precision: str | None
    traits: tuple[str | None, ...]
    """A value for each of TRAITS; None where the framework does not read the setting."""

    def fits(self, other: Setting) -> bool:
        """Return whether two settings are equal where both frameworks read them."""
        pairs = zip(self.traits, other.traits, strict=True)
        return self[:-1] == other[:-1] and all(a is None or b is None or a == b for a, b in pairs)

    def fits_best(self, other: Setting) -> bool:
        """Return whether two settings are equal but for what the method `best` leaves free."""
        rows = zip(TRAITS, self.traits, other.traits, strict=True)
        return self[:-1] == other[:-1] and all(trait.is_free or a == b for trait, a, b in rows)


def setting_of(result: Result) -> Setting:
    """Return the setting of a run, as it was asked for."""
    config = result["training_config"]
    traits: list[str | None] = []
    for trait in TRAITS:
        # what a framework does not read cannot tell its runs apart
        is_read = reads(result["framework"], trait.key)
        traits.append(str(config.get(trait.key) or trait.usual) if is_read else None)
    return Setting(
        result["model_size"],
        config["sequence_length"],
        config["global_batch_size"],
        config["precision"],
        tuple(traits),
    )


def terms_of(setting: Setting) -> dict[str, str]:
    """Return each trait in words by its key; empty for one that the framework does not read."""
    words = {}
    for trait, value in zip(TRAITS, setting.traits, strict=True):
        if value is None:
            words[trait.key] = ""
        elif value == trait.usual:
            words[trait.key] = trait.usual_words
        else:
            words[trait.key] = trait.words.format(value)
    return words


def unusual(setting: Setting) -> Iterator[str]:
    """Yield the traits that are not the usual ones, in words."""
    for trait, value in zip(TRAITS, setting.traits, strict=True):
        if value not in (None, trait.usual):
            yield trait.words.format(value)
