"""The pairs of a comparison: two sides that differ in one thing and are as equal as possible in everything else.

A side is one kind of device (model and partition mode) with one layout; other devices, partitions and layouts are other
sides. Pairs meet at equal size and layout. With the method `best` the layout is free, and the fastest of each size is
the side's. What finds no counterpart, and every slower layout, is listed with the pair. `why_none` has the reason why
results make no pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from operator import attrgetter
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
from utils.frameworks import VENDOR_OF
from utils.results.schema import Result

NODES, BEST = "nodes", "best"
"""The second is the method that tunes each side by the means of its vendor."""
UNKNOWN_DEVICE = "unknown device"
LEFT_OUT = "left out of its side"
"""First words of the rejection of a run that differs from its own side (evaluate/verdict/odd_runs.py)."""

DEVICE, MOST_SIDES = "device", 6
"""The second is the largest number of sides of which every two make a pair; of more, each meets the first."""

PROPERTIES: dict[str, Callable[[Result], str]] = {
    "model": lambda result: str(result["model"]),
    "method": lambda result: str(result["method"]),
    "platform": lambda result: str(result["platform"]),
    "framework": lambda result: str(result["framework"]),
    "device": lambda result: str(kind_of(result).name or "unknown"),
    "machine": machine_of,
}
"""Properties that both sides of a pair may have to share, and the function that reads each from a result."""
SHARED = {
    **dict.fromkeys(("platform", DEVICE), ()),
    "framework": ("platform", "device", "machine"),
    **dict.fromkeys(("machine", NODES), ("platform", "framework", "device")),
    "label": ("platform", "framework"),
}
"""Those that count for each property of a comparison, besides model and method."""
BY: dict[str, Callable[[Result], str]] = {
    "platform": PROPERTIES["platform"],
    DEVICE: lambda result: kind_of(result).full_name or UNKNOWN_DEVICE,
    "framework": PROPERTIES["framework"],
    "machine": machine_of,
    NODES: lambda result: f"{result['training_config']['num_gpus']} GPUs",
    "label": lambda result: str(result["label"] or "no label"),
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
        runs = ", ".join(dict.fromkeys(str(entry.result["run"]) for entry in self.entries))
        return f"{self.side}, run{'' if len(self.entries) == 1 else 's'} {runs}: {self.reason}"


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
        return [e.result for e in self.a if e.is_counted], [e.result for e in self.b if e.is_counted]

    @property
    def steady_steps(self) -> str:
        """Numbers of the steps behind the ratio: `steps 11 to 100`, or those of each side if they differ."""
        a, b = map(steps_text, self.counted)
        return a if a == b else f"{b} of {self.b_name}, {a} of {self.a_name}"


def default_by(entries: Sequence[Entry]) -> str:
    """Return the usual property: the device if a platform has several, else the platform if there are two, otherwise
    the framework."""
    devices = {(entry.result["platform"], kind_of(entry.result).name) for entry in entries if entry.is_counted}
    if len(devices) > len({platform for platform, _ in devices}):
        return DEVICE
    return "platform" if len({entry.result["platform"] for entry in entries}) > 1 else "framework"


def pairs(entries: Sequence[Entry], by: str, baseline: str | None = None) -> list[Pair]:
    """Return all pairs of two sides, or of the baseline's with another, by model, method and what they share."""
    found: list[Pair] = []
    for (model, method, _), members in _grouped(
        entries, lambda result: (result["model"], result["method"], _shared(result, by))
    ):
        sides = _sides(members, by)
        names = sorted(sides, key=lambda name: place(sides[name][0].result, by, baseline))
        if baseline is not None and baseline not in names:
            continue
        are_all = baseline is None and len(names) <= MOST_SIDES
        for a, b in combinations(names, 2) if are_all else ((names[0], other) for other in names[1:]):
            for (_, left), (_, right) in product(*(_grouped(sides[name], PROPERTIES["framework"]) for name in (a, b))):
                if by == "framework" or _may_meet(left[0].result, right[0].result):
                    both = Pair(model, "", method, "", "", tuple(left), tuple(right), is_of_jobs=by == NODES)
                    found += _of_sides(both, by)
    return _told_apart(found)


def why_none(entries: Sequence[Entry], by: str) -> str:
    """Return why the entries make no pair by a property, in one clause; empty if there is nothing to say."""
    sides = grouped((entry.result for entry in entries), BY[by])
    if len(sides) < 2:
        what = "number of GPUs" if by == NODES else by
        return "".join(f"all results have one {what}: {name}" for name in sides)
    (a, left), (b, right) = sorted(sides.items())[:2]
    for name in ("model", "method", *(SHARED[by] or ("framework",))):
        ours, theirs = ({PROPERTIES[name](result) for result in side} for side in (left, right))
        if ours.isdisjoint(theirs):
            is_unnamed = name == "platform" and "unknown" in ours | theirs
            return (
                f"{a} and {b} differ in {name} too ({' or '.join(sorted(ours))} against {' or '.join(sorted(theirs))})"
                f"{': extract the log again with --platform' if is_unnamed else ''}"
            )
    return ""


def _sides(entries: Sequence[Entry], by: str) -> dict[str, list[Entry]]:
    """Return the entries of each value of the property; a run that failed before it recorded its device joins the only
    one of its platform."""
    sides = dict(_grouped(entries, BY[by]))
    if by == DEVICE and not any(entry.is_counted for entry in sides.get(UNKNOWN_DEVICE, ())):
        for entry in sides.pop(UNKNOWN_DEVICE, ()):
            homes = [side for side in sides.values() if side[0].result["platform"] == entry.result["platform"]]
            (homes[0] if len(homes) == 1 else sides.setdefault(UNKNOWN_DEVICE, [])).append(entry)
    return sides


def _may_meet(a: Result, b: Result) -> bool:
    """Return whether the frameworks of two sides may be compared: they are one, or each is its own vendor's."""
    are_vendors = {a["framework"], b["framework"]} <= VENDOR_OF.keys()
    return bool(a["framework"] == b["framework"] or (are_vendors and a["platform"] != b["platform"]))


def place(result: Result, by: str, baseline: str | None) -> tuple[bool, int, str]:
    """Return the sort key of the side of a result: the baseline first, then NVIDIA, or the fewest GPUs."""
    name, platform = BY[by](result), result["platform"]
    if by == NODES:
        return name != baseline, int(name.split()[0]), name
    is_ordered = by in ("platform", DEVICE) and platform in PLATFORMS
    return name != baseline, list(PLATFORMS).index(platform) if is_ordered else len(PLATFORMS), name


def side_key(result: Result, by: str) -> tuple[Any, ...]:
    """Return the properties that all runs of one side share: those of the comparison, the device, work and layout."""
    shared = result["model"], result["method"], _shared(result, by), BY[by](result), result["framework"]
    return *shared, kind_of(result), setting_of(result), layout_of(result)


def _shared(result: Result, by: str) -> tuple[str, ...]:
    """Return the properties that both sides share besides model and method."""
    return tuple(PROPERTIES[name](result) for name in SHARED[by])


def _of_sides(both: Pair, by: str) -> Iterator[Pair]:
    """Yield the pairs of the devices, settings and layouts of both sides; `both` has all results of each."""
    a, b = _by_kind(both.a), _by_kind(both.b)
    kinds = [(kind, kind) for kind in a if kind in b] or list(product(a, b))
    for left, right in kinds:
        a_name, b_name = _name(a[left], by), _name(b[right], by)
        named = replace(both, a_name=a_name, b_name=b_name, refusal=_refusal(left, right))
        made: list[Pair] = []
        ours, theirs = dict(_grouped(a[left], setting_of)), dict(_grouped(b[right], setting_of))
        is_best = both.method == BEST
        fit = Setting.fits_best if is_best else Setting.fits
        for x, y in _matched(ours, theirs, fit, takes_all=is_best):
            framework = " and ".join(dict.fromkeys(entry.result["framework"] for entry in (x[0], y[0])))
            made += _meeting(replace(named, framework=framework), x, y, by)
        alone = _alone([*a[left], *b[right]], made, by)
        yield from (replace(pair, left_out=(*pair.left_out, *alone)) for pair in made)


def _by_kind(entries: Sequence[Entry]) -> dict[Kind, list[Entry]]:
    """Return the entries of each kind of device; a run that failed before it recorded its device joins the only one."""
    found = dict(_grouped(entries, kind_of))
    unknown = Kind(None)
    if unknown in found and len(found) > 1 and not any(entry.is_counted for entry in found[unknown]):
        failed = found.pop(unknown)
        for entries_of_kind in found.values():
            entries_of_kind += failed
    return found


def _refusal(a: Kind, b: Kind) -> str:
    if a == b or (a.parts == b.parts and a.parts is not None):
        return ""
    what = "a part of a device against a whole one" if a.is_whole or b.is_whole else "parts that are not alike"
    shown = [f"{kind.text or 'whole'}{f', {kind.size}' if kind.size else ''}" for kind in (a, b)]
    return f"not the same kind of thing, {what}: {shown[0]} against {shown[1]}"


def _matched(
    left: Mapping[Key, list[Entry]],
    right: Mapping[Key, list[Entry]],
    fit: Callable[[Key, Key], bool],
    *,
    takes_all: bool = False,
) -> list[tuple[list[Entry], list[Entry]]]:
    """Return the groups of both sides with equal keys, else those whose keys fit, with `takes_all` both; if none do,
    the group of each with the most counted runs, to report the difference."""
    alike = [(x, y) for x, y in product(left, right) if fit(x, y)]
    exact = [(x, y) for x, y in alike if x == y and not takes_all]
    a, b = (max(side.values(), key=lambda group: sum(one.is_counted for one in group)) for side in (left, right))
    return [(left[x], right[y]) for x, y in exact or alike] or [(a, b)]


def _meeting(pair: Pair, a: Sequence[Entry], b: Sequence[Entry], by: str) -> Iterable[Pair]:
    """Return the pairs of equal layout, or of equal size with the method `best`.

    If no layout of one side has a counterpart, one pair reports the difference.
    """
    left, right = (dict(_grouped(side, layout_of)) for side in (a, b))
    if pair.method == BEST:
        return _fastest_pairs(pair, left, right, by)
    fit = Layout.fits_without_size if by == NODES else Layout.fits
    return [replace(pair, a=tuple(x), b=tuple(y)) for x, y in _matched(left, right, fit)]


def _fastest_pairs(pair: Pair, a: dict[Layout, list[Entry]], b: dict[Layout, list[Entry]], by: str) -> Iterator[Pair]:
    """Yield a pair for each size that both sides have, each side with its fastest layout of that size."""
    sizes = [{layout.num_gpus: None for layout in side} for side in (a, b)]
    common: list[tuple[Any, Any]] = [(size, size) for size in sizes[0] if size in sizes[1]]
    refusal = pair.refusal
    if by == NODES:
        common = [(x, y) for x in sizes[0] for y in sizes[1]]
    elif not common:
        common = [(fastest(a).num_gpus, fastest(b).num_gpus)]
        refusal = refusal or f"number of GPUs differs: {common[0][0]} against {common[0][1]}"
    for size_a, size_b in common:
        (x, slower_x), (y, slower_y) = (
            _chosen({layout: entries for layout, entries in side.items() if layout.num_gpus == size}, name)
            for side, size, name in ((a, size_a, pair.a_name), (b, size_b, pair.b_name))
        )
        tried_x, tried_y = (
            1 + sum(any(entry.is_counted for entry in one.entries) for one in slower) for slower in (slower_x, slower_y)
        )
        left_out = (*slower_x, *slower_y)
        yield replace(pair, a=x, b=y, refusal=refusal, left_out=left_out, layouts=(tried_x, tried_y))


def _chosen(layouts: dict[Layout, list[Entry]], name: str) -> tuple[tuple[Entry, ...], list[LeftOut]]:
    """Return the runs of the fastest layout, and a line for each other layout."""
    best = fastest(layouts)
    others = []
    for layout, entries in ((one, runs) for one, runs in layouts.items() if one != best):
        ratio = compared_with(layouts[best], entries)
        counted = sum(entry.is_counted for entry in entries)
        speed = (
            "no valid result" if ratio is None else f"{with_interval(ratio)} as fast, {counted} run{'s'[: counted > 1]}"
        )
        reason = f"{layout.text}: {speed}; the side's layout is {best.text}, the fastest by its own interval"
        others.append(LeftOut(name, reason, tuple(entries)))
    return tuple(layouts[best]), others


def _alone(entries: Sequence[Entry], made: Sequence[Pair], by: str) -> list[LeftOut]:
    """Return a line for the counted runs of each setting and layout that are in none of the pairs."""
    known = {id(entry) for pair in made for entry in (*pair.a, *pair.b)}
    known |= {id(entry) for pair in made for one in pair.left_out for entry in one.entries}
    rest = [entry for entry in entries if entry.is_counted and id(entry) not in known]
    reason = "left out, because the other side has no run of"
    return [
        LeftOut(_name(members, by), f"{reason} {in_words(members[0].result)}", tuple(members))
        for _, members in _grouped(rest, lambda result: (BY[by](result), setting_of(result), layout_of(result)))
    ]


def _told_apart(found: Sequence[Pair]) -> list[Pair]:
    """Return the pairs; where several would have the same names, each name states the size or setting that differs."""
    endings: dict[int, tuple[str, str]] = {}
    for alike in grouped(found, attrgetter("model", "framework", "method", "a_name", "b_name")).values():
        of_both = [(terms(pair.a[0].result), terms(pair.b[0].result)) for pair in alike]
        endings |= zip(map(id, alike), suffixes(of_both), strict=True)
    ended = ((pair, *endings[id(pair)]) for pair in found)
    return [replace(pair, a_name=pair.a_name + a, b_name=pair.b_name + b) for pair, a, b in ended]


def _grouped(entries: Iterable[Entry], key_of: Callable[[Result], Any]) -> list[tuple[Any, list[Entry]]]:
    return sorted(grouped(entries, lambda entry: key_of(entry.result)).items(), key=lambda item: str(item[0]))


def _name(side: Sequence[Entry], by: str) -> str:
    """Return the name of a side for a sentence."""
    result = next((entry for entry in side if entry.is_counted), side[0]).result
    device = device_name(result)
    return device if by in ("platform", DEVICE) else f"{BY[by](result)} on {device}"
