"""The report of a sweep: figures of counted results only, the best of each work, its settings file, the picture."""

from __future__ import annotations

import pytest
from sides import run

from evaluate import sweep as command
from evaluate.sweeps import overlay
from evaluate.sweeps.figures import best_of, measure
from utils.own_files import is_png
from utils.results import store, sweep_file
from utils.results.sweep_file import Point, Sweep
from utils.settings.layers import read_file

TOKENS_PER_GPU = 64 * 128 / 8
"""A step of tests/support/sides.py, on each of its 8 GPUs."""


def made(folder, axes, seconds, runs=1, **changes):
    """Write a sweep with a result of each point; `seconds` a step by the values of the point, None: no result."""
    sweep = Sweep("s", "nvd", axes, {"MODEL": "llama"})
    for values, each in seconds.items():
        settings = dict(zip(axes, values, strict=True))
        point = Point(settings, "s_" + "_".join(values), "ok" if each else "failed")
        sweep.points.append(point)
        for number in range(1, runs + 1) if each else ():
            _write(folder, point, run(number=number, seconds=each, label=point.label, **_config(settings), **changes))
    path = sweep_file.path_of(folder, "s")
    path.parent.mkdir(exist_ok=True)
    store.write_json(sweep.as_dict(), path, is_ours=sweep_file.is_sweep)
    return sweep, path


NAMES = {"MBS": "micro_batch_size", "SL": "sequence_length", "TP": "tp"}


def _config(settings):
    found = {f"{s}__{NAMES[key]}": int(value) for key, value in settings.items() for s in SECTIONS if key in NAMES}
    if "MBS" in settings:
        found |= {f"{section}__gradient_accumulation": 8 // int(settings["MBS"]) for section in SECTIONS}
    return found


SECTIONS = ("training_config", "resolved_config")


def _write(folder, point, result):
    name = store.result_name(*(result[key] for key in ("platform", "framework", "model", "run")))
    store.write(result, folder / point.label / name)


def test_the_rate_of_a_point_is_the_mean_of_its_runs(tmp_path):
    sweep, _ = made(tmp_path, {"MBS": ["1", "2"]}, {("1",): 2.0, ("2",): 1.0}, runs=3)
    slow, fast = measure(sweep, tmp_path)
    assert slow.rate == pytest.approx(TOKENS_PER_GPU / 2, rel=0.01)
    assert fast.rate == pytest.approx(TOKENS_PER_GPU, rel=0.01)
    assert len(fast.rates) == 3


def test_the_fastest_point_is_the_best(tmp_path):
    sweep, _ = made(tmp_path, {"MBS": ["1", "2", "4"]}, {("1",): 1.2, ("2",): 1.0, ("4",): 1.5})
    (best,) = best_of(sweep, measure(sweep, tmp_path))
    assert best.chosen.point.settings == {"MBS": "2"}
    assert "one run" in best.why


def test_of_points_that_are_equally_fast_the_one_with_the_least_memory_is_the_best(tmp_path):
    sweep, _ = made(tmp_path, {"MBS": ["1", "2"]}, {("1",): 1.02, ("2",): 1.0})
    small, large = measure(sweep, tmp_path)
    assert small.memory_gb == large.memory_gb
    result = store.read(next((tmp_path / "s_2").glob("*.json")))
    result["memory_metrics"]["peak_memory_allocated_gb"] += 1
    store.write(result, next((tmp_path / "s_2").glob("*.json")))
    (best,) = best_of(sweep, measure(sweep, tmp_path))
    assert best.chosen.point.settings == {"MBS": "1"}
    assert "least memory of 2 points" in best.why


def test_points_of_other_work_do_not_compete(tmp_path):
    axes = {"MBS": ["1", "2"], "SL": ["128", "256"]}
    sweep, path = made(tmp_path, axes, {("1", "128"): 1.0, ("1", "256"): 2.4, ("2", "128"): 1.3, ("2", "256"): 2.0})
    bests = best_of(sweep, measure(sweep, tmp_path))
    assert [(best.work, best.chosen.point.settings["MBS"]) for best in bests] == [
        ({"SL": "128"}, "1"),
        ({"SL": "256"}, "2"),
    ]
    assert command.main([str(path)]) == 0
    assert {file.name for file in path.parent.glob("*.env")} == {"s_best_128.env", "s_best_256.env"}


def test_a_rejected_result_gives_no_rate_but_its_reason(tmp_path):
    sweep, path = made(tmp_path, {"MBS": ["1", "2"]}, {("1",): 1.0, ("2",): 0.9}, loss_values=[8.0] * 100)
    assert [one.rate for one in measure(sweep, tmp_path)] == [None, None]
    assert all("loss" in one.why for one in measure(sweep, tmp_path))
    assert command.main([str(path)]) == 1
    assert not list(path.parent.glob("*.env"))


def test_a_result_of_another_point_does_not_count(tmp_path):
    sweep, _ = made(tmp_path, {"MBS": ["1", "2"]}, {("1",): 1.0, ("2",): 1.2})
    (fast,) = (tmp_path / "s_1").glob("*.json")
    (slow,) = (tmp_path / "s_2").glob("*.json")
    slow.write_bytes(fast.read_bytes())
    one, other = measure(sweep, tmp_path)
    assert one.rate and other.rate is None
    assert "label 's_1', MBS is 1" in other.why


def test_results_of_several_machines_have_no_best(tmp_path):
    sweep, _ = made(tmp_path, {"MBS": ["1", "2"]}, {("1",): 1.0, ("2",): 1.2})
    file = next((tmp_path / "s_1").glob("*.json"))
    result = store.read(file)
    result["provenance"]["host"] = "another"
    store.write(result, file)
    (best,) = best_of(sweep, measure(sweep, tmp_path))
    assert best.chosen is None and "several machines" in best.why


def test_points_that_were_not_started_keep_their_reason(tmp_path):
    sweep, path = made(tmp_path, {"MBS": ["1", "2", "8"]}, {("1",): 1.0, ("2",): None, ("8",): None})
    sweep.points[2].state, sweep.points[2].reason = sweep_file.DOES_NOT_FIT, "at least 90.0 GB are needed"
    _, failed, large = measure(sweep, tmp_path)
    assert failed.why == "not run yet"
    assert large.why == "does not fit: at least 90.0 GB are needed"


def test_the_settings_file_is_read_by_the_suite_and_carries_its_evidence(tmp_path, capsys):
    sweep, path = made(tmp_path, {"MBS": ["1", "2"], "TP": ["1"]}, {("1", "1"): 1.0, ("2", "1"): 1.2}, runs=2)
    assert command.main([str(path)]) == 0
    file = path.parent / "s_best.env"
    assert {key: value.text for key, value in read_file(file, "best").items()} == {"MBS": "1", "TP": "1"}
    text = file.read_text()
    assert overlay.is_overlay(file)
    assert "NVIDIA H100" in text and "s_1_1" in text and "s_2_1" in text and "MODEL=llama" in text
    printed = capsys.readouterr().out
    assert f"cp {file} config.nvd-best.env" in printed  # the H100 is the device of NVIDIA's recipe
    assert is_png(path.with_suffix(".png"))


def test_layout_of_a_device_with_a_file_of_its_own_goes_there(tmp_path):
    b200 = {"gpu_info__device_name": "NVIDIA B200", "gpu_info__total_memory_gb": 191.0, "gpu_info__gpu_cores": 18944}
    sweep, _ = made(tmp_path, {"MBS": ["1", "2"]}, {("1",): 1.0, ("2",): 1.2}, **b200)
    (best,) = best_of(sweep, measure(sweep, tmp_path))
    assert overlay.place(sweep, best) == "config.nvd-best-b200.env"
    sweep.axes["RECOMPUTE"] = ["none", "full"]  # no key of LAYOUT
    assert overlay.place(sweep, best) == "config.nvd-best.env"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"sweep_version": 1}', "\x00"])
def test_another_file_is_one_line_and_exit_2(tmp_path, capsys, content):
    path = tmp_path / "sweeps" / "s.json"
    path.parent.mkdir()
    path.write_text(content)
    assert command.main([str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ") and printed.err.count("\n") == 1 and printed.out == ""


@pytest.mark.parametrize("name", ["s.png", "s_best.env"])
def test_files_of_a_user_stay(tmp_path, capsys, name):
    _, path = made(tmp_path, {"MBS": ["1", "2"]}, {("1",): 1.0, ("2",): 1.2})
    (path.parent / name).write_bytes(b"of a user")
    assert command.main([str(path)]) == 2
    assert (path.parent / name).read_bytes() == b"of a user"
    assert name in capsys.readouterr().err
