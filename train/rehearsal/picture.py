"""The picture of a rehearsal: memory of each stage by kind beside the estimate, and time or traffic by kind."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from train.rehearsal.account import LABEL, work_by_kind
from train.rehearsal.memory import KINDS
from utils.own_files import PNG_MARK

# The palette of Okabe and Ito (2008), distinguishable with any common colour blindness; hatches for print in grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#F0E442", "#CC79A7", "#999999")
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "|||", "++", "---")
WIDTH, HEIGHT, DPI = 11.0, 4.6, 110


def png(content: Mapping[str, Any]) -> bytes:
    """Return the picture as a PNG."""
    with mpl.rc_context({"text.parse_math": False, "font.size": 9, "hatch.linewidth": 0.5}):
        stream = io.BytesIO()
        draw(content).savefig(stream, format="png", dpi=DPI, metadata=PNG_MARK)
    return stream.getvalue()


def draw(content: Mapping[str, Any]) -> Figure:
    """Return the figure. `png` renders it with the matplotlib settings that it assumes."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    left, right = figure.subplots(1, 2)
    _memory(left, content)
    _work(right, content)
    asked = content["settings"]
    figure.suptitle(
        f"{LABEL.upper()}: {content['framework']} {content['model']} ({content['model_size']}), "
        f"{asked['num_gpus']} {content['platform']}, TP {asked['tp']} PP {asked['pp']} DP {asked['dp']}, "
        f"MBS {asked['micro_batch_size']} SL {asked['sequence_length']}, {asked['precision']}",
        fontsize=10,
    )
    return figure


def _memory(axes: Axes, content: Mapping[str, Any]) -> None:
    bars = [(f"rank {stage['rank']}", stage["memory_gb"]) for stage in content["stages"]]
    bars.append((f"estimate\n(stage {content['estimate_by_kind_gb']['stage']})", content["estimate_by_kind_gb"]))
    bottoms = [0.0] * len(bars)
    for kind, colour, hatch in zip(KINDS, COLOURS, HATCHES, strict=True):
        heights = [sizes.get(kind, 0.0) for _, sizes in bars]
        axes.bar(
            range(len(bars)),
            heights,
            bottom=bottoms,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            label=kind,
            width=0.6,
        )
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    for place, total in enumerate(bottoms):
        axes.annotate(f"{total:.1f}", (place, total), ha="center", va="bottom")
    axes.set_xticks(range(len(bars)), [name for name, _ in bars])
    axes.set(title="Memory of tensors at the fullest moment of a step", ylabel="GB", ylim=(0, 1.1 * max(bottoms)))
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _work(axes: Axes, content: Mapping[str, Any]) -> None:
    seconds = content["roofline_seconds_by_kind"]
    if seconds is not None:
        values = {kind: value for kind, value in seconds.items() if value is not None}
        title, unit = f"Least time of a step on {content['device']['name']}\n(roofline, no communication)", "seconds"
    else:
        work = work_by_kind(content["operators"])
        values = {kind: one["bytes"] / 1e9 for kind, one in sorted(work.items())}
        title, unit = "Bytes moved in a step, by kind of operator", "GB"
    axes.barh(list(values), list(values.values()), color=COLOURS[0])
    for place, value in enumerate(values.values()):
        axes.annotate(f" {value:.3g}", (value, place), va="center")
    axes.invert_yaxis()
    axes.set(title=title, xlabel=unit, xlim=(0, 1.15 * (max(values.values(), default=0.0) or 1.0)))
