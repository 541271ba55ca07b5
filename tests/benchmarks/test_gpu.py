"""The GPU hour: parts run once, in order, within their time; the table shows what results hold. On a CPU, tiny."""

import json
import os
import re
import subprocess
import sys

import pytest

from benchmarks import gpu
from tests.support.launching import ROOT, results
from utils.memory.estimate import estimate
from utils.settings.config import load


def hour_of_texts(monkeypatch, *codes, seconds=0.0):
    """Parts `one`, `two`, ... that end with the given exit codes and leave a line in a file."""

    def part(hour, name, code):
        write = f"print('{name}'); open('{hour.output}/ran', 'a').write('{name} '); raise SystemExit({code})"
        return gpu.Part(name, ((sys.executable, "-c", write),), seconds)

    named = list(zip(("one", "two", "three"), codes, strict=False))
    monkeypatch.setattr(gpu, "parts", lambda hour: [part(hour, *one) for one in named])
    monkeypatch.setattr(gpu, "write_facts", lambda hour: (hour.own / "facts").mkdir())


def run(tmp_path, *arguments, platform="cpu"):
    return gpu.main(["--platform", platform, f"OUTPUT_DIR={tmp_path}", f"DATA_DIR={tmp_path}_data", *arguments])


def test_finished_part_is_skipped_and_a_failed_one_is_run_again(tmp_path, monkeypatch):
    hour_of_texts(monkeypatch, 0, 3, 0)
    assert run(tmp_path) == 1
    assert (tmp_path / "ran").read_text().split() == ["one", "two", "three"], "a failure does not end the hour"
    record = json.loads((tmp_path / "gpu_hour" / "parts.json").read_text())
    assert [record[name]["exit_code"] for name in ("one", "two", "three")] == [0, 3, 0]
    assert run(tmp_path) == 1
    assert (tmp_path / "ran").read_text().split() == ["one", "two", "three", "two"]


def test_part_that_needs_more_than_the_time_left_is_not_started(tmp_path, monkeypatch, capsys):
    hour_of_texts(monkeypatch, 0, 0, seconds=600.0)
    monkeypatch.setattr(gpu, "capacity_gb", lambda config: (80.0, "a card"))
    assert run(tmp_path, "--minutes", "9", platform="nvd") == 0
    assert not (tmp_path / "ran").exists()
    assert "no time for: one (600 s expected, 540 s left)" in capsys.readouterr().out


def test_part_that_does_not_end_is_stopped_at_the_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "write_facts", lambda hour: (hour.own / "facts").mkdir())
    sleeping = gpu.Part("sleep", ((sys.executable, "-c", "import time; time.sleep(600)"),), 0.0)
    monkeypatch.setattr(gpu, "parts", lambda hour: [sleeping])
    assert run(tmp_path, "--minutes", "0.02") == 1
    assert json.loads((tmp_path / "gpu_hour" / "parts.json").read_text())["sleep"]["exit_code"] == 124


@pytest.mark.parametrize(("platform", "memory_gb"), [("nvd", 80.0), ("nvd", 141.0), ("amd", 192.0)])
def test_every_part_fits_the_card_and_a_group_trains_the_same_work(tmp_path, platform, memory_gb):
    parts = gpu.parts(gpu.Hour(tmp_path, tmp_path, platform, memory_gb, 0.0))
    names = [part.name for part in parts]
    assert names[:5] == ["probe", *(f"{f} llama SL {n}" for n in (2048, 8192) for f in ("mega", "hf"))]
    assert len(set(names)) == len(names)
    groups = {}
    for part in parts[1:]:
        asked = dict(word.split("=", 1) for word in part.commands[-1] if "=" in word)
        assert int(asked["GBS"]) * int(asked["SL"]) == 16_384, "the same tokens a step at every length"
        framework = next(word for word in ("titan", "hf", "mega") if word in part.name or word == "mega")
        model = next(word for word in ("mistral", "qwen", "llama") if word in part.name or word == "llama")
        work = tuple(f"{key}={value}" for key, value in asked.items() if key not in ("OUTPUT_DIR", "DATA_DIR", "MODEL"))
        groups.setdefault((asked["LABEL"], model), set()).add(work)
        if framework != "titan":
            config = load(platform, 1, arguments=[*work, f"FRAMEWORK={framework}", f"MODEL={model}"], environ={})
            assert estimate(config, framework, config.spec(model)).total_gb <= 0.95 * memory_gb
    assert len(groups) == 7 and all(len(same) == 1 for same in groups.values()), "a group has one set of settings"


@pytest.mark.parametrize(
    ("memory_gb", "precision", "layers"),
    [
        (80.0, (), "16 of 32 layers"),
        (192.0, (), "32 layers"),
        # titan has 16 bytes for each of 8,030,261,248 - 20 x 218,112,000 parameters: 58.7 GB before activations
        (80.0, ("fp32",), "12 of 32 layers"),
    ],
)
def test_a_card_gets_as_many_layers_as_fit(tmp_path, memory_gb, precision, layers):
    # by hand: 12 bytes a parameter (OPTIMIZER_STATE=bf16), 1,050,673,152 parameters without layers and 218,112,000 in
    # each: 54.5 GB with 16 and 65.0 GB with 20; transformers' own functions keep 13.2 GB for 32 layers and 3.2 GB for
    # the loss (docs/memory.md): 64.3 and 76.5 GB, and 0.95 x 80 GB is 76.0 GB
    size = gpu.Hour(tmp_path, tmp_path, "nvd", memory_gb, 0.0).size("llama", 2048, *precision)
    assert size.layers == layers and size.needs_gb <= 0.95 * memory_gb


def test_part_that_does_not_fit_is_named_with_its_estimate_and_not_started(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "write_facts", lambda hour: None)
    monkeypatch.setattr(gpu, "capacity_gb", lambda config: (16.0, "a small card"))
    monkeypatch.setattr(gpu, "run_part", lambda hour, part: pytest.fail(f"started {part.name}"))
    assert run(tmp_path, "--only", "mega llama SL 2048", platform="nvd") == 0
    # by hand: 4 of 32 layers, 12 bytes for each of 1,923,121,152 parameters, is 23.1 GB before activations
    first = capsys.readouterr().out.splitlines()[0]
    assert re.fullmatch(r"does not fit: mega llama SL 2048: 4 of 32 layers, about 2[3-9]\.\d GB of 16\.0 GB", first)


def test_unknown_memory_of_the_card_is_one_line_and_another_card_can_be_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "capacity_gb", lambda config: (None, "nvidia-smi is not installed"))
    assert run(tmp_path, platform="nvd") == 2
    assert "unknown (nvidia-smi is not installed); name the card" in capsys.readouterr().err
    assert run(tmp_path, "--device", "H100", "--dry-run", "--only", "hf qwen", platform="nvd") == 0
    assert "16 of 28 layers" in capsys.readouterr().out and not list(tmp_path.iterdir())


def test_dry_run_prints_the_parts_and_neither_makes_nor_changes_an_environment(tmp_path):
    environment = os.environ | {"PLATFORM": "nvd", "RUNTIME": "native", "TPRIMAT_VENV": str(tmp_path / "venv")}
    command = [ROOT / "tprimat", "gpu-hour", "--dry-run", "--device", "H100", f"OUTPUT_DIR={tmp_path / 'output'}"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0 and len(ran.stdout.splitlines()) == 18, ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full("two real jobs on the CPU, about 40 s")
def test_job_and_profile_run_on_a_cpu_at_tiny_size(tmp_path):
    output = tmp_path / "output"
    assert run(output, "--minutes", "15", "--only", "hf llama SL 2048", "--only", "profile mega") == 0
    (result,) = results(output / "hour_sl2048").values()
    assert result["status"] == "ok" and result["model_size"] == "tiny"
    table = (output / "gpu_hour" / "summary.md").read_text().splitlines()
    assert len(table) == 3, "the profiled job is no measurement"
    cells = [cell.strip() for cell in table[2].strip("|").split("|")]
    peak, guess = result["memory_metrics"]["peak_memory_allocated_gb"], float(cells[7])
    assert cells[1:3] == ["4", "ok"] and float(cells[6]) == pytest.approx(peak, abs=0.05)
    assert float(cells[8]) == pytest.approx(peak / guess, abs=0.1)
    (profile,) = (output / "profiles").glob("*/profile.json")
    assert json.loads(profile.read_text())["steps"] == [8]
    assert (profile.parent / "rank0.json.gz").stat().st_size > 0
    purge = [sys.executable, "-m", "utils.housekeeping.purge", "--platform", "cpu", f"OUTPUT_DIR={output}"]
    subprocess.run(purge, cwd=ROOT, capture_output=True, check=True)
    assert not [path for path in output.rglob("*") if path.is_file() and path.name != ".tprimat"]
