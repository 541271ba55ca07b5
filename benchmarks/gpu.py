"""Measure one GPU in parts of minutes: rates, speed of each framework, memory beside its estimate, profiles.

The most valuable parts come first, and models get as many layers as fit into the card. The same command continues
where the last call stopped. On a GPU machine it runs in the image that ./shell/build.sh makes; RUNTIME selects the
engine (docs/containers.md).

Usage:   ./shell/run_gpu_hour.sh [--dry-run] [--minutes N] [--only TEXT] [--device NAME] [OUTPUT_DIR=...] [DATA_DIR=...]
         --dry-run starts no part: it prints the command of the container, if there is one, and the parts with their
         layers and memory; --minutes (9): no part is started that would need more; --only: parts whose name contains
         TEXT (may be repeated); --device H100 chooses the layers for that card instead of this machine's
Reads:   settings, as shell/run_train.sh; secrets.env; CONTAINER_ARGS, CONTAINER_SHM_SIZE
Writes:  .venv, DATA_DIR, OUTPUT_DIR/hour_*/train_*.json, OUTPUT_DIR/gpu_hour/, probe_*.json, profiles/, logs/
Exits:   0 all parts that were started succeeded, 2 bad input, 1 otherwise
Example: ./shell/run_gpu_hour.sh --only "llama SL 2048" OUTPUT_DIR=output-h100

Parts: facts of the machine (output of the vendor's tools, kept as fixtures), the rate of matrix products
(train.probe), then Llama with mega and hf at SL 2048 and 8192, a profile of each, Llama with mega, hf and titan in
float32 states, SL 4096, restarts of the first job, Mistral with its window, and Qwen. A part is started only if its
expected time is left. A finished part is skipped the next time. On a CPU the same parts run at tiny size.

Each part has the largest number of layers with which every framework of its group fits into the card by the estimate
(docs/memory.md), so that the group is comparable. A part for which even the fewest layers are too many is named with
its estimate and not started. `--device H100` chooses the layers for another card, such as that of the other side.

Results are in OUTPUT_DIR/hour_*/, profiles in OUTPUT_DIR/profiles/; OUTPUT_DIR/gpu_hour/ gets `facts/`, `logs/`,
`parts.json` (what ran, seconds, exit codes) and `summary.md`: a table of speed, utilization and memory, each peak
beside the estimate.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.machine.gpus import capacity_gb
from utils.arguments import Parser, first_line, refusing, run
from utils.errors import ConfigError
from utils.hardware.devices import SHORT_NAMES, named
from utils.housekeeping import footprint
from utils.memory.estimate import FRAMEWORKS as ESTIMATED, estimate, usable_gb
from utils.models import get
from utils.own_files import note
from utils.results import store
from utils.results.schema import Result
from utils.settings.config import PLATFORMS, ROOT, folders, load, require_writable

FOLDER = "gpu_hour"
PLACES = ("OUTPUT_DIR", "DATA_DIR", "RUNTIME")
"""Settings that a caller may give."""
TOKENS_PER_STEP = 16_384
"""Tokens of one optimizer step on one GPU: the same at every sequence length, about 1.4 s at 12,000 tokens/s."""
STEPS = 50
LAYERS_APART = 4
"""Layers that a model loses until it fits."""
TOOLS = {
    "nvd": ("nvidia-smi", "nvidia-smi -q", "nvidia-smi topo -m", "nvidia-smi --help-query-gpu"),
    "amd": (
        *("amd-smi static --json", "amd-smi metric --json", "amd-smi process --json", "amd-smi version --json"),
        *("rocm-smi -a --json", "rocm-smi --showtopo"),
    ),
    "cpu": ("lscpu", "free -b"),
}
"""Commands whose output is kept as it is, by platform."""
PYTHON = (sys.executable, "-m")
ONE_STEP = {"WARMUP_ITERS": 1, "PROFILING": "true", "PROFILE_STEP_START": 8, "PROFILE_STEP_END": 8}
"""Settings of a job that profiles one step."""
OPTIONS: dict[str, dict[str, Any]] = {
    "--platform": {"required": True, "choices": PLATFORMS},
    "--minutes": {
        "type": float,
        "default": 9.0,
        "help": "no part is started that would need more (default: %(default)g)",
    },
    "--only": {
        "action": "append",
        "metavar": "TEXT",
        "help": "only parts whose name contains it; may be repeated",
    },
    "--device": {"metavar": "NAME", "help": "card for which layers are chosen (default: this machine's)"},
    "--dry-run": {"action": "store_true", "help": "print the parts with layers and memory, start nothing"},
    "--output": {"metavar": "FOLDER", "help": "the same as OUTPUT_DIR=FOLDER"},
    "settings": {"nargs": "*", "metavar": "KEY=VALUE", "help": ", ".join(PLACES)},
}


@dataclass(frozen=True)
class Size:
    """The model of a part: its settings, its layers, and the most that a framework of the part needs."""

    settings: tuple[str, ...]
    layers: str
    needs_gb: float


@dataclass(frozen=True)
class Part:
    """One part of the hour."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    """Run one after another; the part fails with the first that fails."""
    seconds: float
    """Expected time on one H200, an assumption until it has been measured."""
    size: Size | None = None
    """None for a part without a model."""


@dataclass
class Hour:
    """Folders, platform, memory of the card (GB) and deadline of one call, with the record of the parts."""

    output: Path
    data: Path
    platform: str
    memory_gb: float
    deadline: float
    record: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def own(self) -> Path:
        """The folder of what only the hour writes."""
        return self.output / FOLDER

    def settings(self, length: int, label: str, steps: int = STEPS) -> tuple[str, ...]:
        """Return the settings of a job at one sequence length, without those of its size."""
        places = (f"OUTPUT_DIR={self.output}", f"DATA_DIR={self.data}", f"LABEL=hour_{label}", "DATASET=synth")
        if self.platform == "cpu":
            few = min(steps, 10)
            return (
                *places,
                f"TRAIN_ITERS={few}",
                "WARMUP_ITERS=1",
                "CPU_RANKS=1",
                "GBS=4",
                "MBS=2",
                f"SL={length // 64}",
            )
        work = (f"GBS={TOKENS_PER_STEP // length}", f"TRAIN_ITERS={steps}", "WARMUP_ITERS=10")
        return (*places, "GPUS_PER_NODE=1", "MBS=1", f"SL={length}", *work)

    def size(self, model: str, length: int, states: str = "bf16") -> Size:
        """Return the largest size with which mega and hf fit into the card, else the smallest there is.

        titan has no formula: it keeps 16 bytes a parameter, as mega does with float32 states.
        """
        for settings, layers in self._sizes(model):
            of_all = (*settings, f"OPTIMIZER_STATE={states}")
            needs = max(self._needs_gb(framework, model, length, of_all) for framework in ESTIMATED)
            found = Size(of_all, layers, needs)
            if self.fits(found):
                break
        return found

    def fits(self, size: Size) -> bool:
        """Check that a size fits into the card by the estimate."""
        return size.needs_gb <= usable_gb(self.memory_gb, self.platform)

    def _sizes(self, model: str) -> Iterator[tuple[tuple[str, ...], str]]:
        if self.platform == "cpu":
            yield ("MODEL_SIZE=tiny",), "tiny"
            return
        whole = get(model, "full").num_layers
        yield ("MODEL_SIZE=full",), f"{whole} layers"
        for layers in range(whole - LAYERS_APART, 0, -LAYERS_APART):
            yield ("MODEL_SIZE=proxy", f"PROXY_LAYERS={layers}"), f"{layers} of {whole} layers"

    def _needs_gb(self, framework: str, model: str, length: int, settings: Sequence[str]) -> float:
        arguments = [*self.settings(length, "estimate"), *settings, f"FRAMEWORK={framework}", f"MODEL={model}"]
        config = load(self.platform, 1, arguments=arguments, environ={})
        return estimate(config, framework, config.spec(model)).total_gb

    def job(
        self,
        framework: str,
        length: int,
        size: Size,
        seconds: float,
        *,
        model: str = "llama",
        run: int = 1,
        kind: str = "",
        **more: object,
    ) -> Part:
        """Return the part that trains one job, its data made first.

        A `kind` other than the usual one has its results in a folder of its own; `more` are other settings.
        """
        label = {"": f"sl{length}", "profile": "profiled"}.get(kind, kind)
        steps = 10 if kind == "profile" else STEPS
        settings = (*self.settings(length, label, steps), *size.settings, *(f"{key}={more[key]}" for key in more))
        prepare = (*PYTHON, "data.prepare", "--platform", self.platform, f"MODEL={model}", *settings)
        launch = (*PYTHON, "train.launch", "--platform", self.platform, "--framework", framework)
        train = (*launch, "--model", model, "--run", str(run), *settings)
        words = (kind, framework, "" if kind else model, "" if kind == "reference" else f"SL {length}")
        name = " ".join(filter(None, (*words, f"run {run}" if run > 1 else "")))
        return Part(name, (prepare, train), seconds, size)


def parts(hour: Hour) -> list[Part]:
    """Return all parts, the most valuable first."""
    seconds = ("--seconds", "0.5" if hour.platform == "cpu" else "10")
    probe = (*PYTHON, "train.probe", "--platform", hour.platform, *seconds, *hour.settings(2048, "sl2048"))
    llama = {length: hour.size("llama", length) for length in (2048, 4096, 8192)}
    windowed, qwen = hour.size("mistral", 8192), hour.size("qwen", 2048)
    reference = hour.size("llama", 2048, "fp32")  # the model that titan can hold
    return [
        Part("probe", (probe,), 45),
        *(hour.job(one, length, llama[length], 145) for length in (2048, 8192) for one in ESTIMATED),
        *(hour.job(one, 2048, llama[2048], 60, kind="profile", **ONE_STEP) for one in ESTIMATED),
        *(hour.job(one, 2048, reference, 140, kind="reference") for one in ("mega", "titan", "hf")),
        *(hour.job("mega", 2048, llama[2048], 110, run=number) for number in (2, 3)),
        *(hour.job(one, 4096, llama[4096], 140) for one in ESTIMATED),
        *(hour.job(one, 8192, windowed, 150, model="mistral") for one in ESTIMATED),
        *(hour.job(one, 2048, qwen, 140, model="qwen") for one in ESTIMATED),
    ]


def write_facts(hour: Hour) -> None:
    """Keep the output of the vendor's tools, of pip and of torch under `facts/`; a tool that is missing is named."""
    folder = hour.own / "facts"
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
    note(*(folder / f"{name}.txt" for name in commands))


def run_part(hour: Hour, part: Part) -> bool:
    """Run the commands of a part in the time that is left, their output in a log; return whether all passed."""
    log = hour.own / "logs" / f"{part.name.replace(' ', '_')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
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
    (hour.own / "parts.json").write_text(json.dumps(hour.record, indent=1), encoding="utf8")
    note(log, hour.own / "parts.json")
    return code == 0


def summary(hour: Hour) -> str:
    """Return the table of all results as Markdown: speed, utilization, losses, and each peak beside its estimate."""
    heads = (
        *("job", "layers", "status", "tokens/s/GPU", "MFU causal, %", "loss, first to last"),
        *("peak, GB", "estimate, GB", "peak / estimate"),
    )
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for path in sorted(hour.output.glob("hour_*/train_*.json")):
        if path.parent.name != "hour_profiled":
            lines.append(f"| {' | '.join(_row(store.read(path)))} |")
    return "\n".join(lines) + "\n"


def _row(result: Result) -> list[str]:
    config = result["training_config"]
    name = f"{result['framework']} {result['model']} SL {config['sequence_length']} run {result['run']}"
    layers = str(result["resolved_config"].get("num_layers", "unknown"))
    if result["status"] != "ok":
        return [name, layers, f"{result['status']}: {str(result['reason']).splitlines()[0][:200]}", *[""] * 6]
    from evaluate.metrics.metrics import metrics  # needs numpy, which a plan does without

    found = metrics(result)
    mfu, losses = found["mfu_causal"].value, result["loss_values"]
    peak, guess = result["memory_metrics"]["peak_memory_allocated_gb"], _estimate_gb(result)
    return [
        name,
        layers,
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


@refusing((ConfigError,))
def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts that fit and for which there is time, and write the summary."""
    options = Parser(OPTIONS, prog="python -m benchmarks.gpu", description=first_line(__doc__)).parse_args(argv)
    if options.output:
        options.settings.append(f"OUTPUT_DIR={options.output}")
    hour = _hour(options)
    chosen = [part for part in parts(hour) if not options.only or any(text in part.name for text in options.only)]
    if options.dry_run:
        print("\n".join(_planned(hour, part) for part in chosen))
        return 0
    if not (hour.own / "facts").exists():
        write_facts(hour)
    is_good = all([_run(hour, part) for part in chosen])
    summarised = hour.own / "summary.md"
    print(summarised.read_text(encoding="utf8") if summarised.exists() else "nothing ran")
    return 0 if is_good else 1


def _hour(options: argparse.Namespace) -> Hour:
    """Return the hour with its folder and the record of earlier calls; raise ConfigError."""
    for setting in options.settings:
        if setting.partition("=")[0] not in PLACES:
            raise ConfigError(f"gpu-hour: got {setting}, wanted {' or '.join(PLACES)}; all other settings are its own")
    output, data = folders(options.platform, arguments=options.settings)
    deadline = time.monotonic() + 60 * options.minutes
    hour = Hour(output, data, options.platform, _memory_gb(options), deadline)
    if options.dry_run:
        return hour
    require_writable(hour.own, "OUTPUT_DIR")
    footprint.mark(output, footprint.OUTPUT)
    known = hour.own / "parts.json"
    try:
        hour.record = json.loads(known.read_text(encoding="utf8")) if known.exists() else {}
    except ValueError as error:
        raise ConfigError(f"{known}: {error}; remove it, and every part runs again") from error
    return hour


def _memory_gb(options: argparse.Namespace) -> float:
    if options.device is not None:
        device = named(options.device)
        if device is None:
            raise ConfigError(f"--device: got {options.device!r}, wanted one of {', '.join(SHORT_NAMES)}")
        return device.memory_gb
    found, source = capacity_gb(load(options.platform, 1, arguments=["CPU_RANKS=1"], environ={}))
    if found is None:
        raise ConfigError(f"gpu hour: the memory of the GPU is unknown ({source}); name the card, e.g. --device H100")
    return found


def _planned(hour: Hour, part: Part) -> str:
    if part.size is None:
        return f"{part.name}: {part.seconds:.0f} s expected"
    of_card = f"{part.size.layers}, about {part.size.needs_gb:.1f} GB of {hour.memory_gb:.1f} GB"
    if not hour.fits(part.size):
        return f"does not fit: {part.name}: {of_card}"
    return f"{part.name}: {of_card}, {part.seconds:.0f} s expected"


def _run(hour: Hour, part: Part) -> bool:
    """Run a part unless it is done, does not fit or has no time; return False if it failed."""
    left = hour.deadline - time.monotonic()
    if hour.record.get(part.name, {}).get("exit_code") == 0:
        print(f"done already: {part.name}", flush=True)
    elif part.size is not None and not hour.fits(part.size):
        print(_planned(hour, part), flush=True)
    elif part.seconds > left and hour.platform != "cpu":
        print(f"no time for: {part.name} ({part.seconds:.0f} s expected, {left:.0f} s left)", flush=True)
    else:
        passed = run_part(hour, part)
        print(f"{'ok' if passed else 'FAILED'}: {part.name}, {hour.record[part.name]['seconds']:.0f} s", flush=True)
        (hour.own / "summary.md").write_text(summary(hour), encoding="utf8")
        note(hour.own / "summary.md")
        return passed
    return True


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(run(main))
