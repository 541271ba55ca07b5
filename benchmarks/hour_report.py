"""The end of the GPU hour: the comparison of the verdict's jobs, summary.md, and one archive of all that it has."""

from __future__ import annotations

import json
import shlex
import subprocess
import zipfile
from collections.abc import Sequence

from benchmarks.hour_parts import PROFILED, PYTHON, VERDICT, Hour
from utils.files import write_whole, written_whole
from utils.memory.estimate import FRAMEWORKS as ESTIMATED, estimate
from utils.own_files import anything, note
from utils.results import store
from utils.results.schema import Result
from utils.settings.config import ROOT, load

MOST_BYTES = (16 << 20) - (64 << 10)
"""Largest content of an archive of 16 MiB, whose own lists take a little."""
NOTHING_COMPARABLE = 3
"""Exit code of evaluate.compare for results of one framework only."""
HEADS = (
    "job",
    "layers",
    "status",
    "tokens/s/GPU",
    "MFU causal, %",
    "loss, first to last",
    "peak, GB",
    "estimate, GB",
    "peak / estimate",
)


def close(hour: Hour) -> None:
    """Compare the results of the verdict, write and print the summary, and pack the archive, each of them anew."""
    jobs, log = hour.output / f"hour_{VERDICT}", hour.own / "logs" / "report.log"
    # an hour that was cut short may have no job of the verdict
    if jobs.exists():
        command = (*PYTHON, "evaluate.compare", str(jobs), "--output", str(hour.own / "report"))
        with log.open("wb") as file:
            code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, check=False).returncode
        note(log)
        if code not in (0, NOTHING_COMPARABLE):
            print(f"the comparison failed; see {log}")
    text = summary(hour)
    write_whole(hour.own / "summary.md", text, is_ours=anything)
    print(text)
    command = (*PYTHON, "evaluate.wrap", "--platform", hour.platform, f"OUTPUT_DIR={hour.output}")
    subprocess.run(command, cwd=ROOT, check=False)
    archive(hour)


def summary(hour: Hour) -> str:
    """Return the verdict, the outcome of the smoke test and the table of all results, as Markdown."""
    smoke = hour.record.get("smoke", {}).get("tasks", {})
    tried = [[name, *row] for name, row in smoke.items()]
    results = []
    for path in sorted(hour.output.glob("hour_*/train_*.json")):
        # a profile slows its steps down
        if path.parent.name != f"hour_{PROFILED}":
            results.append(_row(store.read(path)))
    headlines = ["none yet: it needs results of mega and of hf"]
    report = hour.own / "report" / "compare.json"
    if report.exists():
        verdicts = json.loads(report.read_text(encoding="utf8"))["verdicts"]
        headlines = [verdict["headline"] for verdict in verdicts] or headlines
    sections = {
        "Verdict": "\n\n".join(headlines),
        "Smoke test": _table(("check", "outcome", "detail"), tried),
        "Results": _table(HEADS, results),
    }
    return "# GPU hour\n" + "".join(f"\n## {title}\n\n{text}\n" for title, text in sections.items())


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows] if rows else [["nothing ran"]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _row(result: Result) -> list[str]:
    length, name = result["training_config"]["sequence_length"], result["label"].removeprefix("hour_")
    job = f"{name}: {result['framework']} SL {length} run {result['run']}"
    cells = [job, str(result["resolved_config"].get("num_layers", "unknown"))]
    if result["status"] != "ok":
        reason = str(result["reason"]).splitlines()[0][:200]
        cells.append(f"{result['status']}: {reason}")
        return cells + [""] * (len(HEADS) - len(cells))
    from evaluate.metrics.metrics import metrics  # needs numpy, which a plan does without

    figures, losses = metrics(result), result["loss_values"]
    cells += ["ok", _text(figures["tokens_per_second_per_gpu"].value, ",.0f")]
    cells += [_text(figures["mfu_causal"].value, ".1f"), f"{losses[0]:.3f} to {losses[-1]:.3f}"]
    peak, estimated = result["memory_metrics"]["peak_memory_allocated_gb"], _estimate_gb(result)
    share = None if peak is None or estimated is None else peak / estimated
    return [*cells, _text(peak, ".1f"), _text(estimated, ".1f"), _text(share, ".3f")]


def _text(value: float | None, form: str) -> str:
    return "unknown" if value is None else format(value, form)


def _estimate_gb(result: Result) -> float | None:
    """Return the estimate for the settings in the command of a result; None for a framework without a formula."""
    name = result["framework"]
    if name not in ESTIMATED:
        return None
    asked = [word for word in shlex.split(result["provenance"]["command"]) if "=" in word]
    arguments = [*asked, f"FRAMEWORK={name}", f"MODEL={result['model']}"]
    config = load(result["platform"], 1, arguments=arguments, environ={})
    return estimate(config, name, config.spec(result["model"])).total_gb


def archive(hour: Hour) -> None:
    """Pack the archive of evaluate.wrap, facts, report and profiles into one file; print what is too large for it.

    evaluate.compare takes the output.zip in it as it is.
    """
    # the smallest first: as many as possible find room
    profiles = sorted((hour.output / "profiles").glob("*/*"), key=lambda path: path.stat().st_size)
    files = [hour.output / "output.zip", hour.own / "summary.md", hour.own / "parts.json"]
    files += [*(hour.own / "facts").glob("*.txt"), *(hour.own / "report").glob("*"), *profiles]
    left_out, path = [], hour.own / "gpu_hour.zip"
    with written_whole(path, is_ours=anything) as (temporary,), zipfile.ZipFile(temporary, "w") as packed:
        for file in files:
            if not file.is_file():
                continue
            name = str(file.relative_to(hour.output))
            if temporary.stat().st_size + file.stat().st_size > MOST_BYTES:
                left_out.append(name)
            else:
                packed.write(file, name, zipfile.ZIP_DEFLATED)
    print(f"{path}: {path.stat().st_size:,} bytes; left out for its size: {', '.join(left_out) or 'nothing'}")
