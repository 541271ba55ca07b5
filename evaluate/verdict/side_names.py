"""The names of the two sides of a pair in sentences: device, partition, and what tells pairs of equal names apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from evaluate.metrics.partition import kind_of
from evaluate.verdict.layouts import layout_of
from utils.results.schema import Result
from utils.settings.profiling import NO_PROFILE

VENDORS = re.compile(r"\b(NVIDIA|AMD Instinct|AMD) ")
PLATFORMS = {"nvd": "NVIDIA", "amd": "AMD", "cpu": "CPU"}
Terms = dict[str, str]


def device_name(result: Result) -> str:
    """Return the name of the device as the driver reports it, with its partition mode if it has one."""
    kind = kind_of(result)
    vendor = PLATFORMS.get(result["platform"], "")  # a log may name no platform
    device = str(result["gpu_info"]["device_name"] or " ".join(filter(None, ("unknown", vendor, "device"))))
    return f"{device} ({kind.text})" if kind.text else device


def setting_of(result: Result) -> tuple[Any, ...]:
    """Return size of the model, sequence length, global batch, precision and profile."""
    config = result["training_config"]
    work = (config[key] for key in ("sequence_length", "global_batch_size", "precision"))
    return result["model_size"], *work, config.get("profile") or NO_PROFILE


def terms(result: Result) -> Terms:
    """Return the properties that may tell two pairs apart, in words, the most telling first."""
    size, length, batch, precision, profile = setting_of(result)
    return {
        "size": str(size),
        "length": f"SL {length}",
        "batch": f"GBS {batch}",
        "precision": str(precision),
        **layout_of(result).terms,
        "profile": "no profile" if profile == NO_PROFILE else f"profile of {profile}",
    }


def in_words(result: Result, *, with_layout: bool = True) -> str:
    """Return the terms of a run in one text; a profile is named only where there is one."""
    left_out = set() if with_layout else set(layout_of(result).terms)
    if setting_of(result)[-1] == NO_PROFILE:
        left_out.add("profile")
    return ", ".join(text for key, text in terms(result).items() if key not in left_out)


def suffixes(pairs: Sequence[tuple[Terms, Terms]]) -> list[tuple[str, str]]:
    """Return what to add to the two names of each pair, so that no two pairs have the same names: ` (16 GPUs)`.

    Properties are chosen one after another, each only if it tells more pairs apart. A single pair needs none.
    """
    chosen = telling([{key: (a[key], b[key]) for key in a} for a, b in pairs]) if len(pairs) > 1 else []
    return [(_suffix(a, chosen), _suffix(b, chosen)) for a, b in pairs]


def telling(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return keys that all of these have, chosen one after another, each because it tells more of them apart."""
    chosen: list[str] = []
    for key in found[0]:
        if _distinct(found, [*chosen, key]) > _distinct(found, chosen):
            chosen.append(key)
    return chosen


def _distinct(found: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    return len({tuple(str(one.get(key)) for key in keys) for one in found})


def _suffix(side: Terms, keys: Sequence[str]) -> str:
    return f" ({', '.join(side[key] for key in keys)})" if keys else ""


def without_vendors(text: str) -> str:
    """Return names of sides without the vendor before that of a device: `hf on H100 80GB HBM3`."""
    return VENDORS.sub("", text)
