"""The GPU hour: parts run once, in order, within their time; the table shows what results hold. On a CPU, tiny."""

import json
import sys

import pytest

from benchmarks import gpu
from utils.results import store
from utils.settings.config import load


def hour_of_texts(monkeypatch, *codes, seconds=0.0):
    """Parts `one`, `two`, ... that end with the given exit codes and leave a line in a file."""
    parts = []
    for name, code in zip(("one", "two", "three"), codes, strict=False):
        write = f"print('{name}'); open('{{}}', 'a').write('{name} '); raise SystemExit({code})"
        parts.append((name, write))
    monkeypatch.setattr(
        gpu,
        "parts",
        lambda hour: [
            gpu.Part(name, ((sys.executable, "-c", write.format(hour.output / "ran")),), seconds)
            for name, write in parts
        ],
    )
    monkeypatch.setattr(gpu, "write_facts", lambda hour: (hour.output / "facts").mkdir())


def run(tmp_path, *arguments, platform="cpu"):
    return gpu.main(["--platform", platform, "--output", str(tmp_path), *arguments])


def test_finished_part_is_skipped_and_a_failed_one_is_run_again(tmp_path, monkeypatch):
    hour_of_texts(monkeypatch, 0, 3, 0)
    assert run(tmp_path) == 1
    assert (tmp_path / "ran").read_text().split() == ["one", "two", "three"], "a failure does not end the hour"
    record = json.loads((tmp_path / "parts.json").read_text())
    assert [record[name]["exit_code"] for name in ("one", "two", "three")] == [0, 3, 0]
    assert run(tmp_path) == 1
    assert (tmp_path / "ran").read_text().split() == ["one", "two", "three", "two"]


def test_damaged_record_of_parts_is_one_line_and_stays(tmp_path, monkeypatch, capsys):
    hour_of_texts(monkeypatch, 0)
    (tmp_path / "parts.json").write_text("{")
    assert run(tmp_path) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/parts.json: ")
    assert (tmp_path / "parts.json").read_text() == "{" and not (tmp_path / "ran").exists()


def test_part_that_needs_more_than_the_time_left_is_not_started(tmp_path, monkeypatch, capsys):
    hour_of_texts(monkeypatch, 0, 0, seconds=600.0)
    assert run(tmp_path, "--minutes", "9", platform="nvd") == 0
    assert not (tmp_path / "ran").exists()
    assert "no time for: one (600 s expected, 540 s left)" in capsys.readouterr().out


def test_part_that_does_not_end_is_stopped_at_the_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "write_facts", lambda hour: (hour.output / "facts").mkdir())
    sleeping = gpu.Part("sleep", ((sys.executable, "-c", "import time; time.sleep(600)"),), 0.0)
    monkeypatch.setattr(gpu, "parts", lambda hour: [sleeping])
    assert run(tmp_path, "--minutes", "0.02") == 1
    assert json.loads((tmp_path / "parts.json").read_text())["sleep"]["exit_code"] == 124


@pytest.mark.parametrize("platform", ["nvd", "amd"])
def test_order_of_value_and_full_size_on_a_gpu(tmp_path, platform):
    parts = gpu.parts(gpu.Hour(tmp_path, platform, 0.0))
    names = [part.name for part in parts]
    assert names[:5] == ["probe", *(f"{f} llama SL {n}" for n in (2048, 8192) for f in ("mega", "hf"))]
    assert len(set(names)) == len(names)
    for part in parts[1:]:
        asked = {"MODEL_SIZE=full", "OPTIMIZER_STATE=bf16"}
        if part.name.startswith("reference "):
            asked = {"MODEL_SIZE=proxy", "OPTIMIZER_STATE=fp32"}
        assert asked <= set(part.commands[-1])
    batches = {length: int(next(word for word in part.commands[-1] if word.startswith("GBS="))[4:]) * length
               for part in parts for length in (2048, 4096, 8192) if f"SL={length}" in part.commands[-1]}  # fmt: skip
    assert set(batches.values()) == {16_384}, "the same tokens a step at every length"


@pytest.mark.parametrize("platform", ["nvd", "amd"])
def test_titan_is_held_against_the_same_work_of_mega_and_hf(tmp_path, platform):
    parts = gpu.parts(gpu.Hour(tmp_path, platform, 0.0))
    commands = {part.name: part.commands[-1] for part in parts if part.name.startswith("reference ")}
    assert set(commands) == {"reference mega", "reference titan", "reference hf"}
    work = {tuple(word for word in command if "=" in word) for command in commands.values()}
    assert len(work) == 1, "the settings are the same"
    config = load(platform, 1, arguments=[*work.pop(), "FRAMEWORK=mega,titan,hf", "MODEL=llama"], environ={})
    assert config.spec("llama").num_layers == 16 and config.optimizer_state == "fp32"
    # Llama 3.1 8B has 8,030,261,248 parameters and 32 layers of 218,112,000
    assert 16 * config.spec("llama").parameter_count == 16 * (8_030_261_248 - 16 * 218_112_000)


def test_missing_tool_of_a_vendor_is_named_in_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu.shutil, "which", lambda name: None if name == "nvidia-smi" else "/bin/true")
    monkeypatch.setattr(
        gpu.subprocess, "run", lambda command, **k: gpu.subprocess.CompletedProcess(command, 0, "x", "")
    )
    gpu.write_facts(gpu.Hour(tmp_path, "nvd", 0.0))
    assert (tmp_path / "facts" / "nvidia_smi.txt").read_text() == "nvidia-smi is not installed\n"


def test_job_and_kernels_run_on_a_cpu_at_tiny_size(tmp_path, capsys):
    assert run(tmp_path, "--minutes", "15", "--only", "hf llama SL 2048", "kernels mega") == 0
    (path,) = (tmp_path / "results" / "sl2048").glob("train_*.json")
    result = store.read(path)
    assert result["status"] == "ok" and result["model_size"] == "tiny"
    table = (tmp_path / "summary.md").read_text().splitlines()
    assert len(table) == 3, "the profiled job is no measurement"
    cells = [cell.strip() for cell in table[2].strip("|").split("|")]
    peak, guess = result["memory_metrics"]["peak_memory_allocated_gb"], float(cells[6])
    assert cells[1] == "ok" and float(cells[5]) == pytest.approx(peak, abs=0.05)
    assert float(cells[7]) == pytest.approx(peak / guess, abs=0.1)
    kernels = json.loads((tmp_path / "kernels" / "mega_sl2048.json").read_text())
    assert kernels == sorted(kernels, key=lambda kernel: -kernel["seconds"])
    counts = {kernel["name"]: kernel["count"] for kernel in kernels}
    # by hand: 4 layers of 4 linear weights and the output layer, each with three products, 2 micro batches; CPU
    # attention is one operator a layer and micro batch
    assert counts["aten::_scaled_dot_product_flash_attention_for_cpu"] == 4 * 2
    assert sum(counts.get(name, 0) for name in ("aten::mm", "aten::addmm")) >= (4 * 4 + 1) * 3 * 2
