"""The points of a sweep: every combination of the values of its axes, each with a label of its own."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence

from utils.errors import ConfigError
from utils.results.sweep_file import Point, Sweep
from utils.settings.config import values_of
from utils.settings.keys import KEYS
from utils.settings.layers import parse_values

MOST_POINTS = 1000
NAME = "sweep"
"""Name of a sweep without LABEL."""
LISTS = ("FRAMEWORK", "MODEL")
"""Settings that are lists in every run; in a sweep each of their values is a point."""
NOT_SWEPT = ("LABEL", "OUTPUT_DIR", "DATA_DIR", "METHOD", "RUNS", "FORCE", "RUNTIME", "LAUNCHER", "NODE_RANK")
_LONGEST_LABEL = 80


def sweep_of(platform: str, arguments: Sequence[str]) -> Sweep:
    """Return the sweep that the arguments describe: `KEY=V1,V2` is an axis, `KEY=V` holds for all points.

    RUNS is 1 unless it is given: a sweep compares many settings roughly, and the settings that it finds are run again.
    Raises ConfigError for a value that its setting does not take, no axis, a value given twice, a setting that cannot
    be swept, and bad grammar. Values that do not fit together are found later, point by point.
    """
    texts: dict[str, str] = {}
    for argument in arguments:
        key, equals, text = argument.partition("=")
        if not equals or key not in KEYS:
            values_of(platform, [argument])  # raises ConfigError with what is allowed
        texts[key] = text
    known = {key: value.text for key, value in values_of(platform, _firsts(texts)).items()}
    for key in LISTS:
        texts.setdefault(key, known[key])
        if "all" in texts[key].split(","):
            raise ConfigError(f"{key}={texts[key]}: a sweep needs names; name them, e.g. {key}={_example(key)}")
    if known["METHOD"] == "both":
        raise ConfigError("METHOD=both: a sweep changes the settings of one method; set METHOD=equal or METHOD=best")
    if known["LAUNCHER"] == "slurm":
        raise ConfigError("LAUNCHER=slurm: a sweep runs inside one allocation; start it there with LAUNCHER=torchrun")
    axes = {key: _values(key, text) for key, text in texts.items() if "," in text}
    if not axes:
        raise ConfigError("a sweep needs two values of at least one setting, e.g. MBS=1,2,4; got one value of each")
    for key, text in texts.items():
        for value in axes.get(key, [text]):
            parse_values(values_of(platform, [f"{key}={value}"]))
    fixed = {"RUNS": "1"} | {key: text for key, text in texts.items() if key not in axes and key != "LABEL"}
    sweep = Sweep(texts.get("LABEL") or NAME, platform, axes, fixed)
    sweep.points = _points(sweep)
    return sweep


def arguments_of(sweep: Sweep, point: Point) -> list[str]:
    """Return the settings of a point as KEY=VALUE arguments."""
    values = sweep.fixed | point.settings | {"LABEL": point.label}
    return [f"{key}={value}" for key, value in values.items()]


def _firsts(texts: Mapping[str, str]) -> list[str]:
    return [f"{key}={text.partition(',')[0]}" for key, text in texts.items()]


def _example(key: str) -> str:
    return {"FRAMEWORK": "mega,hf", "MODEL": "llama,qwen"}[key]


def _values(key: str, text: str) -> list[str]:
    if key in NOT_SWEPT:
        raise ConfigError(f"{key}={text}: got several values, but {key} is the same for all points; give one value")
    values = text.split(",")
    if "" in values or len(set(values)) < len(values):
        raise ConfigError(f"{key}={text}: got an empty value or one twice, wanted different values, e.g. MBS=1,2,4")
    return values


def _points(sweep: Sweep) -> list[Point]:
    combinations = list(itertools.islice(itertools.product(*sweep.axes.values()), MOST_POINTS + 1))
    if len(combinations) > MOST_POINTS:
        raise ConfigError(f"got more than {MOST_POINTS} points, wanted fewer; leave values out")
    settings = [dict(zip(sweep.axes, values, strict=True)) for values in combinations]
    return [Point(one, _label(sweep.name, one)) for one in settings]


def _label(name: str, settings: Mapping[str, str]) -> str:
    """Return the label of a point: the sweep's name and the values, shortened by a hash where that is too long."""
    plain = "_".join((name, *(f"{key}{value}" for key, value in settings.items())))
    label = re.sub(r"[^A-Za-z0-9._-]", "-", plain)
    if label == plain and len(label) <= _LONGEST_LABEL:
        return label
    return f"{label[: _LONGEST_LABEL - 13]}_{hashlib.sha256(plain.encode()).hexdigest()[:12]}"
