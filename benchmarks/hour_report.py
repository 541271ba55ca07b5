"""The end of the GPU hour: the comparison of the verdict's jobs, summary.md, and one archive of all that it has."""

from __future__ import annotations

import json
import shlex
import subprocess
import zipfile
import zlib
from pathlib import Path

from benchmarks.hour_parts import FOLDER, PROFILED, PYTHON, VERDICT, Hour
from utils import redact
from utils.files import written_whole
from utils.memory.estimate import FRAMEWORKS as ESTIMATED, estimate
from utils.own_files import anything
from utils.results import store
from utils.results.schema import Result
from utils.settings.config import ROOT, load

ARCHIVE = f"{FOLDER}.zip"
MOST_BYTES = (16 << 20) - (64 << 10)
"""Largest content of an archive of 16 MiB, of which the lists of a zip file take a part."""
ENTRY_BYTES = 300
HEADS = (
    *("job", "layers", "status", "tokens/s/GPU", "MFU causal, %", "loss, first to last"),
    *("peak, GB", "estimate, GB", "peak / estimate"),
)


def close(hour: Hour) -> None:
    """Compare the results of the verdict, write the summary and pack the archive, each of them anew."""
    jobs = hour.output / f"hour_{VERDICT}"
    report = hour.own / "report"
    if any(jobs.glob("train_*.json")):
        command = (*PYTHON, "evaluate.compare", str(jobs), "--output", str(report), "--brief")
        with (hour.own / "logs" / "report.log").open("w", encoding="utf8") as log:
            subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, check=False)
    with written_whole(hour.own / "summary.md", is_ours=anything) as (path,):
        path.write_text(summary(hour), encoding="utf8")
    print((hour.own / "summary.md").read_text(encoding="utf8"))
    subprocess.run((*PYTHON, "evaluate.wrap", "--platform", hour.platform, f"OUTPUT_DIR={hour.output}"), cwd=ROOT)
    archive(hour)


def summary(hour: Hour) -> str:
    """Return the verdict, the outcome of the smoke test and the table of all results, as Markdown."""
    smoke = hour.record.get("smoke", {}).get("tasks", {})
    tried = [[name, row["outcome"], row["detail"]] for name, row in smoke.items()]
    paths = sorted(hour.output.glob("hour_*/train_*.json"))
    results = [_row(store.read(path)) for path in paths if path.parent.name != f"hour_{PROFILED}"]
    sections = (
        ("Verdict", "\n\n".join(_headlines(hour.own / "report" / "compare.json"))),
        ("Smoke test", _table(("check", "outcome", "detail"), tried)),
        ("Results", _table(HEADS, results)),
    )
    return "# GPU hour\n" + "".join(f"\n## {title}\n\n{text}\n" for title, text in sections)


def _headlines(path: Path) -> list[str]:
    if not path.exists():
        return ["none yet: no job of the verdict has a result"]
    verdicts = json.loads(path.read_text(encoding="utf8"))["verdicts"]
    found = [verdict["headline"] for verdict in verdicts]
    return found or ["none yet: only one of the frameworks has results"]


def _table(heads: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _row(result: Result) -> list[str]:
    config = result["training_config"]
    name = f"{result['label'].removeprefix('hour_')}: {result['framework']} SL {config['sequence_length']}"
    cells = [f"{name} run {result['run']}", str(result["resolved_config"].get("num_layers", "unknown"))]
    if result["status"] != "ok":
        return [*cells, f"{result['status']}: {str(result['reason']).splitlines()[0][:200]}", *[""] * 6]
    from evaluate.metrics.metrics import metrics  # needs numpy, which a plan does without

    figures = metrics(result)
    mfu, losses = figures["mfu_causal"].value, result["loss_values"]
    peak, guess = result["memory_metrics"]["peak_memory_allocated_gb"], _estimate_gb(result)
    cells += ["ok", f"{figures['tokens_per_second_per_gpu'].value or 0:,.0f}"]
    cells += ["unknown" if mfu is None else f"{mfu:.1f}", f"{losses[0]:.3f} to {losses[-1]:.3f}", f"{peak:.1f}"]
    return cells + (["unknown"] * 2 if guess is None else [f"{guess:.1f}", f"{peak / guess:.3f}"])


def _estimate_gb(result: Result) -> float | None:
    """Return the estimate for the settings in the command of a result; None for a framework without a formula."""
    if result["framework"] not in ESTIMATED:
        return None
    asked = [word for word in shlex.split(result["provenance"]["command"]) if "=" in word]
    names = (f"FRAMEWORK={result['framework']}", f"MODEL={result['model']}")
    config = load(result["platform"], 1, arguments=[*asked, *names], environ={})
    return estimate(config, result["framework"], config.spec(result["model"])).total_gb


def archive(hour: Hour) -> None:
    """Pack the archive of evaluate.wrap, facts, summary and profiles into one file; print what is too large for it.

    evaluate.compare takes the output.zip in it as it is.
    """
    profiles = sorted((hour.output / "profiles").glob("*/*"), key=lambda path: path.stat().st_size)
    files = [hour.output / "output.zip", hour.own / "summary.md", hour.own / "parts.json"]
    files += [*sorted((hour.own / "facts").glob("*.txt")), *profiles]
    left_out, size = [], 0
    path = hour.own / ARCHIVE
    with (
        written_whole(path, is_ours=anything) as (temporary,),
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for file in filter(Path.is_file, files):
            name, content = str(file.relative_to(hour.output)), file.read_bytes()
            more = len(zlib.compress(content)) + ENTRY_BYTES
            if redact.holds_secret(content):
                left_out.append(f"{name} (holds a secret)")
            elif size + more > MOST_BYTES:
                left_out.append(f"{name} (too large)")
            else:
                packed.writestr(name, content)
                size += more
    print(f"{path}: {path.stat().st_size:,} bytes; left out: {', '.join(left_out) or 'nothing'}")
