"""A log becomes a valid result whose numbers follow from its lines; a contradiction is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from evaluate import extract, validate
from evaluate.inputs.discover import DiscoverError, discover, log_of
from utils.results import store
from utils.settings.config import ROOT

LOGS = ROOT / "tests" / "utils" / "logs" / "samples"


def run(*arguments: object) -> int:
    return extract.main([str(argument) for argument in arguments])


def extracted(tmp_path: Path, name: str, *more: object, code: int = 0) -> dict[str, Any]:
    path = tmp_path / f"train_{name}.json"
    assert run("--log-file", LOGS / f"{name}.log", "--model-name", "llama", "--output", path, *more) == code
    return store.read(path)


def test_speed_of_a_log_follows_from_its_steady_steps(tmp_path: Path) -> None:
    sizes = ("--num-gpus", 8, "--global-batch-size", 64, "--sequence-length", 4096)
    result = extracted(tmp_path, "primus_a", *sizes)
    # 6 steps, 3 of them warm-up: 2.0, 3.2 and 2.56 s of 64 x 4096 = 262144 tokens on 8 GPUs
    speed = result["performance_metrics"]
    assert speed["avg_step_time_seconds"] == pytest.approx(7.76 / 3, abs=5e-4)
    assert (speed["min_step_time_seconds"], speed["max_step_time_seconds"]) == (2.0, 3.2)
    assert speed["tokens_per_second"] == pytest.approx(262144 * 3 / 7.76, abs=5e-4)
    assert speed["tokens_per_second_per_gpu"] == pytest.approx(32768 * 3 / 7.76, abs=5e-4)
    assert speed["warmup_steps_excluded"] == 3
    assert (result["platform"], result["framework"], result["status"], result["source"]) == ("amd", "prim", "ok", "log")
    assert result["steps"] == [1, 2, 3, 4, 5, 6]
    assert result["step_times"] == [20.0, 4.096, 4.0, 2.0, 3.2, 2.56]
    assert result["loss_values"] == [11.75, 11.5, 11.25, 11.0, 10.75, 10.5]
    assert result["learning_rates"] == [1.5e-4, 3.0e-4, 2.7e-4, 1.5e-4, 4.0e-5, 0.0]
    assert validate.main([str(tmp_path)]) == 0


def test_an_iteration_whose_time_is_a_mean_is_left_out_with_a_warning(tmp_path: Path) -> None:
    result = extracted(tmp_path, "primus_cd")
    assert result["steps"] == [1, 3, 4, 5, 6]
    assert list(result["excluded_steps"]) == ["2"]
    # of 5 steps 3 are warm-up: 3.2 and 2.56 s
    assert result["performance_metrics"]["avg_step_time_seconds"] == 2.88
    assert result["memory_metrics"]["peak_memory_allocated_gb"] == 78.643  # 75000 MiB
    assert "75000.00 MB, rank 0 after 2 iterations" in result["memory_metrics"]["source"]
    assert result["resolved_config"]["parameter_count"] == 8030261248
    assert result["resolved_config"]["vocab_size"] == 128256
    assert result["provenance"]["host"] == "node-c"
    assert result["provenance"]["started_utc"] is None
    assert any("iteration 2 is left out" in text for text in result["warnings"])
    assert validate.main([str(tmp_path)]) == 0


def test_memory_of_the_whole_device_is_not_taken_for_what_the_framework_allocated(tmp_path: Path) -> None:
    memory = extracted(tmp_path, "primus_a")["memory_metrics"]
    assert memory["peak_memory_allocated_gb"] is None
    assert "150.50GB" in memory["reasons"]["peak_memory_allocated_gb"]
    assert memory["as_logged"]["device used (hip)"] == "150.50GB"


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
    assert (result["training_config"]["num_gpus"], result["training_config"]["sequence_length"]) == (8, 4096)
    assert (result["resolved_config"]["num_gpus"], result["resolved_config"]["sequence_length"]) == (None, None)
    assert result["resolved_config"]["global_batch_size"] == 64


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


def test_a_run_that_is_not_ok_is_written_with_its_reason_and_exits_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = extracted(
        tmp_path, "hugging_face", "--num-gpus", 1, "--global-batch-size", 64, "--sequence-length", 128, code=1
    )
    assert result["status"] == "failed"
    assert "prints no time of a step" in result["reason"]
    assert "error: failed: the Hugging Face Trainer prints no time of a step" in capsys.readouterr().err


def test_a_log_that_stops_early_keeps_the_steps_that_it_has(tmp_path: Path) -> None:
    text = (LOGS / "primus_a.log").read_text().replace("/       6 |", "/     500 |")
    (tmp_path / "early.log").write_text(text)
    path = tmp_path / "train_early.json"
    assert run("--log-file", tmp_path / "early.log", "--model-name", "llama", "--output", path) == 1
    result = store.read(path)
    assert (result["status"], result["reason"]) == ("failed", "the log stops at iteration 6 of 500")
    assert len(result["step_times"]) == 6
    assert result["training_config"]["max_steps"] == 500


def test_parameters_of_another_model_fail_the_result(tmp_path: Path) -> None:
    path = tmp_path / "train_qwen.json"
    assert run("--log-file", LOGS / "primus_c.log", "--model-name", "qwen", "--output", path) == 1
    assert "counts 8030261248 parameters, and qwen full has 7615616512" in store.read(path)["reason"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--num-gpus", 16), "primus_a.log:3: world size is 8 in the log and 16 was said"),
        (("--global-batch-size", 128), "primus_a.log:3: global batch size is 64 in the log and 128 was said"),
        (("--sequence-length", 2048), "primus_a.log:1: sequence length is 4096 in the log and 2048 was said"),
        (("--max-steps", 500), "primus_a.log:3: total steps is 6 in the log and 500 was said"),
        (("--framework", "nemo"), "no iteration of nemo, but of prim"),
    ],
)
def test_an_argument_that_the_log_contradicts_is_an_error_that_shows_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], message: str
) -> None:
    path = tmp_path / "train_x.json"
    assert run("--log-file", LOGS / "primus_a.log", "--model-name", "llama", "--output", path, *arguments) == 2
    assert message in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--log-file", "nowhere.log", "--model-name", "llama"), "nowhere.log"),
        (("--log-file", LOGS / "nemo.log", "--model-name", "llama"), "add --sequence-length"),
        (("--log-file", LOGS / "nemo.log"), "--model-name: missing; name the trained model: llama, qwen, mistral"),
        (("--log-file", ROOT / "README.md", "--model-name", "llama"), "no line tells of an iteration"),
        (("--discover", "nowhere"), "nowhere: no such folder"),
    ],
)
def test_bad_input_is_one_line_and_exits_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], message: str
) -> None:
    assert run(*arguments, "--output", tmp_path) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def tree(root: Path) -> Path:
    """Fill a typical folder: Primus's per-rank tree, a log with its rotated part, a note, a trace report."""
    rows = (LOGS / "primus_c.log").read_text().splitlines(keepends=True)
    exp = root / "amd" / "root" / "llama3.1_8B-pretrain" / "logs"
    for rank, part in (
        (0, [row for row in rows if "rank-0/8" in row]),
        (7, [row for row in rows if "rank-7/8" in row]),
    ):
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


def test_files_of_one_training_are_found_together(tmp_path: Path) -> None:
    found = {one.name: one for one in discover(tree(tmp_path))}
    assert sorted(found) == ["amd/root/llama3.1_8B-pretrain", "perf_report.xlsx", "qwen/out.log", "somebodys.txt"]
    names = [str(path.relative_to(tmp_path / "amd/root")) for path in found["amd/root/llama3.1_8B-pretrain"].paths]
    assert len(names) == 4 and all("/debug." in name for name in names)
    assert len(found["qwen/out.log"].paths) == 2
    models = [found[name].model for name in sorted(found)]
    assert models == ["llama", None, "qwen", None]
    assert found["perf_report.xlsx"].refused


def test_a_whole_folder_becomes_results_and_failures_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "results"
    assert (
        run("--discover", tree(tmp_path / "logs"), "--output", output, "--sequence-length", 4096, "--num-gpus", 8) == 1
    )
    printed = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()]
    assert [text.partition(" -> ")[0].partition(": ")[0] for text in printed] == ["ok", "no result", "ok", "no result"]
    assert "holds times of kernels and none of steps" in printed[1]
    assert "no part of its path names llama, qwen, mistral" in printed[3]
    written = {path.parent.name: store.read(path) for path in store.find([output])}
    assert {label: (one["label"], one["model"], one["status"]) for label, one in written.items()} == {
        "amd_root_llama3.1_8B-pretrain": ("amd_root_llama3.1_8B-pretrain", "llama", "ok"),
        "qwen_out.log": ("qwen_out.log", "qwen", "ok"),
    }
    assert written["amd_root_llama3.1_8B-pretrain"]["steps"] == [1, 3, 4, 5, 6]
    assert written["qwen_out.log"]["step_times"] == [10.25, 2.5, 2.506, 2.494, 2.512, 2.488]


def test_the_environment_names_the_log_of_a_model(tmp_path: Path) -> None:
    log = LOGS / "primus_a.log"
    assert log_of("llama", {"LLAMA_LOG": str(log)}, tmp_path) == [log]
    assert log_of("qwen", {"QWEN_LOG": f"{log}:{log}"}, tmp_path) == [log, log]
    with pytest.raises(DiscoverError, match=r"MISTRAL_LOG=gone.log: gone.log is not a file"):
        log_of("mistral", {"MISTRAL_LOG": "gone.log"}, tmp_path)


def test_a_log_is_found_in_the_known_folders(tmp_path: Path) -> None:
    with pytest.raises(DiscoverError, match="no log of llama in .*; name it with --log-file or LLAMA_LOG"):
        log_of("llama", {}, tmp_path)
    tree(tmp_path / "primus" / "output")
    paths = log_of("llama", {"PRIMUS_PATH": str(tmp_path / "primus")}, tmp_path)
    assert {path.parent.name for path in paths} == {"rank-0", "rank-7"}
    (tmp_path / "output").mkdir()
    named = tmp_path / "output" / "log_mp_pretrain_llama3.1_8B-BF16-pretrain.txt"
    shutil.copy(LOGS / "primus_b.log", named)
    assert log_of("llama", {"PRIMUS_PATH": str(tmp_path / "primus")}, tmp_path) == [named]
    (tmp_path / "output" / "llama_notes.txt").write_text("no training\n")
    assert log_of("llama", {}, tmp_path) == [named]
    shutil.copy(LOGS / "primus_a.log", tmp_path / "output" / "train_amd_prim_llama_run2.log")
    with pytest.raises(DiscoverError, match="several logs of llama"):
        log_of("llama", {}, tmp_path)


def test_the_same_log_has_the_same_identity_and_another_has_another(tmp_path: Path) -> None:
    one, two = (extracted(tmp_path, name)["identity_sha256"] for name in ("primus_a", "primus_b"))
    assert one != two
    assert extracted(tmp_path, "primus_a")["identity_sha256"] == one


def test_the_command_line_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "train_x.json"
    run("--log-file", LOGS / "primus_a.log", "--model-name", "llama", "--output", path)
    command = json.loads(path.read_text())["provenance"]["command"]
    assert command.startswith("python -m evaluate.extract --log-file ")
