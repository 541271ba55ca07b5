"""The names of the two sides of a pair in sentences: device, partition, and what tells pairs of equal names apart."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evaluate.checks.entries import Entry
from evaluate.metrics.intervals import half_interval
from evaluate.metrics.partition import kind_of
from evaluate.metrics.steady import tokens_per_second_per_gpu
from evaluate.verdict.system import Setting, setting_of, terms_of, unusual
from utils.results.schema import Result

VENDORS = re.compile(r"\b(NVIDIA|AMD Instinct|AMD) ")
PLATFORMS = {"nvd": "NVIDIA", "amd": "AMD", "cpu": "CPU"}
Terms = dict[str, str]


def device_name(result: Result) -> str:
    """Return the name of the device as the driver reports it, with its partition mode if it has one."""
    kind = kind_of(result)
    device = result["gpu_info"]["device_name"]
    if not device:
        vendor = PLATFORMS.get(result["platform"])  # a log may name no platform
        device = f"unknown {vendor} device" if vendor else "unknown device"
    return f"{device} ({kind.text})" if kind.text else str(device)


def terms(result: Result) -> Terms:
    """Return the properties that may tell two pairs apart, in words, the most telling first."""
    setting = setting_of(result)
    return _of_work(setting) | layout_of(result).terms | terms_of(setting)


def _of_work(setting: Setting) -> Terms:
    return {
        "size": setting.model_size,
        "length": f"SL {setting.sequence_length}",
        "batch": f"GBS {setting.global_batch_size}",
        "precision": str(setting.precision),
    }


def in_words(result: Result, *, with_layout: bool = True) -> str:
    """Return work, layout and the unusual traits of a run in one text; EP only where it is above 1."""
    setting, layout = setting_of(result), layout_of(result)
    words = list(_of_work(setting).values())
    if with_layout:
        words += [text for key, text in layout.terms.items() if key != "EP" or layout.ep not in (None, 1)]
    return ", ".join([*words, *unusual(setting)])


def suffixes(pairs: Sequence[tuple[Terms, Terms]]) -> list[tuple[str, str]]:
    """Return what to add to the two names of each pair, such as ` (16 GPUs)`, so that no two pairs have the same names.

    A single pair needs nothing.
    """
    if len(pairs) == 1:
        return [("", "")]
    chosen = telling([{key: (a[key], b[key]) for key in a} for a, b in pairs])
    return [(_suffix(a, chosen), _suffix(b, chosen)) for a, b in pairs]


def telling(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Choose keys that distinguish these mappings: each in turn, if it tells more of them apart than those before."""
    chosen: list[str] = []
    for key in found[0]:
        # a key that tells nothing more apart would only make names longer
        if _distinct(found, [*chosen, key]) > _distinct(found, chosen):
            chosen.append(key)
    return chosen


def _distinct(found: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    return len({tuple(str(one.get(key)) for key in keys) for one in found})


def _suffix(side: Terms, keys: Sequence[str]) -> str:
    told = [side[key] for key in keys if side[key]]  # a trait that its framework does not read has no words
    return f" ({', '.join(told)})" if told else ""


def without_vendors(text: str) -> str:
    """Return names of sides without the vendor before that of a device: `hf on H100 80GB HBM3`."""
    return VENDORS.sub("", text)


# The layout of a run on its GPUs, and the fastest of several layouts of one side.

LEVEL = 0.05


class Layout(NamedTuple):
    """The spread of a run over its GPUs; a size is None if the result does not record it."""

    num_gpus: int | None
    micro_batch_size: int | None
    tp: int | None
    pp: int | None
    cp: int | None
    dp: int | None
    ep: int | None

    def fits(self, other: Layout) -> bool:
        """Return whether two layouts are equal as far as both are known."""
        return all(a is None or b is None or a == b for a, b in zip(self, other, strict=True))

    def fits_without_size(self, other: Layout) -> bool:
        """Return whether two layouts fit but for the number of GPUs and of copies of the model, as of node counts."""
        return self._replace(num_gpus=None, dp=None).fits(other)

    @property
    def terms(self) -> dict[str, str]:
        """Each size in words: `8 GPUs`, `MBS 1`; `MBS unknown` for one that the result does not record."""
        gpus = f"{self.num_gpus} GPU" if self.num_gpus == 1 else f"{self.num_gpus} GPUs"
        words = {"GPUs": gpus}
        for name, value in zip(("MBS", "TP", "PP", "CP", "DP", "EP"), self[1:], strict=True):
            words[name] = f"{name} unknown" if value is None else f"{name} {value}"
        return words

    @property
    def text(self) -> str:
        """The layout in words: `8 GPUs, MBS 1, TP 4, PP 1, CP 1, DP 2`, as far as it is known; EP if it is not 1."""
        return ", ".join(text for text in self.terms.values() if not text.endswith("unknown") and text != "EP 1")


def layout_of(result: Result) -> Layout:
    """Return the layout that ran; where it was not read back, the one that was asked for."""
    ran, asked = result["resolved_config"], result["training_config"]
    sizes = {}
    for key in Layout._fields:
        sizes[key] = asked.get(key) if ran.get(key) is None else ran[key]
    return Layout(**sizes)


def fastest(layouts: Mapping[Layout, Sequence[Entry]]) -> Layout:
    """Return the layout with the highest tokens/s/GPU, by the lower end of its own 95 % interval over the runs.

    A single run has no interval, so a layout with one run is chosen only if none has several. Without a counted run, it
    is the first layout.
    """
    lower_ends: dict[Layout, float] = {}
    best_runs: dict[Layout, float] = {}
    for layout, entries in layouts.items():
        logs = log_rates(entries)
        best_runs[layout] = max(logs, default=-math.inf)
        # the lower end, not the mean: of several layouts the luckiest mean would be chosen
        if len(logs) > 1:
            lower_ends[layout] = statistics.fmean(logs) - half_interval([logs], LEVEL)
    ranked = lower_ends or best_runs
    return max(ranked, key=lambda layout: ranked[layout])


def compared_with(chosen: Sequence[Entry], other: Sequence[Entry]) -> float | None:
    """Return the throughput per GPU of another layout over that of the chosen one; None if one has no counted run."""
    ours, theirs = log_rates(chosen), log_rates(other)
    if not ours or not theirs:
        return None
    return math.exp(statistics.fmean(theirs) - statistics.fmean(ours))


def log_rates(entries: Sequence[Entry]) -> list[float]:
    """Return the logarithms of tokens/s/GPU of the counted runs that have steady steps."""
    rates = (tokens_per_second_per_gpu(entry.result) for entry in entries if entry.is_counted)
    return [math.log(rate) for rate in rates if rate]
