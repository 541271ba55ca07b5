"""A log becomes a valid result whose numbers follow from its lines; a contradiction is refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from reports import refused

from evaluate import extract, validate

LOGS = ROOT / "tests" / "utils" / "logs" / "samples"


def run(*arguments: object) -> int:
    return extract.main([str(argument) for argument in arguments])


def extracted(tmp_path: Path, name: str, *more: object, code: int = 0) -> dict[str, Any]:
    path = tmp_path / f"train_{name}.json"
    assert run("--log-file", LOGS / f"{name}.log", "--model-name", "llama", "--output", path, *more) == code
    return dict(json.loads(path.read_text()))


def test_speed_of_a_log_follows_from_its_steady_steps(tmp_path: Path) -> None:
    sizes = ("--num-gpus", 8, "--global-batch-size", 64, "--sequence-length", 4096)
    result = extracted(tmp_path, "primus_a", *sizes)
    # 6 steps, 3 of them warm-up: 2.0, 3.2 and 2.56 s of 64 x 4096 = 262144 tokens on 8 GPUs
    speed = {
        **{"avg_step_time_seconds": 7.76 / 3, "min_step_time_seconds": 2.0, "max_step_time_seconds": 3.2},
        **{"tokens_per_second": 262144 * 3 / 7.76, "tokens_per_second_per_gpu": 32768 * 3 / 7.76},
        "warmup_steps_excluded": 3,
    }
    assert {key: result["performance_metrics"][key] for key in speed} == pytest.approx(speed, abs=5e-4)
    logged = {
        **{"platform": "amd", "framework": "prim", "status": "ok", "source": "log", "steps": [1, 2, 3, 4, 5, 6]},
        "step_times": [20.0, 4.096, 4.0, 2.0, 3.2, 2.56],
        "loss_values": [11.75, 11.5, 11.25, 11.0, 10.75, 10.5],
        "learning_rates": [1.5e-4, 3.0e-4, 2.7e-4, 1.5e-4, 4.0e-5, 0.0],
    }
    assert result | logged == result
    assert validate.main([str(tmp_path)]) == 0


def test_an_iteration_whose_time_is_a_mean_is_left_out_with_a_warning(tmp_path: Path) -> None:
    result = extracted(tmp_path, "primus_cd")
    assert (result["steps"], list(result["excluded_steps"])) == ([1, 3, 4, 5, 6], ["2"])
    # of 5 steps 3 are warm-up: 3.2 and 2.56 s
    assert result["performance_metrics"]["avg_step_time_seconds"] == 2.88
    assert result["memory_metrics"]["peak_memory_allocated_gb"] == 78.643  # 75000 MiB
    assert "75000.00 MB, rank 0 after 2 iterations" in result["memory_metrics"]["source"]
    assert [result["resolved_config"][key] for key in ("parameter_count", "vocab_size")] == [8030261248, 128256]
    assert [result["provenance"][key] for key in ("host", "started_utc")] == ["node-c", None]
    assert any("iteration 2 is left out" in text for text in result["warnings"])
    assert validate.main([str(tmp_path)]) == 0


def test_memory_of_the_whole_device_is_not_taken_for_what_the_framework_allocated(tmp_path: Path) -> None:
    memory = extracted(tmp_path, "primus_a")["memory_metrics"]
    assert (memory["peak_memory_allocated_gb"], memory["as_logged"]["device used (hip)"]) == (None, "150.50GB")
    assert "150.50GB" in memory["reasons"]["peak_memory_allocated_gb"]


def test_settings_in_the_log_need_no_option(tmp_path: Path) -> None:
    config = extracted(tmp_path, "megatron_old", "--platform", "nvd")["training_config"]
    known = ("num_gpus", "tp", "dp", "micro_batch_size", "gradient_accumulation", "seed", "precision", "max_steps")
    assert [config[key] for key in known] == [8, 2, 4, 2, 8, 1234, "bf16", 6]
    assert config["reasons"] == dict.fromkeys(("init", "dataset"), "the log does not say it") | {
        key: "the log does not say it"
        for key in (
            *("min_lr", "warmup_iters", "weight_decay", "beta2", "adam_eps", "clip_grad", "init_std"),
            *("optimizer_state", "gradient_dtype", "recompute"),
        )
    }


def test_options_that_the_log_does_not_contain_are_not_read_back(tmp_path: Path) -> None:
    result = extracted(tmp_path, "nemo", "--num-gpus", 8, "--sequence-length", 4096)
    keys = ("num_gpus", "sequence_length", "global_batch_size")
    found = [[result[section][key] for key in keys] for section in ("training_config", "resolved_config")]
    assert found == [[8, 4096, 64], [None, None, 64]]


@pytest.mark.parametrize(
    ("name", "framework", "platform"),
    [
        ("nemo", "nemo", "nvd"),
        ("bridge", "bridge", "nvd"),
        ("megatron_new", "mega", "unknown"),
        ("torchtitan", "torchtitan", "unknown"),
        ("primus_torchtitan", "prim", "amd"),
        ("ours", "ours", "nvd"),
        ("primus_b", "prim", "amd"),
        ("primus_c", "prim", "amd"),
    ],
)
def test_every_format_gives_a_result_that_the_rules_accept(
    tmp_path: Path, name: str, framework: str, platform: str
) -> None:
    gpus = 4 if "titan" in name else 8
    result = extracted(
        tmp_path,
        name,
        "--num-gpus",
        gpus,
        "--sequence-length",
        4096,
        "--global-batch-size",
        16 if "titan" in name else 64,
    )
    assert (result["framework"], result["platform"]) == (framework, platform)
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
    options = ("--model-name", model, "--num-gpus", 8, "--global-batch-size", 64, "--sequence-length", 4096)
    assert run("--log-file", log, "--output", tmp_path / "train_x.json", *options) == 1
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


def tree(root: Path) -> Path:
    """Fill a typical folder: Primus's per-rank tree, a log with its rotated part, a note, a trace report."""
    rows = (LOGS / "primus_c.log").read_text().splitlines(keepends=True)
    exp = root / "amd" / "root" / "llama3.1_8B-pretrain" / "logs"
    for rank in (0, 7):
        part = [row for row in rows if f"rank-{rank}/8" in row]
        folder = exp / "pre_trainer" / f"rank-{rank}"
        folder.mkdir(parents=True)
        (folder / "debug.2026-06-01_10-00-21_000001.log").write_text("".join(part[: len(part) // 2]))
        (folder / "debug.log").write_text("".join(part[len(part) // 2 :]))
        (folder / "error.log").write_text("")
    (exp / "master").mkdir()
    (exp / "master" / "master-0.log").write_text("no training in here\n")
    nemo = (LOGS / "nemo.log").read_text().splitlines(keepends=True)
    (root / "qwen").mkdir()
    (root / "qwen" / "out.log.1").write_text("".join(nemo[:3]))
    (root / "qwen" / "out.log").write_text("".join(nemo[3:]))
    (root / "notes.txt").write_text("the loss looked fine\n")
    shutil.copy(LOGS / "megatron_old.log", root / "somebodys.txt")
    (root / "perf_report.xlsx").write_bytes(b"PK")
    return root


def test_a_whole_folder_becomes_results_and_failures_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "results"
    assert (
        run("--discover", tree(tmp_path / "logs"), "--output", output, "--sequence-length", 4096, "--num-gpus", 8) == 1
    )
    lines = [line.partition(": ") for line in capsys.readouterr().out.splitlines()]
    assert [name for name, _, _ in lines] == [
        *("amd/root/llama3.1_8B-pretrain", "perf_report.xlsx", "qwen/out.log", "somebodys.txt"),
    ]
    printed = [text for _, _, text in lines]
    assert [text.partition(" -> ")[0].partition(": ")[0] for text in printed] == ["ok", "no result", "ok", "no result"]
    assert "holds times of kernels and none of steps" in printed[1]
    assert "no part of its path names llama, qwen, mistral" in printed[3]
    written = {path.parent.name: json.loads(path.read_text()) for path in output.rglob("*.json")}
    assert {label: (one["label"], one["model"], one["status"]) for label, one in written.items()} == {
        "amd_root_llama3.1_8B-pretrain": ("amd_root_llama3.1_8B-pretrain", "llama", "ok"),
        "qwen_out.log": ("qwen_out.log", "qwen", "ok"),
    }
    assert written["amd_root_llama3.1_8B-pretrain"]["steps"] == [1, 3, 4, 5, 6]
    assert written["qwen_out.log"]["step_times"] == [10.25, 2.5, 2.506, 2.494, 2.512, 2.488]


@pytest.fixture
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory, without variables that name a log."""
    for name in ("LLAMA_LOG", "QWEN_LOG", "MISTRAL_LOG", "PRIMUS_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def of_model(model: str, code: int) -> dict[str, Any]:
    """Extract the log of a model that the command finds by itself; return its result, empty if there is none."""
    sizes = ("--num-gpus", 8, "--global-batch-size", 64, "--sequence-length", 4096)
    assert run("--model-name", model, *sizes, "--output", "found.json") == code
    return dict(json.loads(Path("found.json").read_text())) if code == 0 else {}


def test_the_environment_names_the_log_of_a_model(
    searched: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLAMA_LOG", str(LOGS / "primus_a.log"))
    assert of_model("llama", 0)["step_times"][0] == 20.0
    monkeypatch.setenv("MISTRAL_LOG", "gone.log")
    of_model("mistral", 2)
    assert "MISTRAL_LOG=gone.log: gone.log is not a file" in capsys.readouterr().err


def test_a_log_is_found_in_the_known_folders(
    searched: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRIMUS_PATH", str(searched / "primus"))
    of_model("llama", 2)
    assert re.search("no log of llama in .*; name it with --log-file or LLAMA_LOG", capsys.readouterr().err)
    tree(searched / "primus" / "output")
    assert of_model("llama", 0)["steps"] == [1, 3, 4, 5, 6], "the ranks of Primus's tree"
    (searched / "output").mkdir()
    shutil.copy(LOGS / "primus_a.log", searched / "output" / "log_mp_pretrain_llama3.1_8B-BF16-pretrain.txt")
    (searched / "output" / "llama_notes.txt").write_text("no training\n")
    assert of_model("llama", 0)["step_times"][0] == 20.0, "a named log comes before Primus's tree"
    shutil.copy(LOGS / "primus_b.log", searched / "output" / "train_amd_prim_llama_run2.log")
    of_model("llama", 2)
    assert "several logs of llama" in capsys.readouterr().err


def test_a_log_has_an_identity_of_its_own_and_the_command_line_is_recorded(tmp_path: Path) -> None:
    found = [extracted(tmp_path, name) for name in ("primus_a", "primus_b", "primus_a")]
    one, two, again = (result["identity_sha256"] for result in found)
    assert one == again != two
    assert found[0]["provenance"]["command"].startswith("python -m evaluate.extract --log-file ")
