"""The pairs of a comparison: two sides that differ in one thing and are as equal as possible in everything else.

A side is one kind of device (model and partition mode) with one layout; other devices, partitions and layouts are other
sides. Pairs meet at equal size and layout. With the method `best` the layout is free, and the fastest of each size is
the side's. What finds no counterpart, and every slower layout, is listed with the pair. `why_none` has the reason why
results make no pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from operator import attrgetter, itemgetter
from typing import Any

from evaluate.checks.entries import Entry
from evaluate.checks.recorded import Key, grouped, machine_of
from evaluate.metrics.partition import Kind, kind_of
from evaluate.metrics.steady import steps_text
from evaluate.verdict.ratios import with_interval
from evaluate.verdict.side_names import (
    PLATFORMS,
    Layout,
    compared_with,
    device_name,
    fastest,
    in_words,
    layout_of,
    suffixes,
    terms,
)
from evaluate.verdict.system import Setting, setting_of
from utils.errors import counted
from utils.frameworks import VENDOR_OF
from utils.results.schema import Result

NODES, DEVICE = "nodes", "device"
BEST = "best"
"""The method that tunes each side by the means of its vendor."""
UNKNOWN_DEVICE = "unknown device"
LEFT_OUT = "left out of its side"
"""First words of the rejection of a run that differs from its own side (evaluate/verdict/odd_runs.py)."""

MOST_SIDES = 6
"""Largest number of sides of which every two make a pair; of more, each meets the first."""


def _device(result: Result) -> str:
    return kind_of(result).name or "unknown"


def _device_and_part(result: Result) -> str:
    return kind_of(result).full_name or UNKNOWN_DEVICE


def _size(result: Result) -> str:
    return f"{result['training_config']['num_gpus']} GPUs"


def _label(result: Result) -> str:
    return str(result["label"] or "no label")


PROPERTIES: dict[str, Callable[[Result], str]] = {
    "model": itemgetter("model"),
    "method": itemgetter("method"),
    "platform": itemgetter("platform"),
    "framework": itemgetter("framework"),
    "device": _device,
    "machine": machine_of,
}
"""Properties that both sides of a pair may have to share, and the function that reads each from a result."""
SHARED = {
    "platform": (),
    DEVICE: (),
    "framework": ("platform", "device", "machine"),
    "machine": ("platform", "framework", "device"),
    NODES: ("platform", "framework", "device"),
    "label": ("platform", "framework"),
}
"""Those that count for each property of a comparison, besides model and method."""
BY: dict[str, Callable[[Result], str]] = {
    "platform": itemgetter("platform"),
    DEVICE: _device_and_part,
    "framework": itemgetter("framework"),
    "machine": machine_of,
    NODES: _size,
    "label": _label,
}
"""The property in which the two sides differ, and the function that reads it from a result."""
MAY_DIFFER = {NODES: frozenset({"nodes", "number of GPUs", "data parallel size", "gradient accumulation"})}
"""Certificate items that differ by the choice of the property."""


@dataclass(frozen=True)
class LeftOut:
    """Results of one side that are in no ratio of a pair, and why."""

    side: str
    reason: str
    entries: tuple[Entry, ...]

    @property
    def text(self) -> str:
        """One line: side, runs and reason."""
        runs = "run" if len(self.entries) == 1 else "runs"
        numbers = ", ".join(dict.fromkeys(str(entry.result["run"]) for entry in self.entries))
        return f"{self.side}, {runs} {numbers}: {self.reason}"


@dataclass(frozen=True)
class Pair:
    """Two sides of one comparison; a side may have no counted result."""

    model: str
    framework: str
    method: str
    a_name: str
    b_name: str
    a: tuple[Entry, ...]
    b: tuple[Entry, ...]
    refusal: str = ""
    """Reason why the two sides cannot be compared, whatever their results prove; empty for most pairs."""
    left_out: tuple[LeftOut, ...] = ()
    """Runs of the same devices that are not in this pair: slower layouts, and settings without a counterpart."""
    layouts: tuple[int, int] = (1, 1)
    """Number of measured layouts of each side from which the fastest was taken."""
    is_of_jobs: bool = False
    """True if the ratio is of the tokens/s of whole jobs, not of each GPU, because the sides differ in GPUs."""

    @property
    def sides(self) -> tuple[tuple[str, list[Result]], tuple[str, list[Result]]]:
        """The name and the counted results of each side."""
        return (self.a_name, self.counted[0]), (self.b_name, self.counted[1])

    @property
    def counted(self) -> tuple[list[Result], list[Result]]:
        """The counted results of both sides."""
        of_a = [entry.result for entry in self.a if entry.is_counted]
        of_b = [entry.result for entry in self.b if entry.is_counted]
        return of_a, of_b

    @property
    def steady_steps(self) -> str:
        """Numbers of the steps behind the ratio: `steps 11 to 100`, or those of each side if they differ."""
        a, b = map(steps_text, self.counted)
        return a if a == b else f"{b} of {self.b_name}, {a} of {self.a_name}"


def default_by(entries: Sequence[Entry]) -> str:
    """Return the usual property: the device if a platform has several, else the platform if there are two, otherwise
    the framework."""
    devices = {(entry.result["platform"], kind_of(entry.result).name) for entry in entries if entry.is_counted}
    platforms_of_devices = {platform for platform, _ in devices}
    # H100 beside H200, or MI300X beside MI355X: the platform would put two devices on one side
    if len(devices) > len(platforms_of_devices):
        return DEVICE
    platforms = {entry.result["platform"] for entry in entries}
    return "platform" if len(platforms) > 1 else "framework"


def pairs(entries: Sequence[Entry], by: str, baseline: str | None = None) -> list[Pair]:
    """Return all pairs of two sides, or of the baseline's with another, by model, method and what they share."""
    found: list[Pair] = []
    of_work = _grouped(entries, lambda result: (result["model"], result["method"], _shared(result, by)))
    for (model, method, _), members in of_work.items():
        sides = _sides(members, by)
        names = sorted(sides, key=lambda name: place(sides[name][0].result, by, baseline))
        if baseline is not None and baseline not in names:
            continue
        meetings = list(combinations(names, 2))
        if baseline is not None or len(names) > MOST_SIDES:
            # all others are measured by a baseline; of many sides, all pairs would need too much evidence each
            meetings = [(names[0], other) for other in names[1:]]
        for a, b in meetings:
            by_framework = [_grouped(sides[name], PROPERTIES["framework"]).values() for name in (a, b)]
            for left, right in product(*by_framework):
                # a device is judged by one framework on both sides, or by each vendor's own stack
                if by == "framework" or _may_meet(left[0].result, right[0].result):
                    frameworks = dict.fromkeys((left[0].result["framework"], right[0].result["framework"]))
                    whole = Pair(
                        model,
                        " and ".join(frameworks),
                        method,
                        a_name="",
                        b_name="",
                        a=tuple(left),
                        b=tuple(right),
                        is_of_jobs=by == NODES,
                    )
                    found += _of_sides(whole, by)
    return _told_apart(found)


def why_none(entries: Sequence[Entry], by: str) -> str:
    """Return why the entries make no pair by a property, in one clause; empty if there is nothing to say."""
    sides = grouped((entry.result for entry in entries), BY[by])
    if len(sides) < 2:
        what = "number of GPUs" if by == NODES else by
        return "".join(f"all results have one {what}: {name}" for name in sides)
    (a, left), (b, right) = sorted(sides.items())[:2]
    for name in ("model", "method", *(SHARED[by] or ("framework",))):
        of_a = {PROPERTIES[name](result) for result in left}
        of_b = {PROPERTIES[name](result) for result in right}
        if of_a.isdisjoint(of_b):
            values = f"{' or '.join(sorted(of_a))} against {' or '.join(sorted(of_b))}"
            reason = f"{a} and {b} differ in {name} too ({values})"
            if name == "platform" and "unknown" in of_a | of_b:
                reason += ": extract the log again with --platform"
            return reason
    return ""


def _sides(entries: Sequence[Entry], by: str) -> dict[str, list[Entry]]:
    """Return the entries of each value of the property.

    A run that failed before it recorded its device joins the only device of its platform, if there is one.
    """
    sides = _grouped(entries, BY[by])
    unknown = sides.get(UNKNOWN_DEVICE, [])
    if by != DEVICE or any(entry.is_counted for entry in unknown):
        return sides
    sides.pop(UNKNOWN_DEVICE, None)
    for entry in unknown:
        # with two devices of its platform nobody can say on which one the run failed
        homes = [side for side in sides.values() if side[0].result["platform"] == entry.result["platform"]]
        if len(homes) != 1:
            homes = [sides.setdefault(UNKNOWN_DEVICE, [])]
        homes[0].append(entry)
    return sides


def _may_meet(a: Result, b: Result) -> bool:
    """Return whether the frameworks of two sides may be compared: they are one, or each is its own vendor's."""
    if a["framework"] == b["framework"]:
        return True
    are_of_vendors = a["framework"] in VENDOR_OF and b["framework"] in VENDOR_OF
    return are_of_vendors and bool(a["platform"] != b["platform"])


def place(result: Result, by: str, baseline: str | None) -> tuple[bool, int, str]:
    """Return the sort key of the side of a result: the baseline first, then NVIDIA, or the fewest GPUs."""
    name, platform = BY[by](result), result["platform"]
    if by == NODES:
        return name != baseline, int(name.split()[0]), name
    # a name of another property has no usual order
    rank = len(PLATFORMS)
    if by in ("platform", DEVICE) and platform in PLATFORMS:
        rank = list(PLATFORMS).index(platform)
    return name != baseline, rank, name


def side_key(result: Result, by: str) -> tuple[Any, ...]:
    """Return the properties that all runs of one side share: those of the comparison, the device, work and layout."""
    shared = result["model"], result["method"], _shared(result, by), BY[by](result), result["framework"]
    return *shared, kind_of(result), setting_of(result), layout_of(result)


def _shared(result: Result, by: str) -> tuple[str, ...]:
    """Return the properties that both sides share besides model and method."""
    return tuple(PROPERTIES[name](result) for name in SHARED[by])


def _of_sides(whole: Pair, by: str) -> list[Pair]:
    """Return the pairs of the devices, settings and layouts of two sides, of which `whole` has all results."""
    a, b = _by_kind(whole.a), _by_kind(whole.b)
    # only equal kinds of devices meet; if there are none, the pairs of the others report the difference
    kinds = [(kind, kind) for kind in a if kind in b] or list(product(a, b))
    # METHOD=best leaves the settings of TRAITS free, and each free choice of one side meets all of the other's
    is_best = whole.method == BEST
    fit = Setting.fits_best if is_best else Setting.fits
    found: list[Pair] = []
    for left, right in kinds:
        a_name, b_name = _name(a[left], by), _name(b[right], by)
        named = replace(whole, a_name=a_name, b_name=b_name, refusal=_refusal(left, right))
        settings = _grouped(a[left], setting_of), _grouped(b[right], setting_of)
        of_kind: list[Pair] = []
        for of_a, of_b in _matched(*settings, fit, takes_all=is_best):
            of_kind += _meeting(named, of_a, of_b, by)
        # what was measured and is in no ratio is named, never dropped in silence
        alone = _alone([*a[left], *b[right]], of_kind, by)
        found += [replace(pair, left_out=(*pair.left_out, *alone)) for pair in of_kind]
    return found


def _by_kind(entries: Sequence[Entry]) -> dict[Kind, list[Entry]]:
    """Return the entries of each kind of device; a run that failed before it recorded its device joins all of them."""
    kinds = _grouped(entries, kind_of)
    unknown = Kind(None)
    if unknown in kinds and len(kinds) > 1 and not any(entry.is_counted for entry in kinds[unknown]):
        # the failure belongs to every kind that may have had it
        failed = kinds.pop(unknown)
        for of_kind in kinds.values():
            of_kind += failed
    return kinds


def _refusal(a: Kind, b: Kind) -> str:
    """Return why two kinds of devices are not comparable; empty if they are."""
    if a == b or (a.parts == b.parts and a.parts is not None):
        return ""
    reason = "parts that are not alike"
    if a.is_whole or b.is_whole:
        reason = "a part of a device against a whole one"
    return f"not the same kind of thing, {reason}: {_part(a)} against {_part(b)}"


def _part(kind: Kind) -> str:
    text = kind.text or "whole"
    return f"{text}, {kind.size}" if kind.size else text


def _matched(
    a: Mapping[Key, list[Entry]],
    b: Mapping[Key, list[Entry]],
    fit: Callable[[Key, Key], bool],
    *,
    takes_all: bool = False,
) -> list[tuple[list[Entry], list[Entry]]]:
    """Return the groups of both sides that meet.

    These are the groups of equal keys; if there are none, or with `takes_all`, all groups whose keys fit. If no keys
    fit, the group with the most counted runs of each side meets the other, so that the difference is reported.
    """
    alike = [(left, right) for left, right in product(a, b) if fit(left, right)]
    if not alike:
        return [(max(a.values(), key=_counted), max(b.values(), key=_counted))]
    equal = [(left, right) for left, right in alike if left == right]
    chosen = alike if takes_all or not equal else equal
    return [(a[left], b[right]) for left, right in chosen]


def _counted(entries: Iterable[Entry]) -> int:
    return sum(entry.is_counted for entry in entries)


def _meeting(pair: Pair, a: Sequence[Entry], b: Sequence[Entry], by: str) -> list[Pair]:
    """Return the pairs of equal layout, or of equal size with the method `best`.

    If no layout of one side has a counterpart, one pair reports the difference.
    """
    left, right = _grouped(a, layout_of), _grouped(b, layout_of)
    if pair.method == BEST:
        return _fastest_pairs(pair, left, right, by)
    fit = Layout.fits_without_size if by == NODES else Layout.fits
    return [replace(pair, a=tuple(of_a), b=tuple(of_b)) for of_a, of_b in _matched(left, right, fit)]


def _fastest_pairs(pair: Pair, a: dict[Layout, list[Entry]], b: dict[Layout, list[Entry]], by: str) -> list[Pair]:
    """Return a pair for each size that both sides have, each side with its fastest layout of that size."""
    sizes_a = dict.fromkeys(layout.num_gpus for layout in a)
    sizes_b = dict.fromkeys(layout.num_gpus for layout in b)
    sizes = [(size, size) for size in sizes_a if size in sizes_b]
    refusal = pair.refusal
    if by == NODES:
        sizes = list(product(sizes_a, sizes_b))
    elif not sizes:
        size_a, size_b = fastest(a).num_gpus, fastest(b).num_gpus
        sizes = [(size_a, size_b)]
        refusal = refusal or f"number of GPUs differs: {size_a} against {size_b}"
    found = []
    for size_a, size_b in sizes:
        runs_a, slower_a = _chosen(a, size_a, pair.a_name)
        runs_b, slower_b = _chosen(b, size_b, pair.b_name)
        layouts = 1 + _measured(slower_a), 1 + _measured(slower_b)
        left_out = (*slower_a, *slower_b)
        found.append(replace(pair, a=runs_a, b=runs_b, refusal=refusal, left_out=left_out, layouts=layouts))
    return found


def _chosen(
    layouts: Mapping[Layout, list[Entry]], size: int | None, side: str
) -> tuple[tuple[Entry, ...], list[LeftOut]]:
    """Return the runs of the fastest layout on so many GPUs, and a line for each other layout."""
    of_size = {layout: entries for layout, entries in layouts.items() if layout.num_gpus == size}
    best = fastest(of_size)
    others = []
    for layout, entries in of_size.items():
        if layout == best:
            continue
        ratio = compared_with(of_size[best], entries)
        speed = "no valid result"
        if ratio is not None:
            speed = f"{with_interval(ratio)} as fast, {counted(_counted(entries), 'run')}"
        reason = f"{layout.text}: {speed}; the side's layout is {best.text}, the fastest by its own interval"
        others.append(LeftOut(side, reason, tuple(entries)))
    return tuple(of_size[best]), others


def _measured(layouts: Sequence[LeftOut]) -> int:
    """Return the number of layouts with a counted run: each was a chance to be the fastest."""
    return sum(_counted(layout.entries) > 0 for layout in layouts)


def _alone(entries: Sequence[Entry], made: Sequence[Pair], by: str) -> list[LeftOut]:
    """Return a line for the counted runs of each setting and layout that are in none of the pairs."""
    # entries hold dicts and have no hash, so they are known by their id
    known: set[int] = set()
    for pair in made:
        for side in (pair.a, pair.b, *(left_out.entries for left_out in pair.left_out)):
            known.update(map(id, side))
    rest = [entry for entry in entries if entry.is_counted and id(entry) not in known]
    lines = []
    for members in _grouped(rest, lambda result: (BY[by](result), setting_of(result), layout_of(result))).values():
        reason = f"left out, because the other side has no run of {in_words(members[0].result)}"
        lines.append(LeftOut(_name(members, by), reason, tuple(members)))
    return lines


def _told_apart(found: Sequence[Pair]) -> list[Pair]:
    """Return the pairs; where several would have the same names, each name states the size or setting that differs."""
    endings: dict[int, tuple[str, str]] = {}
    for alike in grouped(found, attrgetter("model", "framework", "method", "a_name", "b_name")).values():
        of_both = [(terms(pair.a[0].result), terms(pair.b[0].result)) for pair in alike]
        for pair, ending in zip(alike, suffixes(of_both), strict=True):
            endings[id(pair)] = ending
    named = []
    for pair in found:
        a, b = endings[id(pair)]
        named.append(replace(pair, a_name=pair.a_name + a, b_name=pair.b_name + b))
    return named


def _grouped(entries: Iterable[Entry], key_of: Callable[[Result], Key]) -> dict[Key, list[Entry]]:
    """Return the entries of each key, sorted by the text of the key."""
    groups = grouped(entries, lambda entry: key_of(entry.result))
    return {key: groups[key] for key in sorted(groups, key=str)}


def _name(side: Sequence[Entry], by: str) -> str:
    """Return the name of a side for a sentence."""
    result = example(side).result
    device = device_name(result)
    return device if by in ("platform", DEVICE) else f"{BY[by](result)} on {device}"


def example(side: Sequence[Entry]) -> Entry:
    """Return the first counted entry of a side; without any, the first."""
    return next((entry for entry in side if entry.is_counted), side[0])
