"""The GPU hour: what one GPU shows in under nine minutes, in parts ordered by value. A second call goes on.

    python -m benchmarks.gpu --platform nvd|amd|cpu --output OUT [--minutes 9] [--only WORD ...]

Parts: facts of the machine (output of the vendor's tools, kept as fixtures), the rate of matrix products
(train.probe), then full Llama with mega and hf at SL 2048 and 8192, the operators of their steps (train.probe), their
kernels, half of Llama's layers with mega, hf and titan, SL 4096, restarts of the first job, Mistral with its window,
and Qwen. The half is there because titan, the reference, keeps 16 bytes a parameter and more, which does not leave one
GPU room for the full model; all three run it with float32 states. A part is started only if its expected time is left.
A finished part is skipped the next time. On a CPU the same parts run at tiny size, for the tests.

OUT gets `facts/`, results of the schema under `results/`, `kernels/`, `parts.json` (what ran, seconds, exit codes) and
`summary.md`: a table of speed, utilization and memory, each peak beside the estimate. Exits 0 if all parts that were
started succeeded, 2 for a damaged `parts.json`, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evaluate.metrics.metrics import metrics
from utils.arguments import Parser, run
from utils.memory.estimate import FRAMEWORKS as ESTIMATED
from utils.memory.estimate import estimate
from utils.results import store
from utils.results.schema import Result
from utils.settings.config import PLATFORMS, ROOT, load

TOKENS_PER_STEP = 16_384
"""Tokens of one optimizer step on one GPU: the same at every sequence length, about 1.4 s at 12,000 tokens/s."""
STEPS = 50
REFERENCE = "reference"
REFERENCE_LAYERS = 16
"""Layers of Llama that are held against torchtitan: 4.5e9 parameters of 16 bytes, 73 GB beside activations."""
TOOLS = {
    "nvd": ("nvidia-smi", "nvidia-smi -q", "nvidia-smi topo -m", "nvidia-smi --help-query-gpu"),
    "amd": (
        *("amd-smi static --json", "amd-smi metric --json", "amd-smi process --json", "amd-smi version --json"),
        *("rocm-smi -a --json", "rocm-smi --showtopo"),
    ),
    "cpu": ("lscpu", "free -b"),
}
"""Commands whose output is kept as it is, by platform."""


@dataclass(frozen=True)
class Part:
    """One part of the hour."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    """Run one after another; the part fails with the first that fails."""
    seconds: float
    """Expected time on one H200, an assumption until it has been measured."""


@dataclass
class Hour:
    """Folder, platform and deadline of one call, with the record of the parts."""

    output: Path
    platform: str
    deadline: float
    record: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def python(self) -> tuple[str, ...]:
        """The command of a module of this suite."""
        return (sys.executable, "-m")

    def settings(self, length: int, label: str, steps: int = STEPS) -> tuple[str, ...]:
        """Return the settings of a job at one sequence length."""
        places = (f"OUTPUT_DIR={self.output / 'results'}", f"DATA_DIR={self.output / 'data'}", f"LABEL={label}")
        if self.platform == "cpu":
            tiny = ("TRAIN_ITERS=5", "WARMUP_ITERS=1", "CPU_RANKS=1", "GBS=4", "MBS=2", f"SL={length // 64}")
            return ("DATASET=synth", *places, *tiny)
        full = ("MODEL_SIZE=full", "OPTIMIZER_STATE=bf16", "GPUS_PER_NODE=1", "MBS=1", f"SL={length}")
        work = (f"GBS={TOKENS_PER_STEP // length}", f"TRAIN_ITERS={steps}", "WARMUP_ITERS=10")
        return ("DATASET=synth", *places, *full, *work)

    def job(self, framework: str, model: str, length: int, seconds: float, run: int = 1) -> Part:
        """Return the part that trains one job, its data made first."""
        settings = self.settings(length, f"sl{length}")
        prepare = (*self.python, "data.prepare", "--platform", self.platform, f"MODEL={model}", *settings)
        launch = (*self.python, "train.launch", "--platform", self.platform, "--framework", framework)
        train = (*launch, "--model", model, "--run", str(run), *settings)
        again = f" run {run}" if run > 1 else ""
        return Part(f"{framework} {model} SL {length}{again}", (prepare, train), seconds)

    def reference(self, framework: str, seconds: float) -> Part:
        """Return the part that trains the model with fewer layers, whose results stand in a folder of their own."""
        fewer = ("MODEL_SIZE=proxy", f"PROXY_LAYERS={REFERENCE_LAYERS}", "OPTIMIZER_STATE=fp32", f"LABEL={REFERENCE}")
        part = self.job(framework, "llama", 2048, seconds)
        settings = fewer if self.platform != "cpu" else fewer[-1:]
        return Part(f"{REFERENCE} {framework}", tuple((*command, *settings) for command in part.commands), seconds)

    def kernels(self, framework: str, length: int) -> Part:
        """Return the part that lists the kernels of one step."""
        settings = (*self.settings(length, "kernels", steps=6), "WARMUP_ITERS=1")
        prepare = (*self.python, "data.prepare", "--platform", self.platform, "MODEL=llama", *settings)
        path = self.output / "kernels" / f"{framework}_sl{length}.json"
        ranks = (*self.python, "torch.distributed.run", "--standalone", "--nproc-per-node", "1", "-m")
        profile = (*ranks, "benchmarks.gpu_kernels", "--kernels", str(path), "--framework", framework)
        return Part(
            f"kernels {framework} SL {length}",
            (prepare, (*profile, "--platform", self.platform, "--model", "llama", *settings)),
            60,
        )


def parts(hour: Hour) -> list[Part]:
    """Return all parts, the most valuable first.

    The second probe has the rates of the first again, so the file that it replaces is not missed.
    """
    probe = (*hour.python, "train.probe", "--platform", hour.platform)
    seconds = ("--seconds", "0.5" if hour.platform == "cpu" else "10")
    by_operator = ("--framework", "mega,hf", "--model", "llama", *(seconds if hour.platform == "cpu" else ("--quick",)))
    return [
        Part("probe", ((*probe, *seconds, "--operators", "none", f"OUTPUT_DIR={hour.output / 'results'}"),), 45),
        hour.job("mega", "llama", 2048, 140),
        hour.job("hf", "llama", 2048, 140),
        hour.job("mega", "llama", 8192, 150),
        hour.job("hf", "llama", 8192, 150),
        Part("operators SL 2048", ((*probe, *by_operator, *hour.settings(2048, "sl2048")),), 150),
        hour.kernels("mega", 2048),
        hour.kernels("hf", 2048),
        *(hour.reference(framework, 140) for framework in ("mega", "titan", "hf")),
        hour.job("mega", "llama", 2048, 110, run=2),
        hour.job("mega", "llama", 2048, 110, run=3),
        *(hour.job(framework, "llama", 4096, 140) for framework in ("mega", "hf")),
        *(hour.job(framework, "mistral", 8192, 150) for framework in ("mega", "hf")),
        *(hour.job(framework, "qwen", 2048, 140) for framework in ("mega", "hf")),
    ]


def write_facts(hour: Hour) -> None:
    """Keep the output of the vendor's tools, of pip and of torch under `facts/`; a tool that is missing is named."""
    folder = hour.output / "facts"
    folder.mkdir(parents=True, exist_ok=True)
    about_torch = "import torch.utils.collect_env as c; print(c.get_pretty_env_info())"
    commands = {"torch": [sys.executable, "-c", about_torch], "pip": [sys.executable, "-m", "pip", "freeze"]}
    commands |= {tool.replace(" ", "_").replace("-", "_"): tool.split() for tool in TOOLS[hour.platform]}
    for name, command in commands.items():
        if shutil.which(command[0]) is None:
            (folder / f"{name}.txt").write_text(f"{command[0]} is not installed\n", encoding="utf8")
            continue
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        text = ran.stdout + (f"\nexit code {ran.returncode}\n{ran.stderr}" if ran.returncode else "")
        (folder / f"{name}.txt").write_text(text, encoding="utf8")


def run_part(hour: Hour, part: Part) -> bool:
    """Run the commands of a part in the time that is left, their output in a log; return whether all passed."""
    log = hour.output / "logs" / f"{part.name.replace(' ', '_')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    (hour.output / "kernels").mkdir(exist_ok=True)
    started = time.monotonic()
    code = 0
    with log.open("w", encoding="utf8") as file:
        for command in part.commands:
            left = hour.deadline - time.monotonic()
            try:
                code = subprocess.run(
                    command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, timeout=max(1.0, left), check=False
                ).returncode
            except subprocess.TimeoutExpired:
                code = 124
            if code:
                break
    hour.record[part.name] = {"exit_code": code, "seconds": round(time.monotonic() - started, 1), "log": log.name}
    (hour.output / "parts.json").write_text(json.dumps(hour.record, indent=1), encoding="utf8")
    return code == 0


def summary(hour: Hour) -> str:
    """Return the table of all results as Markdown: speed, utilization, losses, and each peak beside its estimate."""
    heads = (
        *("job", "status", "tokens/s/GPU", "MFU causal, %", "loss, first to last"),
        *("peak, GB", "estimate, GB", "peak / estimate"),
    )
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for path in sorted((hour.output / "results").rglob("train_*.json")):
        if path.parent.name in ("superseded", "kernels"):
            continue
        lines.append(f"| {' | '.join(_row(store.read(path)))} |")
    return "\n".join(lines) + "\n"


def _row(result: Result) -> list[str]:
    config = result["training_config"]
    name = f"{result['framework']} {result['model']} SL {config['sequence_length']} run {result['run']}"
    if result["status"] != "ok":
        return [name, f"{result['status']}: {str(result['reason']).splitlines()[0][:200]}", *[""] * 6]
    found = metrics(result)
    mfu, losses = found["mfu_causal"].value, result["loss_values"]
    peak, guess = result["memory_metrics"]["peak_memory_allocated_gb"], _estimate_gb(result)
    return [
        name,
        "ok",
        f"{found['tokens_per_second_per_gpu'].value or 0:,.0f}",
        "unknown" if mfu is None else f"{mfu:.1f}",
        f"{losses[0]:.3f} to {losses[-1]:.3f}",
        f"{peak:.1f}",
        "unknown" if guess is None else f"{guess:.1f}",
        "unknown" if guess is None else f"{peak / guess:.3f}",
    ]


def _estimate_gb(result: Result) -> float | None:
    if result["framework"] not in ESTIMATED:
        return None
    asked = result["training_config"]
    keys = {"SL": "sequence_length", "MBS": "micro_batch_size", "GBS": "global_batch_size", "PRECISION": "precision"}
    keys |= {"OPTIMIZER_STATE": "optimizer_state", "GRADIENT_DTYPE": "gradient_dtype", "RECOMPUTE": "recompute"}
    arguments = [f"{key}={asked[name]}" for key, name in keys.items()]
    arguments += ["CPU_RANKS=1", f"MODEL_SIZE={result['model_size']}", f"FRAMEWORK={result['framework']}"]
    if result["model_size"] == "proxy":
        arguments.append(f"PROXY_LAYERS={result['resolved_config']['num_layers']}")
    config = load(result["platform"], 1, arguments=[*arguments, f"MODEL={result['model']}"], environ={})
    return estimate(config, result["framework"], config.spec(result["model"])).total_gb


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts for which there is time, and write the summary."""
    options = _arguments(argv)
    output = options.output.resolve()
    hour = Hour(output, options.platform, time.monotonic() + 60 * options.minutes)
    output.mkdir(parents=True, exist_ok=True)
    known = output / "parts.json"
    if known.exists():
        try:
            hour.record = json.loads(known.read_text(encoding="utf8"))
        except ValueError as error:
            print(f"error: {known}: {error}; remove it, and every part runs again", file=sys.stderr)
            return 2
    if not (output / "facts").exists():
        write_facts(hour)
    is_good = True
    for part in parts(hour):
        if options.only and not any(word in part.name for word in options.only):
            continue
        if hour.record.get(part.name, {}).get("exit_code") == 0:
            print(f"done already: {part.name}", flush=True)
            continue
        left = hour.deadline - time.monotonic()
        if part.seconds > left and options.platform != "cpu":
            print(f"no time for: {part.name} ({part.seconds:.0f} s expected, {left:.0f} s left)", flush=True)
            continue
        passed = run_part(hour, part)
        is_good = is_good and passed
        said = hour.record[part.name]
        print(f"{'ok' if passed else 'FAILED'}: {part.name}, {said['seconds']:.0f} s", flush=True)
        (output / "summary.md").write_text(summary(hour), encoding="utf8")
    print((output / "summary.md").read_text(encoding="utf8") if (output / "summary.md").exists() else "nothing ran")
    return 0 if is_good else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--platform", required=True, choices=PLATFORMS)
    parser.add_argument("--output", type=Path, required=True, help="folder of everything that is written")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="no part is started that would need more (default: %(default)g)"
    )
    parser.add_argument("--only", nargs="+", help="words; only parts whose name contains one are run (default: all)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(run(main))
