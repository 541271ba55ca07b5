"""The report of a sweep: figures of counted results only, the best of each work, its settings file, the picture."""

from __future__ import annotations

import json
import re
from itertools import product

import pytest
from reports import refused
from sides import both, runs as some_runs, write

from evaluate import sweep
from utils.own_files import is_png
from utils.settings.layers import read_file

TOKENS_PER_GPU = 64 * 128 / 8
"""A step of tests/support/sides.py, on each of its 8 GPUs."""
NAMES = {"MBS": "micro_batch_size", "SL": "sequence_length", "TP": "tp"}


def made(folder, axes, seconds, runs=1, **changes):
    """Write a sweep of all combinations with results of `seconds` a step, None: no result; return its file."""
    points = []
    for values, each in zip(product(*axes.values()), seconds, strict=True):
        settings, label = dict(zip(axes, values, strict=True)), "s_" + "_".join(values)
        points.append({"settings": settings, "label": label, "state": "ok" if each else "failed", "reason": None})
        asked = {NAMES[key]: int(value) for key, value in settings.items() if key in NAMES}
        if "MBS" in settings:
            asked["gradient_accumulation"] = 8 // int(settings["MBS"])
        if each:
            write(folder / label, some_runs("nvd", each, runs, label=label, **both(**asked), **changes))
    content = {"sweep_version": 1, "name": "s", "platform": "nvd", "axes": axes, "fixed": {"MODEL": "llama"}}
    path = folder / "sweeps" / "s.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content | {"points": points}))
    return path


def told(path, capsys, code=0):
    """Run the command; return the cells of each point by its name, and the lines on the best."""
    assert sweep.main([str(path)]) == code
    table, _, conclusion = capsys.readouterr().out.partition("best")
    rows = []
    for line in table.splitlines()[2:]:
        if line[:1].strip():
            rows.append(re.split(r"\s{2,}", line.strip()))
        elif line.strip():  # a long cell goes on
            rows[-1][-1] += f" {line.strip()}"
    return {row[0]: row[1:] for row in rows}, " ".join(f"best{conclusion}".split())


def test_the_rate_of_a_point_is_the_mean_of_its_runs_and_the_fastest_is_the_best(tmp_path, capsys):
    points, best = told(made(tmp_path, {"MBS": ["1", "2"]}, (2.0, 1.0), runs=3), capsys)
    for name, seconds in (("MBS=1", 2.0), ("MBS=2", 1.0)):
        assert float(points[name][0].replace(",", "")) == pytest.approx(TOKENS_PER_GPU / seconds, rel=0.01)
        assert "3" in points[name]
    assert best.startswith("best: MBS=2 (") and "one run" not in best


def test_points_of_other_work_do_not_compete(tmp_path, capsys):
    path = made(tmp_path, {"MBS": ["1", "2"], "SL": ["128", "256"]}, (1.0, 2.4, 1.3, 2.0))
    _, best = told(path, capsys)
    assert "best for SL=128: MBS=1 SL=128" in best and "best for SL=256: MBS=2 SL=256" in best
    assert {file.name for file in path.parent.glob("*.env")} == {"s_best_128.env", "s_best_256.env"}


def test_a_rejected_result_gives_no_rate_but_its_reason(tmp_path, capsys):
    path = made(tmp_path, {"MBS": ["1", "2"]}, (1.0, 0.9), loss_values=[8.0] * 100)
    points, _ = told(path, capsys, code=1)
    assert all("loss" in cells[-1] for cells in points.values())
    assert not list(path.parent.glob("*.env"))


MEMORY = '"peak_memory_allocated_gb": 1.2'
OTHER = {
    "one run": ((1.02, 1.0), lambda _, text: text, "", "best: MBS=2 (", "one run"),
    "more memory": (
        (1.02, 1.0),
        lambda _, text: text.replace(MEMORY, MEMORY.replace("1.2", "2.2")),
        "",
        "best: MBS=1 (",
        "least memory of 2 points",
    ),
    "of another point": ((1.0, 1.2), lambda first, _: first, "label 's_1', MBS is 1", "best: MBS=1 (", ""),
    "damaged": ((1.0, 1.2), lambda *_: '{"schema_version": ', "it cannot be read: ", "best: MBS=1 (", ""),
    "of another machine": (
        (1.0, 1.2),
        lambda _, text: text.replace('"host": "nvd-1"', '"host": "another"'),
        "",
        "best: none (",
        "several machines",
    ),
}
"""Seconds of two points, the result of the second from those of both, and words of its reason and of the best."""


@pytest.mark.parametrize("other", OTHER)
def test_only_a_result_of_its_own_point_counts_and_memory_decides_at_equal_speed(tmp_path, capsys, other):
    seconds, change, reason, opening, said = OTHER[other]
    path = made(tmp_path, {"MBS": ["1", "2"]}, seconds)
    first, second = (next((tmp_path / name).glob("train_*.json")) for name in ("s_1", "s_2"))
    second.write_text(change(first.read_text(), second.read_text()))
    points, best = told(path, capsys)
    assert reason in points["MBS=2"][-1] and best.startswith(opening) and said in best
    assert "label" not in points["MBS=1"][-1]


def test_points_that_were_not_started_keep_their_reason(tmp_path, capsys):
    path = made(tmp_path, {"MBS": ["1", "2", "8"]}, (1.0, None, None))
    content = json.loads(path.read_text())
    content["points"][2] |= {"state": "does not fit", "reason": "at least 90.0 GB are needed"}
    path.write_text(json.dumps(content))
    points, _ = told(path, capsys)
    assert points["MBS=2"][-1] == "not run yet"
    assert points["MBS=8"][-1] == "does not fit: at least 90.0 GB are needed"


B200 = {"gpu_info__device_name": "NVIDIA B200", "gpu_info__total_memory_gb": 191.0, "gpu_info__gpu_cores": 18944}


@pytest.mark.parametrize(
    ("axis", "changes", "place"),
    [
        # the H100 is the device of NVIDIA's recipe
        ({"TP": ["1"]}, {}, "config.nvd-best.env"),
        # the layout of a device with a file of its own goes there, and only the layout
        ({"TP": ["1"]}, B200, "config.nvd-best-b200.env"),
        ({"RECOMPUTE": ["none"]}, B200, "config.nvd-best.env"),
    ],
)
def test_the_settings_file_is_read_by_the_suite_and_carries_its_evidence(tmp_path, capsys, axis, changes, place):
    ((name, (value,)),) = axis.items()
    path = made(tmp_path, {"MBS": ["1", "2"]} | axis, (1.0, 1.2), runs=2, **changes)
    _, best = told(path, capsys)
    file = path.parent / "s_best.env"
    assert {key: found.text for key, found in read_file(file, "best").items()} == {"MBS": "1", name: value}
    text = file.read_text()
    assert "NVIDIA" in text and f"s_1_{value}" in text and f"s_2_{value}" in text and "MODEL=llama" in text
    assert best.endswith(f"cp {file} {place}")
    assert is_png(path.with_suffix(".png"))
    told(path, capsys)  # our own files are replaced


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"sweep_version": 1}', "\x00"])
def test_another_file_is_one_line_and_exit_2(tmp_path, content):
    path = tmp_path / "sweeps" / "s.json"
    path.parent.mkdir()
    path.write_text(content)
    refused(sweep.main, path)


@pytest.mark.parametrize("name", ["s.png", "s_best.env"])
def test_files_of_a_user_stay(tmp_path, capsys, name):
    path = made(tmp_path, {"MBS": ["1", "2"]}, (1.0, 1.2))
    (path.parent / name).write_bytes(b"of a user")
    assert sweep.main([str(path)]) == 2
    assert (path.parent / name).read_bytes() == b"of a user"
    assert name in capsys.readouterr().err
