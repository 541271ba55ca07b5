"""A pair with its verdict, the sentences that state it, and the observations that weaken it.

The headline names who is how fast against whom, and for what this holds: model, settings, machines. What the evidence
does not prove about the work stands in the same line. `basis` names the runs and steps behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from evaluate.checks.entries import Entry
from evaluate.fairness.certificate import unproven_work
from evaluate.fairness.items import UNKNOWN, Item
from evaluate.fairness.losses import STABILITY
from evaluate.metrics.defaults import BAND
from evaluate.metrics.metrics import fullest_expert
from evaluate.metrics.published import Tuning
from evaluate.verdict import inference
from evaluate.verdict.order import listed
from evaluate.verdict.pairs import Pair
from evaluate.verdict.ratios import Scaling, written
from evaluate.verdict.saving import Saving
from utils.errors import counted
from utils.frameworks import reads
from utils.models import MODELS
from utils.results.schema import Result

NOT_COMPARABLE = "not_comparable"
MOST_NAMED = 8
"""Largest number of unproven items that a sentence names; the certificate has all."""
SETTINGS = {"equal": "equal settings", "best": "each side's best settings"}
LOCAL = "megatron_core_local"
"""`layer_implementation` of `mega` with LAYERS=local (train/mega/resolved.py), which nobody would run for speed. One
public measurement had 17,217 tokens/s on local layers, 21,795 with TransformerEngine and 23,622 with Apex too (one
GH200, github.com/marin-community/marin, issue 4311, 2026-05-10): such a baseline makes the other side look good."""
KINDS_OF_LAYERS = (
    ("layers", "layer_implementation", LOCAL, "untuned: ", "megatron-core's local layers"),
    ("hf_kernels", "hf_kernels", "stock", "untuned: ", "transformers' own functions"),
    ("hf_kernels", "hf_kernels", "liger", "", "the kernels of liger-kernel"),
)
"""Setting that chooses the layers, key and value of `resolved_config`, and how a verdict names a side with them."""
EVENTS = ("slowing down", "other work")
"""Items on what happened during a run; they weaken a verdict even if both sides show the same."""
CALM = ("no", "none", "not at the end", "no GPU")
"""Their values if nothing happened."""
NAMED = ("power cap", "clocks", "NUMA balancing", STABILITY)
"""Items with a note if both sides were held back alike, or if a training was unstable."""
MOST_REASONS = 3


@dataclass(frozen=True)
class Judged:
    """A pair with its verdict."""

    pair: Pair
    word: str
    reasons: tuple[str, ...]
    certificate: tuple[Item, ...] | None
    estimate: inference.Estimate | None
    remarks: tuple[str, ...] = ()
    """Observations on the runs that do not forbid a comparison."""
    adjusted_p_value: float | None = None
    band: float = BAND
    tunings: tuple[Tuning, ...] = ()
    """With the method `best`: each side's share of the best published figure for its device."""
    saving: Saving | None = None
    """The saving of b over a on a number of tokens; None if the two are not comparable."""
    scaling: Scaling | None = None
    """With a comparison by nodes: the ratio of the jobs, that of each GPU, and the efficiency."""
    would_decide: str | None = None
    """With the word `undecided`: one clause about what would decide it, such as `3 more runs on amd`."""

    @property
    def spoken_word(self) -> str:
        """The word of the verdict as people read it; it says so where the same work is not proven."""
        word = self.word.replace("_", " ")
        return word if self.is_proven or self.word == inference.UNDECIDED else f"{word} if the work is the same"

    @property
    def unproven(self) -> list[str]:
        """Names of unproven items on model, data, settings or losses, in which a difference would forbid the pair."""
        frameworks = [{result["framework"] for result in side} for side in self.pair.counted]
        return unproven_work(
            self.certificate or (),
            is_equal_method=self.pair.method == "equal",
            is_one_framework=frameworks[0] == frameworks[1],
        )

    @property
    def is_proven(self) -> bool:
        """True if nothing about the work of both sides is unproven; without a ratio there is nothing to prove."""
        return self.estimate is None or self.word == NOT_COMPARABLE or not self.unproven

    @property
    def headline(self) -> str:
        """The first line: sides, ratio, population and what is not proven; the reason if the pair is not comparable."""
        pair, found = self.pair, self.estimate
        if self.word == NOT_COMPARABLE or found is None:
            return f"NOT COMPARABLE: {pair.a_name} and {pair.b_name}: {self.reasons[0]}"
        if found.low is None or found.high is None:
            ratio, interval = written(found.ratio)[0], ", no interval"
        else:
            ratio, low, high = written(found.ratio, found.low, found.high)
            interval = f" ({low} to {high})"
        said = f"{pair.b_name} is {ratio}x as fast as {pair.a_name}{interval}"
        if self.word == inference.UNDECIDED:
            said = f"{pair.b_name} against {pair.a_name} is undecided: {ratio}x{interval}"
        elif self.word == inference.TIE:
            said += f", a tie within {self.band:.1%}"
        said += f", {self.work}, for {found.scope}"
        if self.unproven:
            said += f"; not proven: {listed(self.unproven, MOST_NAMED)}"
        if self.would_decide:
            said += f"; what would decide it: {self.would_decide}"
        return said

    @property
    def work(self) -> str:
        """Model and settings in words."""
        return f"{model_name(self.pair.a[0].result)}, {SETTINGS.get(self.pair.method, 'unknown settings')}"

    @property
    def basis(self) -> str:
        """Runs, machines and steps behind the ratio, the proof of the same work, and the tuning of each side."""
        found = self.estimate
        if self.word == NOT_COMPARABLE or found is None:
            return ""
        parts = [_count(found.runs, "run"), _count(found.machines, "machine"), self.pair.steady_steps]
        parts = [", ".join(parts)]
        if self.scaling:
            parts.append(self.scaling.sentence)
        if not self.unproven:
            parts.append("same model, data, settings and loss")
        parts += [_tuned(name, tuning) for name, tuning in self._tunings]
        return "; ".join([*parts, *_kernels(self.pair)])

    @property
    def _tunings(self) -> list[tuple[str, Tuning]]:
        """The tuning of each side with its name; empty unless the method is `best`."""
        names = self.pair.a_name, self.pair.b_name
        return list(zip(names, self.tunings, strict=False))

    @property
    def sentence(self) -> str:
        """The verdict with its basis as one sentence."""
        return "; ".join(filter(None, (self.headline, self.basis)))

    @property
    def tuning_lines(self) -> list[str]:
        """Each side's share of the best published figure with its source, or the reason why it is unknown."""
        lines = []
        for name, tuning in self._tunings:
            share = "tuning unknown" if tuning.share.value is None else f"{tuning.share.value:.1f} %"
            lines.append(f"{name}: {share}, {tuning.share.how}")
        return lines

    @property
    def expert_lines(self) -> list[str]:
        """Of a mixture of experts: the share of the fullest expert in the tokens of a step on each side."""
        sides, how = [], ""
        for name, side in self.pair.sides:
            figures = [figure for result in side for figure in fullest_expert(result).values()]
            if figures:
                how = how or figures[0].how
                sides.append(f"{name} {fmean(figure.value or 0.0 for figure in figures):.1f} %")
            else:
                sides.append(f"{name} unknown")
        return [f"fullest expert: {', '.join(sides)}; {how}"] if how else []

    @property
    def money_lines(self) -> list[str]:
        """The saving of one side in words; empty for an undecided verdict, a model made small, or an unknown price, and
        for a tie on devices of one price, where it is the noise of the speed."""
        if self.saving is None or self.word == inference.UNDECIDED or self.pair.a[0].result["model_size"] != "full":
            return []
        if self.word == inference.TIE and self.saving.percent_range is None:
            return []
        return list(self.saving.lines(self.pair.a_name, self.pair.b_name))


def weaknesses(judged: Judged) -> Iterator[str]:
    """Yield one line for each observation that weakens a verdict; the headline has what is not proven of the work."""
    pair = judged.pair
    yield from _not_counted(pair.b_name, pair.b)
    yield from _not_counted(pair.a_name, pair.a)
    if judged.word == NOT_COMPARABLE or judged.estimate is None:
        return
    unproven, unknown = judged.unproven, []
    # items are ordered by their effect on speed, so the lines are too
    for item in judged.certificate or ():
        shown = f"{pair.b_name}: {item.b}; {pair.a_name}: {item.a}"
        if item.a == item.b:
            shown = f"{item.a}, on both sides"
        if item.state == UNKNOWN and item.name not in unproven:
            unknown.append(item.name)
        if item.name in EVENTS and item.state != UNKNOWN and not {item.a, item.b} <= set(CALM):
            yield f"{item.name}: {shown}"
        elif item.name in NAMED and item.note:
            yield f"{item.note}: {shown}"
    if unknown:
        yield f"unknown, and may differ: {listed(unknown, MOST_NAMED)}"


def _not_counted(name: str, side: Sequence[Entry]) -> Iterator[str]:
    failed = [entry for entry in side if not entry.is_counted]
    if not failed or len(failed) == len(side):
        return  # a side without any valid result is a reason of the verdict
    reasons = list(dict.fromkeys(entry.why_not_counted or str(entry.result["status"]) for entry in failed))
    shown = "; ".join(reasons[:MOST_REASONS])
    if len(reasons) > MOST_REASONS:
        shown += f"; and {len(reasons) - MOST_REASONS} more reasons"
    verb = "does" if len(failed) == 1 else "do"
    yield f"{name}: {len(failed)} of {len(side)} runs {verb} not count: {shown}"


def model_name(result: Result) -> str:
    """Return the name of a model's release, such as `Llama 3.1 8B`, with the size unless it is the full one."""
    model, size = str(result["model"]), str(result["model_size"])
    name = MODELS[model].release.rpartition("/")[2].replace("-", " ") if model in MODELS else model
    return name if size == "full" else f"{name} ({size} size)"


def _count(numbers: tuple[int, int], noun: str) -> str:
    a, b = numbers
    return f"{counted(a, noun)} a side" if a == b else f"{a} and {b} {noun}s"


def _tuned(name: str, found: Tuning) -> str:
    if found.share.value is None:
        return f"no published figure to tell whether {name} is tuned"
    mark = "untuned, " if found.is_untuned else ""
    return f"{name}: {mark}{found.share.value:.0f} % of the best published figure"


def _kernels(pair: Pair) -> Iterator[str]:
    """Yield a clause for each kind of layers that a reader should know of, with its sides.

    Untuned are `mega` on local layers and `hf` on transformers' own functions.
    """
    for setting, key, value, before, kind in KINDS_OF_LAYERS:
        names, framework = [], ""
        for name, side in pair.sides:
            for result in side:
                is_chosen = reads(result["framework"], setting) and result["resolved_config"].get(key) == value
                if is_chosen and name not in names:
                    names.append(name)
                    framework = result["framework"]
        if names:
            yield f"{before}{' and '.join(names)}, {framework} on {kind}"
