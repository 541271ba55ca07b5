"""The report of a sweep: figures of counted results only, the best of each work, its settings file, the picture."""

from __future__ import annotations

import json
import re
from itertools import product

import pytest
from reports import refused, save
from sides import both, run

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
            made_ = (run("nvd", n, each, label=label, **both(**asked), **changes) for n in range(1, runs + 1))
            save(folder / label, *made_)
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


def changed(folder, change):
    """Change the only result of a point."""
    (path,) = folder.glob("train_*.json")
    result = json.loads(path.read_text())
    change(result)
    path.write_text(json.dumps(result))


def test_the_rate_of_a_point_is_the_mean_of_its_runs_and_the_fastest_is_the_best(tmp_path, capsys):
    points, best = told(made(tmp_path, {"MBS": ["1", "2"]}, (2.0, 1.0), runs=3), capsys)
    for name, seconds in (("MBS=1", 2.0), ("MBS=2", 1.0)):
        assert float(points[name][0].replace(",", "")) == pytest.approx(TOKENS_PER_GPU / seconds, rel=0.01)
        assert "3" in points[name]
    assert best.startswith("best: MBS=2 (") and "one run" not in best


def test_of_points_that_are_equally_fast_the_one_with_the_least_memory_is_the_best(tmp_path, capsys):
    path = made(tmp_path, {"MBS": ["1", "2"]}, (1.02, 1.0))
    assert "one run" in told(path, capsys)[1]

    def more(result):
        result["memory_metrics"]["peak_memory_allocated_gb"] += 1

    changed(tmp_path / "s_2", more)
    _, best = told(path, capsys)
    assert best.startswith("best: MBS=1 (") and "least memory of 2 points" in best


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


def test_a_result_of_another_point_does_not_count(tmp_path, capsys):
    path = made(tmp_path, {"MBS": ["1", "2"]}, (1.0, 1.2))
    (fast,), (slow,) = ((tmp_path / name).glob("*.json") for name in ("s_1", "s_2"))
    slow.write_bytes(fast.read_bytes())
    points, _ = told(path, capsys)
    assert "label 's_1', MBS is 1" in points["MBS=2"][-1] and "label" not in points["MBS=1"][-1]


def test_a_damaged_file_is_the_reason_of_its_point(tmp_path, capsys):
    path = made(tmp_path, {"MBS": ["1", "2"]}, (1.0, 1.2))
    next((tmp_path / "s_2").glob("train_*.json")).write_text('{"schema_version": ')
    points, _ = told(path, capsys)
    assert points["MBS=2"][-1].startswith("it cannot be read: ") and len(points["MBS=2"][-1]) > 30


def test_results_of_several_machines_have_no_best(tmp_path, capsys):
    path = made(tmp_path, {"MBS": ["1", "2"]}, (1.0, 1.2))
    changed(tmp_path / "s_1", lambda result: result["provenance"].update(host="another"))
    _, best = told(path, capsys)
    assert best.startswith("best: none (") and "several machines" in best


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
