"""A rehearsal as text, JSON and picture: every figure under the words "rehearsed, not measured".

The picture has the memory of each stage by kind beside the estimate, and time or traffic by kind.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from train.rehearsal.account import LABEL, work_by_kind
from train.rehearsal.memory import KINDS
from utils.own_files import PNG_MARK
from utils.redact import json_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure  # imported on use: the help needs no package

MOST_COLLECTIVES, MOST_READS = 8, 6
LISTS = ("operators", "collectives", "host_reads", "stages")
# The palette of Okabe and Ito (2008), distinguishable with any common colour blindness; hatches for print in grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#F0E442", "#CC79A7", "#999999")
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "|||", "++", "---")
WIDTH, HEIGHT, DPI = 11.0, 4.6, 110


def as_json(content: Mapping[str, Any]) -> str:
    """Return the JSON without secrets, with one line for each operator."""
    lines = []
    for key, value in json_value(content).items():
        text = json.dumps(value, allow_nan=False)
        if key in LISTS and value:
            text = "[\n  " + ",\n  ".join(json.dumps(row, allow_nan=False) for row in value) + "\n ]"
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def as_text(content: Mapping[str, Any]) -> str:
    """Return the report for a terminal."""
    return "\n".join([_title(content), *_memory(content), *_work(content), *_communication(content)]) + "\n"


def _short(value: float) -> str:
    """Return a number with three decimals, of a small one three digits."""
    return f"{value:,.3f}" if value >= 1 or value == 0 else f"{value:.3g}"


def _title(content: Mapping[str, Any]) -> str:
    asked = content["settings"]
    sizes = " ".join(f"{name} {asked[key]}" for name, key in (("TP", "tp"), ("PP", "pp"), ("DP", "dp")))
    batch = (("MBS", "micro_batch_size"), ("SL", "sequence_length"), ("GA", "gradient_accumulation"))
    settings = " ".join(f"{name} {asked[key]}" for name, key in batch)
    kind = "rank" if content["platform"] == "cpu" else "GPU"
    count = asked["num_gpus"]
    devices = f"{count} {content['platform']} {kind}{'s' if count > 1 else ''}"
    layers = ", torch's layers" if content["framework"] == "mega" else ""
    return (
        f"{LABEL.capitalize()}: {content['framework']} {content['model']} ({content['model_size']}) on {devices}, "
        f"{sizes}, {settings}, {asked['precision']}{layers}\n"
        f"All figures are of one step and, unless stated otherwise, of rank {content['rank']}, the fullest one."
    )


def _memory(content: Mapping[str, Any]) -> Iterator[str]:
    peak, estimated, kinds = content["peak_memory_gb"], content["estimate_gb"], content["memory_gb"]
    share = round(100 * (estimated / peak - 1), 1) + 0.0  # no -0.0
    yield f"peak memory    {_short(peak)} GB of tensors; estimate {_short(estimated)} GB ({share:+.1f} %)"
    yield "               " + ", ".join(f"{kind} {_short(size)}" for kind, size in kinds.items() if size > 1e-4 * peak)
    if content["building_peak_memory_gb"] > peak:
        building = _short(content["building_peak_memory_gb"])
        yield f"               before the first step {building} GB: more than in a step"
    if len(content["stages"]) > 1:
        stages = (f"{stage['rank']}: {_short(stage['peak_memory_gb'])}" for stage in content["stages"])
        yield f"               GB by rank, one of each pipeline stage: {', '.join(stages)}"
    device = content["device"]
    if device is not None:
        yield f"               one {device['name']} has {device['memory_gb']:g} GB by its datasheet"


def _work(content: Mapping[str, Any]) -> Iterator[str]:
    ran, full, causal = (_short(content[f"flops_per_token{end}"] / 1e9) for end in ("", "_full", "_causal"))
    yield f"FLOPs          {ran} GFLOP a token, all ranks; formulas: {full} with full, {causal} with causal attention"
    (shown,) = (stage for stage in content["stages"] if stage["rank"] == content["rank"])
    seconds = shown["roofline_seconds_by_kind"] or {}
    yield f"operators      {len(content['operators'])} different" + ("; least seconds by roofline" if seconds else "")
    for kind, work in sorted(work_by_kind(content["operators"]).items(), key=lambda item: -item[1]["bytes"]):
        time = f" {_short(seconds[kind]):>8} s" if seconds.get(kind) is not None else ""
        done = f"{_short(work['flops'] / 1e12):>10} TFLOP {_short(work['bytes'] / 1e9):>10} GB"
        yield f"  {kind:13}{work['count']:9,} x {done}{time}"
    if seconds:
        least = content["roofline_seconds"]
        of = " of the slowest stage" if len(content["stages"]) > 1 else ""
        name = content["device"]["name"]
        yield f"roofline       {_short(least)} s a step at least{of} on {name}, without communication"


def _communication(content: Mapping[str, Any]) -> Iterator[str]:
    reads: Sequence[Mapping[str, Any]] = content["host_reads"]
    yield f"host reads     {content['host_reads_per_step']} a step"
    yield from (f"  {one['count']:5} x {one['where']}" for one in reads[:MOST_READS])
    rows: Sequence[Mapping[str, Any]] = content["collectives"]
    yield f"collectives    {sum(row['count'] for row in rows)} a step"
    for row in rows[:MOST_COLLECTIVES]:
        where = f"{row['group'].lower()} of {row['ranks']}" if row["ranks"] else "between stages"
        yield f"  {row['count']:5} x {row['bytes'] / 1e6:12,.3f} MB {row['name']}, {where}"
    if len(rows) > MOST_COLLECTIVES:
        yield f"  and {len(rows) - MOST_COLLECTIVES} smaller kinds"


def png(content: Mapping[str, Any]) -> bytes:
    """Return the picture as a PNG."""
    import matplotlib as mpl

    with mpl.rc_context({"text.parse_math": False, "font.size": 9, "hatch.linewidth": 0.5}):
        stream = io.BytesIO()
        draw(content).savefig(stream, format="png", dpi=DPI, metadata=PNG_MARK)
    return stream.getvalue()


def draw(content: Mapping[str, Any]) -> Figure:
    """Return the figure. `png` renders it with the matplotlib settings that it assumes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_memory(left, content)
    _draw_work(right, content)
    asked = content["settings"]
    figure.suptitle(
        f"{LABEL.upper()}: {content['framework']} {content['model']} ({content['model_size']}), "
        f"{asked['num_gpus']} {content['platform']}, TP {asked['tp']} PP {asked['pp']} DP {asked['dp']}, "
        f"MBS {asked['micro_batch_size']} SL {asked['sequence_length']}, {asked['precision']}",
        fontsize=10,
    )
    return figure


def _draw_memory(axes: Axes, content: Mapping[str, Any]) -> None:
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


def _draw_work(axes: Axes, content: Mapping[str, Any]) -> None:
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
