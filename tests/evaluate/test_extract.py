"""A log becomes a valid result whose numbers follow from its lines; a contradiction is refused."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from reports import refused

from evaluate import extract, frame, validate
from example import example_result

LOGS = ROOT / "tests" / "utils" / "logs" / "samples"


def run(*arguments: object) -> int:
    return extract.main([str(argument) for argument in arguments])


def extracted(tmp_path: Path, name: str, *more: object, code: int = 0) -> dict[str, Any]:
    path = tmp_path / f"{name}.json"
    assert run("--log-file", LOGS / f"{name}.log", "--model-name", "llama", "--output", path, *more) == code
    return dict(json.loads(path.read_text()))


def agrees(found: Any, wanted: Any) -> bool:
    """Return whether an object has each key that is wanted, with its value, or a text in it that fits a pattern."""
    if isinstance(wanted, dict):
        return all(agrees(found[key], value) for key, value in wanted.items())
    return bool(wanted.search(str(found)) if isinstance(wanted, re.Pattern) else found == wanted)


SIZES = ("--num-gpus", 8, "--global-batch-size", 64, "--sequence-length", 4096)
TITAN = ("--num-gpus", 4, "--global-batch-size", 16, "--sequence-length", 4096)
# 6 steps, 3 of them warm-up: 2.0, 3.2 and 2.56 s of 64 x 4096 = 262144 tokens on 8 GPUs
SPEED = {
    "avg_step_time_seconds": 7.76 / 3,
    "min_step_time_seconds": 2.0,
    "max_step_time_seconds": 3.2,
    "tokens_per_second": 262144 * 3 / 7.76,
    "tokens_per_second_per_gpu": 32768 * 3 / 7.76,
}
NOT_SAID = (
    "init",
    "dataset",
    "min_lr",
    "warmup_iters",
    "weight_decay",
    "beta2",
    "adam_eps",
    "clip_grad",
    "init_std",
    "optimizer_state",
    "gradient_dtype",
    "recompute",
)
EXTRACTED: dict[str, tuple[tuple[object, ...], dict[str, Any]]] = {
    "primus_a": (
        SIZES,
        {
            "platform": "amd",
            "framework": "prim",
            "status": "ok",
            "source": "log",
            "steps": [1, 2, 3, 4, 5, 6],
            "step_times": [20.0, 4.096, 4.0, 2.0, 3.2, 2.56],
            "loss_values": [11.75, 11.5, 11.25, 11.0, 10.75, 10.5],
            "learning_rates": [1.5e-4, 3.0e-4, 2.7e-4, 1.5e-4, 4.0e-5, 0.0],
            "performance_metrics": {key: pytest.approx(value, abs=5e-4) for key, value in SPEED.items()}
            | {"warmup_steps_excluded": 3},
            # memory of the whole device is not what the framework allocated
            "memory_metrics": {
                "peak_memory_allocated_gb": None,
                "as_logged": {"device used (hip)": "150.50GB"},
                "reasons": {"peak_memory_allocated_gb": re.compile("150.50GB")},
            },
        },
    ),
    # iteration 2 is a mean and left out; of 5 steps 3 are warm-up: 3.2 and 2.56 s
    "primus_cd": (
        (),
        {
            "steps": [1, 3, 4, 5, 6],
            "warnings": re.compile("iteration 2 is left out"),
            "performance_metrics": {"avg_step_time_seconds": 2.88},
            "memory_metrics": {"peak_memory_allocated_gb": 78.643},  # 75000 MiB
            "resolved_config": {"parameter_count": 8030261248, "vocab_size": 128256},
            "provenance": {"host": "node-c", "started_utc": None},
        },
    ),
    # settings in the log need no option
    "megatron_old": (
        ("--platform", "nvd"),
        {
            "training_config": {
                "num_gpus": 8,
                "tp": 2,
                "dp": 4,
                "micro_batch_size": 2,
                "gradient_accumulation": 8,
                "seed": 1234,
                "precision": "bf16",
                "max_steps": 6,
                "reasons": dict.fromkeys(NOT_SAID, "the log does not say it"),
            }
        },
    ),
    # options that the log does not contain are not read back
    "nemo": (
        ("--num-gpus", 8, "--sequence-length", 4096),
        {
            "framework": "nemo",
            "platform": "nvd",
            "training_config": {"num_gpus": 8, "sequence_length": 4096, "global_batch_size": 64},
            "resolved_config": {"num_gpus": None, "sequence_length": None, "global_batch_size": 64},
        },
    ),
    "bridge": (SIZES, {"framework": "bridge", "platform": "nvd"}),
    "megatron_new": (SIZES, {"framework": "mega", "platform": "unknown"}),
    "torchtitan": (TITAN, {"framework": "torchtitan", "platform": "unknown"}),
    "primus_torchtitan": (TITAN, {"framework": "prim", "platform": "amd"}),
    "ours": (SIZES, {"framework": "ours", "platform": "nvd"}),
    "primus_b": (SIZES, {"framework": "prim", "platform": "amd"}),
    "primus_c": (SIZES, {"framework": "prim", "platform": "amd"}),
}
"""Options beside the log and the model, and what is in the result."""


@pytest.mark.parametrize("name", EXTRACTED)
def test_what_a_log_tells_is_in_a_result_that_the_rules_accept_and_that_is_found_under_any_name(
    tmp_path: Path, name: str
) -> None:
    options, wanted = EXTRACTED[name]
    result = extracted(tmp_path, name, *options)
    assert agrees(result, wanted), result
    assert set(result["training_config"]["reasons"]) == set(NOT_SAID) or name != "megatron_old"
    assert validate.main([str(tmp_path)]) == 0


OF_QWEN = "counts 8030261248 parameters, and qwen full has 7615616512"


@pytest.mark.parametrize(
    ("name", "change", "model", "reason", "steps"),
    [
        ("hugging_face", ("", ""), "llama", "the Hugging Face Trainer prints no time of a step", 0),
        ("primus_a", ("/       6 |", "/     500 |"), "llama", "the log stops at iteration 6 of 500", 6),
        ("primus_c", ("", ""), "qwen", OF_QWEN, 5),
    ],
)
def test_a_run_that_is_not_ok_is_written_with_its_reason_and_steps_and_exits_1(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    change: tuple[str, str],
    model: str,
    reason: str,
    steps: int,
) -> None:
    log = tmp_path / "train.log"
    log.write_text((LOGS / f"{name}.log").read_text().replace(*change))
    assert run("--log-file", log, "--output", tmp_path / "train_x.json", "--model-name", model, *SIZES) == 1
    result = json.loads((tmp_path / "train_x.json").read_text())
    assert (result["status"], len(result["step_times"])) == ("failed", steps)
    assert reason in result["reason"] and f"error: failed: {result['reason']}" in capsys.readouterr().err


SAID = ("--log-file", LOGS / "primus_a.log", "--model-name", "llama")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*SAID, "--num-gpus", 16), "primus_a.log:3: world size is 8 in the log and 16 was said"),
        ((*SAID, "--global-batch-size", 128), "primus_a.log:3: global batch size is 64 in the log and 128 was said"),
        ((*SAID, "--sequence-length", 2048), "primus_a.log:1: sequence length is 4096 in the log and 2048 was said"),
        ((*SAID, "--max-steps", 500), "primus_a.log:3: total steps is 6 in the log and 500 was said"),
        ((*SAID, "--framework", "nemo"), "no iteration of nemo, but of prim"),
        (("--log-file", "nowhere.log", "--model-name", "llama"), "nowhere.log"),
        (("--log-file", LOGS / "nemo.log", "--model-name", "llama"), "add --sequence-length"),
        (("--log-file", LOGS / "nemo.log"), "--model-name: missing; name the trained model: llama, qwen, mistral"),
        (("--log-file", ROOT / "README.md", "--model-name", "llama"), "no line tells of an iteration"),
        (("--discover", "nowhere"), "nowhere: no such folder"),
    ],
)
def test_bad_input_or_one_that_the_log_contradicts_is_one_line_and_exits_2(
    tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    assert message in refused(extract.main, *arguments, "--output", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_event_file_without_its_reader_is_one_line_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_file_loader", None)
    log = tmp_path / "llama" / "events.out.tfevents.nemo"
    log.parent.mkdir()
    shutil.copy(LOGS / log.name, log)
    said = f"{log}: event files are read by TensorBoard, which cannot be imported here"
    assert said in refused(extract.main, "--log-file", log, "--model-name", "llama", "--output", tmp_path / "out")
    assert run("--discover", tmp_path, "--output", tmp_path / "out") == 1 and said in capsys.readouterr().out


EXP = "amd/root/llama3.1_8B-pretrain/logs"


def tree(root: Path) -> Path:
    """Fill a typical folder: Primus's per-rank tree, a log with its rotated part, a note, a trace report."""
    of_c, nemo = ((LOGS / f"{name}.log").read_text().splitlines(keepends=True) for name in ("primus_c", "nemo"))
    files = {"qwen/out.log.1": nemo[:3], "qwen/out.log": nemo[3:], "notes.txt": ["the loss looked fine\n"]}
    files |= {"somebodys.txt": [(LOGS / "megatron_old.log").read_text()], "perf_report.xlsx": ["PK"]}
    files[f"{EXP}/master/master-0.log"] = ["no training in here\n"]
    for rank in (0, 7):
        part, folder = [row for row in of_c if f"rank-{rank}/8" in row], f"{EXP}/pre_trainer/rank-{rank}"
        half = len(part) // 2
        files |= {f"{folder}/debug.2026-06-01_10-00-21_000001.log": part[:half], f"{folder}/debug.log": part[half:]}
        files[f"{folder}/error.log"] = []
    for name, lines in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("".join(lines))
    return root


def test_a_whole_folder_becomes_results_and_failures_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--output", tmp_path / "results", "--sequence-length", 4096, "--num-gpus", 8)
    assert run("--discover", tree(tmp_path / "logs"), *options) == 1
    lines = [line.partition(": ") for line in capsys.readouterr().out.splitlines()]
    assert [(name, text.partition(" -> ")[0].partition(": ")[0]) for name, _, text in lines] == [
        ("amd/root/llama3.1_8B-pretrain", "ok"),
        ("perf_report.xlsx", "no result"),
        ("qwen/out.log", "ok"),
        ("somebodys.txt", "no result"),
    ]
    assert "holds times of kernels and none of steps" in lines[1][2]
    assert "no part of its path names llama, qwen, mistral" in lines[3][2]
    written = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("results/**/*.json")}
    amd = {"label": "amd_root_llama3.1_8B-pretrain", "model": "llama", "status": "ok", "steps": [1, 3, 4, 5, 6]}
    qwen = {"label": "qwen_out.log", "model": "qwen", "status": "ok"}
    qwen["step_times"] = [10.25, 2.5, 2.506, 2.494, 2.512, 2.488]
    assert len(written) == 2 and agrees(written, {one["label"]: one for one in (amd, qwen)})


def of_model(model: str, code: int) -> dict[str, Any]:
    """Extract the log of a model that the command finds by itself; return its result, empty if there is none."""
    assert run("--model-name", model, *SIZES, "--output", "found.json") == code
    return dict(json.loads(Path("found.json").read_text())) if code == 0 else {}


def test_a_log_is_found_in_the_known_folders_or_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("LLAMA_LOG", "QWEN_LOG", "MISTRAL_LOG", "PRIMUS_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MISTRAL_LOG", "gone.log")
    of_model("mistral", 2)
    assert "MISTRAL_LOG=gone.log: gone.log is not a file" in capsys.readouterr().err
    monkeypatch.setenv("PRIMUS_PATH", str(tmp_path / "primus"))
    of_model("llama", 2)
    assert re.search("no log of llama in .*; name it with --log-file or LLAMA_LOG", capsys.readouterr().err)
    tree(tmp_path / "primus" / "output")
    assert of_model("llama", 0)["steps"] == [1, 3, 4, 5, 6], "the ranks of Primus's tree"
    (tmp_path / "output").mkdir()
    shutil.copy(LOGS / "primus_a.log", tmp_path / "output" / "log_mp_pretrain_llama3.1_8B-BF16-pretrain.txt")
    (tmp_path / "output" / "llama_notes.txt").write_text("no training\n")
    assert of_model("llama", 0)["step_times"][0] == 20.0, "a named log comes before Primus's tree"
    shutil.copy(LOGS / "primus_b.log", tmp_path / "output" / "train_amd_prim_llama_run2.log")
    of_model("llama", 2)
    assert "several logs of llama" in capsys.readouterr().err
    monkeypatch.setenv("LLAMA_LOG", str(LOGS / "primus_a.log"))
    assert of_model("llama", 0)["step_times"][0] == 20.0


def test_a_log_has_an_identity_of_its_own(tmp_path: Path) -> None:
    one, two, again = (extracted(tmp_path, name)["identity_sha256"] for name in ("primus_a", "primus_b", "primus_a"))
    assert one == again != two


# A result that was made from a log is found in a folder under any name; other JSON files are left alone.


def found(*folders: Path) -> list[str]:
    return sorted(Path(file).name for file in frame.load(*folders).file)


def test_a_result_of_a_log_is_found_under_any_name_and_once(tmp_path: Path) -> None:
    for path in (tmp_path / "R.json", tmp_path / "deeper" / "train_000.json"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(example_result(source="log"), indent=1))
    (tmp_path / "S.json").symlink_to(tmp_path / "R.json")
    assert found(tmp_path, tmp_path) == ["R.json", "train_000.json"]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    others = {"copy_of_a_result.json": json.dumps(example_result()), "a.json": "{", "b.json": "[]", "c.json": ""}
    for name, text in (others | {"d.json": json.dumps({"source": "log"})}).items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ValueError, match="no result|wanted"):
        found(tmp_path)
