"""run_reproduce.sh trains the jobs of an archive again: a true one passes, one whose times were halved fails."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

from evaluate import compare
from utils.results import performance, store

RUNS = 3
SETTINGS = f"FRAMEWORK=mega MODEL=llama RUNS={RUNS} TRAIN_ITERS=25 WARMUP_ITERS=2 GBS=4 MBS=2 SL=64 CPU_RANKS=1".split()
JOB = "train_cpu_mega_llama_run"


def sh(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [ROOT / "shell" / script, "PLATFORM=cpu", "RUNTIME=native", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def share(printed: str) -> float:
    """Return the share of the archive's speed, in percent, that a decision states."""
    (found,) = re.findall(r"; ([\d.,]+) (?:\([\d.,]+ to [\d.,]+\) )?% of", printed)
    return float(found.replace(",", ""))


def halved(source: Path, folder: Path) -> Path:
    """Return a folder with the results and logs of another, every time in them halved and all else made to agree."""
    shutil.copytree(source, folder)
    for path in folder.glob(f"{JOB}*.json"):
        result: dict[str, Any] = json.loads(path.read_text())
        log = folder / "logs" / f"{path.stem}_attempt1.log"
        text = re.sub(
            r'("(?:step_times|data_wait_seconds)":)([0-9.e-]+)', lambda m: f"{m[1]}{float(m[2]) / 2!r}", log.read_text()
        )
        raw = [json.loads(line[5:]) for line in text.splitlines() if line.startswith("raw: ") and "step_times" in line]
        times = result["step_times"] = [one["step_times"] for one in raw]
        result["data_wait_seconds"] = [one["data_wait_seconds"] for one in raw]
        lines = iter(times)
        log.write_text(re.sub(r"(Step +\d+/\d+ \| )[\d.]+ s", lambda m: f"{m[1]}{next(lines):.3f} s", text))
        found = result["performance_metrics"]
        found |= performance.summarize(times, 4 * 64, 1)
        found["loop_seconds"] /= 2
        after = found["warmup_steps_excluded"]
        found["data_wait_fraction"] = performance.data_wait_fraction(times[after:], result["data_wait_seconds"][after:])
        store.write(result, path)
    (folder / "output.zip").unlink()
    assert compare.main([str(folder)]) == 3, "one framework has no pair"
    return folder


@pytest.mark.full("run_reproduce.sh: 3 jobs of mega and the same again, about 100 s")
def test_a_true_archive_passes_and_one_whose_times_were_halved_fails(tmp_path: Path) -> None:
    there, here = (f"OUTPUT_DIR={tmp_path / name}" for name in ("there", "here"))
    data = f"DATA_DIR={tmp_path / 'data'}"
    trained = sh("run_train.sh", *SETTINGS, there, data)
    assert (tmp_path / "there" / f"{JOB}{RUNS}.json").is_file(), trained.stderr[-3000:]
    assert sh("run_wrap.sh", there).returncode == 0
    archive = Path(shutil.copy(tmp_path / "there" / "output.zip", tmp_path / "claim.zip"))

    looked = sh("run_reproduce.sh", str(archive), "--dry-run", here, data)
    assert looked.returncode == 0 and not list((tmp_path / "here").rglob("train_*.json")), looked.stderr[-3000:]
    assert f"plan: {RUNS} jobs, 0 with an ok result already" in looked.stdout + looked.stderr

    again = sh("run_reproduce.sh", str(archive), "--at-least=20", here, data)
    assert again.returncode == 0 and "\nPASS     mega llama" in again.stdout, (
        again.stdout[-2000:] + again.stderr[-3000:]
    )
    times = [path.stat().st_mtime_ns for path in sorted((tmp_path / "here").rglob("train_*.json"))]
    assert len(times) == RUNS

    halved(tmp_path / "there", tmp_path / "false")
    assert sh("run_wrap.sh", f"OUTPUT_DIR={tmp_path / 'false'}").returncode == 0
    shutil.copy(tmp_path / "false" / "output.zip", archive)
    assert (tmp_path / "here" / "reproduced-claim" / f"{JOB}1.json").is_file()
    failed = sh("run_reproduce.sh", str(archive), "--at-least=1000", here, data)
    assert failed.returncode == 1 and "\nFAIL     mega llama" in failed.stdout, failed.stdout[-2000:]
    assert share(failed.stdout) == pytest.approx(share(again.stdout) / 2, rel=0.01), "half of what is claimed"
    assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "here").rglob("train_*.json"))] == times, "resumed"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], "wanted one archive"), (["none.zip"], "wanted one archive"), (["a.zip", "b.zip"], "wanted one archive")],
)
def test_bad_input_is_one_line_and_exit_2(arguments: list[str], said: str) -> None:
    ran = sh("run_reproduce.sh", *arguments)
    assert ran.returncode == 2 and said in ran.stderr.splitlines()[-1]
