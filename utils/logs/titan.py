"""Step lines of torchtitan, bare or under Primus: `step: N  loss: x  grad_norm: x  memory: xGiB(x%)  tps: n  ...`.

`tps` is tokens a second and device since the line before, so that it is a step's own only where every step is printed;
`memory` is the largest amount that the caching allocator held since then. Every rank may print its own line.
Format read in torchtitan 0.1 and 0.2 (components/metrics.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from utils.logs.lines import Line, number, whole_number
from utils.logs.run_log import GIBIBYTE_IN_GB, Memory, Seen

_START = re.compile(r"(?<!validate )\bstep:\s*([\d,]+)\s+(?=loss:)")
_FIELD = re.compile(r"(\w+):\s*(\S+)(?=(\s)|$)")
_GIB = re.compile(r"([\d.]+)GiB\([\d.]+%\)")
_RANK = re.compile(r"rank-\d{1,9}/(\d{1,9})(?!\d)")
_NAN = ("nan", "inf", "-inf")


def titan_steps(line: Line) -> Iterator[Seen]:
    """Yield every step that a line tells of."""
    if "tps:" not in line.text:
        return
    starts = list(_START.finditer(line.text))
    for index, start in enumerate(starts):
        is_last = index + 1 == len(starts)
        body = line.text[start.end() : None if is_last else starts[index + 1].start()]
        is_closed = is_last and line.is_whole
        values = {match[1]: match[2] for match in _FIELD.finditer(body) if match[3] or is_closed}
        step = whole_number(start[1])
        if step is not None and ("tps" in values or "memory" in values):
            yield _seen(line, step, values)


def _seen(line: Line, step: int, values: dict[str, str]) -> Seen:
    rank = _RANK.search(line.text)
    memory = _GIB.fullmatch(values.get("memory", ""))
    gib = number(memory[1]) if memory else None
    return Seen(
        framework="prim" if rank else "torchtitan",
        format="torchtitan under Primus" if rank else "torchtitan",
        number=step,
        total=None,
        where=line.where,
        loss=number(values.get("loss")),
        grad_norm=number(values.get("grad_norm")),
        tokens=number(values.get("tps")),
        tflops=number(values.get("tflops")),
        world_size=int(rank[1]) if rank else None,
        is_from_any_rank=True,
        not_finite=[f"{key} is {values[key]}" for key in ("loss", "grad_norm") if values.get(key) in _NAN],
        memory=(Memory("max reserved", gib.value * GIBIBYTE_IN_GB, f"{gib.value:g} GiB", line.where),) if gib else (),
    )
