"""MLPerf logs give the published minutes; an incomplete or unsuccessful run is refused with its file."""

from __future__ import annotations

import json
import math
import re
import tarfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from reports import refused

from evaluate import compare, frame, validate
from evaluate.mlperf import DISCLAIMER, main

ARCHIVE = Path(__file__).parents[3] / "shared/reference/mlperf/v5.1_llama31_8b_six_systems.tar.xz"


def log(seconds: float, blocks: int = 4, **changes: Any) -> str:
    """Return the log of a run of 16 x 64 samples in equal blocks of `seconds`, with 10 s of evaluation after each."""
    values = {"global_batch_size": 16, "max_sequence_length": 8192} | changes
    now, lines = 1_000_000, []

    def add(key: str, value: Any = None, **metadata: Any) -> None:
        event = {"time_ms": now, "event_type": "POINT_IN_TIME", "key": key, "value": value, "metadata": metadata}
        lines.append(f"0: :::MLLOG {json.dumps(event)}\n")

    for key in ("global_batch_size", "max_sequence_length"):
        add(key, values[key])
    add("run_start")
    for block in range(1, blocks + 1):
        add("block_start")
        now += round(seconds * 1000)
        if "tracked" in values:
            samples = {"step": 256 * block} if "throughput" in values["tracked"] else {"samples_count": 256.0 * block}
            add("tracked_stats", values["tracked"], **({"step": 16.0 * block - 1} | samples))
        add("block_stop")
        now += 10_000
    add("run_stop", samples_count=values.get("samples", 1024), status=values.get("status", "success"))
    return "".join(lines)


def system(
    folder: Path, name: str, device: str, seconds: list[float], scaling: float | None = None, **changes: Any
) -> None:
    logs = folder / "somebody" / name / "llama31_8b"
    logs.mkdir(parents=True)
    about = {"number_of_nodes": "1", "accelerators_per_node": "8", "accelerator_model_name": device}
    (logs.parent / "system.json").write_text(json.dumps(about))
    for number, one in enumerate(seconds):
        (logs / f"result_{number}.txt").write_text(log(one, **changes))
    if scaling is not None:
        (logs / "scaling.json").write_text(json.dumps({"scaling_factor": scaling}))


def told(folder: Path) -> dict[str, Any]:
    """Return what the command writes about a folder."""
    path = folder / "told.json"
    assert main([str(folder), "--output", str(path)]) == 0
    return dict(json.loads(path.read_text()))


def test_minutes_and_throughput_by_hand(tmp_path: Path) -> None:
    system(tmp_path, "a", "A", [90.0, 100.0, 110.0, 500.0], scaling=1.01)
    (found,) = told(tmp_path)["systems"]
    # fastest and slowest left out: runs of 4 x (100 + 10) and 4 x (110 + 10) seconds
    assert found["minutes"] == pytest.approx((440 + 480) / 2 / 60 * 1.01)
    # 1,024 samples of 8,192 tokens in 400 s on 8 GPUs; nothing was tracked, so it is the time of the blocks
    assert found["runs"][1]["tokens_per_second_per_gpu"] == pytest.approx(1024 * 8192 / 400 / 8)


def test_machines_of_one_accelerator_are_machines_of_one_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, (device, seconds) in product(range(3), (("A", 100.0), ("B", 80.0))):
        system(tmp_path, f"{device}{number}", device, [seconds + number, seconds + 0.2 + number])
    found = told(tmp_path)["verdicts"][0]
    assert (found["verdict"], found["machines"], found["scope"]) == ("faster", [3, 3], "these products")
    assert found["ratio"] == pytest.approx(101.1 / 81.1, rel=1e-3)
    assert "not equal settings" in found["reasons"][0]
    assert "\x1b" not in capsys.readouterr().out, "only a terminal shows bold words"


def other(old: str, new: str) -> Callable[[str], str]:
    """Return a change of the first such text in a log."""
    return lambda log: log.replace(old, new, 1)


AS_IT_IS, CUT = other("", ""), re.compile(r".*run_stop.*\n")
OF_BLOCKS = r".*10\.\d+ samples/s.* 2\.56"
REFUSED: dict[str, tuple[dict[str, Any], Callable[[str], str], str]] = {
    "aborted": ({"status": "aborted"}, AS_IT_IS, r"result_0\.txt: "),
    "no samples": ({"samples": 0}, AS_IT_IS, r"result_0\.txt: "),
    "no blocks": ({"blocks": 0}, AS_IT_IS, r"result_0\.txt: "),
    "a broken line": ({}, other('"key": "block_stop"', '"key": '), r"result_1\.txt:5: "),
    "a cut log": ({}, lambda log: CUT.sub("", log), r"result_1\.txt: "),
    "other batches": ({}, lambda _: log(100.0, global_batch_size=32), "batch"),
    # 2.56 samples/s by its blocks
    "another throughput": ({"tracked": {"throughput": 10.4}}, AS_IT_IS, rf"result_0\.txt: {OF_BLOCKS}"),
    "another step time": ({"tracked": {"train_step_time": 1.55}}, AS_IT_IS, rf"result_0\.txt: {OF_BLOCKS}"),
    "a line without a key": ({}, lambda log: f":::MLLOG {{}}\n{log}", r"result_1\.txt:1: "),
    "a step of no time": ({"tracked": {"train_step_time": 0}}, AS_IT_IS, r"result_0\.txt: "),
}
"""Changes of the logs of two runs, a change of the second log, and words of the error."""


@pytest.mark.parametrize("fault", REFUSED)
def test_a_log_that_is_not_whole_or_contradicts_itself_is_refused_with_its_file(tmp_path: Path, fault: str) -> None:
    changes, change, said = REFUSED[fault]
    system(tmp_path, "a", "A", [100.0, 100.0], **changes)
    path = next(tmp_path.rglob("result_1.txt"))
    path.write_text(change(path.read_text()))
    assert re.search(said, refused(main, tmp_path, code=1))


@pytest.mark.parametrize(
    ("tracked", "samples_per_second"),
    [({"throughput": 2.6}, 2.6), ({"train_step_time": 6.2}, 16 / 6.2), ({"validation_time": 3.0}, 1024 / 400)],
)
def test_throughput_is_the_tracked_speed(tmp_path: Path, tracked: dict[str, float], samples_per_second: float) -> None:
    system(tmp_path, "a", "A", [100.0], tracked=tracked)
    (found,) = told(tmp_path)["systems"]
    assert found["tokens_per_second_per_gpu"] == pytest.approx(samples_per_second * 8192 / 8)


def test_a_single_run_has_no_verdict(tmp_path: Path) -> None:
    system(tmp_path, "a", "A", [100.0, 101.0])
    system(tmp_path, "b", "B", [100.0])
    assert "b: got a single run" in refused(main, tmp_path, code=1)


@pytest.mark.parametrize(
    ("apart", "remark", "word"),
    [(4.0, "A: its 2 machines differ by 4.0% and the runs of one by 0.10% at most", "slower"), (0.3, "", "tie")],
)
def test_machines_of_one_product_that_differ_by_more_than_their_runs_cap_the_claim(
    tmp_path: Path, apart: float, remark: str, word: str
) -> None:
    for number in (0, 1):
        system(tmp_path, f"a{number}", "A", [100.0 + number * apart + run for run in (0.0, 0.2, 0.1)])
    system(tmp_path, "b", "B", [80.0, 80.2, 80.1])
    product, machines = told(tmp_path)["verdicts"]
    assert (product["scope"], product["machines"]) == ("these machines", [2, 1])
    assert [one for one in product["reasons"] if "machines differ" in one][-1:] == [
        f"{remark}, so a claim about the product needs several machines on both sides"
    ][: bool(remark)]
    assert (machines["verdict"], machines["a"], machines["b"]) == (word, "somebody/a0", "somebody/a1")


@pytest.mark.parametrize("tracked", [{"throughput": 2.5}, {"train_step_time": 6.4, "reduced_train_loss": 4.0}])
def test_a_run_is_a_result_whose_untracked_steps_are_left_out_with_a_reason(
    tmp_path: Path, tracked: dict[str, float]
) -> None:
    system(tmp_path, "a", "NVIDIA B200", [100.0], tracked=tracked)
    (result,), steps = frame.load(tmp_path).to_dict("records"), frame.load_steps(tmp_path)
    # four blocks of 256 samples, 16 a step
    assert list(steps.step) == [16, 32, 48, 64]
    assert list(steps.step_time_seconds) == pytest.approx([6.4] * 4)
    losses = [None if math.isnan(loss) else loss for loss in steps.loss_nats_per_token]
    assert losses == [tracked.get("reduced_train_loss")] * 4
    wanted = {"is_counted": True, "platform": "nvd", "model": "llama", "method": "best"}
    wanted["tokens_per_second_per_gpu"] = pytest.approx(2.5 * 8192 / 8)
    assert {key: result[key] for key in wanted} == wanted, result["why_not_counted"]
    assert "precision" in json.loads(result["reasons"]) and DISCLAIMER in result["check_warnings"]


def test_unusable_logs_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracked = {"throughput": 2.5}
    system(tmp_path, "a", "NVIDIA B200", [100.0])
    system(tmp_path, "b", "Somebody's X1", [100.0], tracked=tracked)
    system(tmp_path, "c", "NVIDIA B200", [100.0], tracked=tracked, status="aborted")
    assert validate.main([str(tmp_path)]) == 1
    said = " ".join(" ".join(capsys.readouterr()).split())
    for reason in ("got 0 tracked speeds", 'accelerator "Somebody\'s X1", wanted', "is no success"):
        assert reason in said


# minutes and tokens/s/GPU, recomputed by others from the same logs (MLPerf Training v5.1, llama31_8b)
PUBLISHED = {
    "AMD/MI355X_EPYC_9575F_pytorch": (99.71, 31_423),
    "Dell/1xXE9780x8B300-SXM-270GB": (95.38, 29_897),
    "HPE/HPE-Cray-XD670-H200-SXM5-141GB_n8_25.09": (37.75, 11_598),
    "University-of-Florida/hpg.dgxb200x8.n1": (93.69, 30_113),
    # of three partners 103.6 to 107.5 minutes and 29,794 to 30,425 tokens/s/GPU are known, Supermicro being the fastest
    "Supermicro/8xMI355X_2xEPYC_9575F": (103.56, 30_425),
    "Dell/XE9785L_8xMI355X": (107.46, None),
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the published logs."""
    if not ARCHIVE.is_file():
        pytest.skip("the published logs are not beside this checkout")
    folder = tmp_path_factory.mktemp("logs")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def test_real_logs_give_the_published_figures(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = told(logs)
    assert DISCLAIMER in capsys.readouterr().out
    systems = {one["name"]: (one["minutes"], one["tokens_per_second_per_gpu"]) for one in content["systems"]}
    assert set(systems) == set(PUBLISHED)
    for name, (minutes, throughput) in PUBLISHED.items():
        found, rate = systems[name]
        assert found == pytest.approx(minutes, abs=0.005)
        assert 29_794 <= rate <= 30_425 if throughput is None else rate == pytest.approx(throughput, abs=0.5)
    verdicts = {(entry["a"], entry["b"]): entry for entry in content["verdicts"]}
    h200 = verdicts["AMD Instinct MI355X", "NVIDIA H200-SXM5-141GB"]
    assert (h200["verdict"], h200["machines"], h200["scope"]) == ("slower", [3, 1], "these machines")
    assert "its 3 machines differ by 4.5% and the runs of one by 0.08% at most" in h200["reasons"][-1]


def test_sides_of_real_logs_of_unequal_size_or_batch_are_not_comparable(logs: Path, tmp_path: Path) -> None:
    assert compare.main([str(logs), "--by", "platform", "--output", str(tmp_path), "--format", "json"]) == 3
    content = json.loads((tmp_path / "compare.json").read_text())
    reasons = {verdict["a"]: verdict["reasons"] for verdict in content["verdicts"]}
    assert {verdict["b"] for verdict in content["verdicts"]} == {"AMD Instinct MI355X"}
    assert "number of GPUs differs: 64 against 8" in reasons["NVIDIA H200-SXM5-141GB"]
    others = [reason for name, reason in reasons.items() if "H200" not in name]
    assert len(others) == 2 and all(any("global batch differs" in one for one in reason) for reason in others)
