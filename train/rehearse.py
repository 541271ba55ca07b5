"""Rehearse a training step without its device: the job's own code at full size, on tensors that have no data.

Usage:   ./tprimat rehearse --platform nvd|amd|cpu --gpus N --framework mega|hf --model M [--device NAME]
         [--output FILE.json] [KEY=VALUE ...]
Reads:   config.env and its overlays, the environment
Writes:  FILE.json and FILE.png, if --output is given
Exits:   0; 1 the rehearsal failed, with whose failure it was; 2 bad input
Example: ./tprimat rehearse --platform nvd --gpus 8 --framework mega --model llama --device H100

Builds and trains one rank of every pipeline stage with the functions of train/train_mega.py or train/train_hf.py, and
prints peak memory by kind, floating-point operations, operators, collectives, host reads and a roofline time. No number
is measured; docs/memory.md states what a rehearsal cannot see. Every expert of a layer gets as many tokens. Each rank
runs in a child process, because the stand-ins for the device change torch. The settings are those of a job, so
MODEL_SIZE is `full` on nvd and amd and, by config.cpu.env, `tiny` on cpu, unless it is given.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.rehearsal import account
from utils.arguments import Parser, refusing, run
from utils.errors import ConfigError, ForeignFileError
from utils.files import write_whole
from utils.frameworks import reads
from utils.hardware.devices import SHORT_NAMES, named
from utils.memory.estimate import FRAMEWORKS
from utils.models import MODELS
from utils.own_files import require_ours
from utils.settings.config import PLATFORMS, ROOT, RunConfig, load, require_writable, values_of

OPTIONS: dict[str, dict[str, Any]] = {
    "--platform": {"required": True, "help": f"one of {', '.join(PLATFORMS)}; cpu: without stand-in device"},
    "--gpus": {"required": True, "metavar": "N", "help": "GPUs of one machine; on cpu the number of ranks"},
    "--framework": {"required": True, "help": "mega or hf"},
    "--model": {"required": True, "help": f"one of {', '.join(MODELS)}"},
    "--device": {"help": "device of the roofline, e.g. H100, H200, MI300X (default: no roofline)"},
    "--output": {"type": Path, "metavar": "FILE.json", "help": "file to write"},
    "--stage": {"type": int, "help": argparse.SUPPRESS},
    "--record": {"type": Path, "help": argparse.SUPPRESS},
    "settings": {"nargs": "*", "metavar": "KEY=VALUE", "help": "settings of the job, as for train.launch"},
}
WHOSE = {
    "stand_in": "the stand-in of the device or of the other ranks failed, not the job",
    "job": "the job's code failed on the stand-ins; a real device may or may not show the same",
}
WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
STAND_IN_MEMORY_GB = 1000.0
"""Memory of the stand-in, more than any job needs: a rehearsal shows a need."""


class RehearsalError(RuntimeError):
    """A rank could not be rehearsed; the message says whose failure it was."""


@refusing((ConfigError, ForeignFileError), failed=(RehearsalError,))
def main(arguments: Sequence[str] | None = None) -> int:
    """Rehearse every stage and write the report; in a child process, rehearse one rank."""
    options = Parser(OPTIONS, module="train.rehearse").parse_args(arguments)
    config = _config(options)
    device = None if options.device is None else named(options.device)
    if options.device is not None and device is None:
        known = f"known: {', '.join(SHORT_NAMES)}, and names in utils/hardware/devices.py"
        raise ConfigError(f"--device: got {options.device!r}, {known}")
    if options.stage is not None:
        return _child(config, options)
    output: Path | None = options.output
    if output is not None:
        if output.suffix != ".json":
            raise ConfigError(f"--output: got {str(output)!r}, wanted a name that ends with .json")
        require_ours(account.is_rehearsal, output)
        require_writable(output.absolute().parent, "--output")
    ranks = [_rank_in_child(options, config, stage) for stage in range(config.pipeline_parallel_size)]
    content = account.of_job(config, options.framework, options.model, ranks, device)
    if output is not None:
        try:
            write_whole(output, account.as_json(content), is_ours=account.is_rehearsal)
        except OSError as error:
            print(f"error: {output}: cannot be written: {error}; name another --output", file=sys.stderr)
            return 1
    print(account.as_text(content), end="")
    return 0


def _config(options: argparse.Namespace) -> RunConfig:
    """Return the job's settings; raise ConfigError for bad ones."""
    for name, value, allowed in (
        ("--platform", options.platform, PLATFORMS),
        ("--framework", options.framework, FRAMEWORKS),
        ("--model", options.model, tuple(MODELS)),
    ):
        if value not in allowed:
            raise ConfigError(f"{name}: got {value!r}, allowed: {', '.join(allowed)}")
    if not options.gpus.isdecimal() or not 0 < int(options.gpus) < 100_000:
        raise ConfigError(f"--gpus: got {options.gpus!r}, wanted a number of GPUs from 1")
    count = "CPU_RANKS" if options.platform == "cpu" else "GPUS_PER_NODE"
    fixed = [f"FRAMEWORK={options.framework}", f"MODEL={options.model}", f"{count}={options.gpus}"]
    for setting in options.settings:
        key = setting.partition("=")[0]
        if key in ("FRAMEWORK", "MODEL", count):
            option = {"FRAMEWORK": "--framework", "MODEL": "--model"}.get(key, "--gpus")
            raise ConfigError(f"{setting}: a rehearsal takes this from {option}; leave it out")
    arguments = [*options.settings, *fixed]
    if values_of(options.platform, arguments)["MBS"].text == "auto":
        raise ConfigError("MBS=auto: a rehearsal has no device to fill; set MBS to a number")
    config = load(options.platform, int(options.gpus), arguments=arguments)
    if reads(options.framework, "hf_kernels") and config.hf_kernels == "liger":
        raise ConfigError("HF_KERNELS=liger: its Triton kernels need data, which a rehearsal does not have; use stock")
    spec, tokens = config.spec(options.model), config.micro_batch_size * config.sequence_length
    if spec.num_experts and tokens * spec.experts_per_token % spec.num_experts:
        raise ConfigError(
            f"MBS SL: {tokens} tokens with {spec.experts_per_token} experts each cannot be divided equally between "
            f"{spec.num_experts} experts, as a rehearsal does; change MBS or SL"
        )
    return config


def _rank_in_child(options: argparse.Namespace, config: RunConfig, stage: int) -> dict[str, Any]:
    """Return the account of one rank of a stage; raise ConfigError or RehearsalError with the child's message."""
    if sys.stderr.isatty():
        print(f"rehearsing pipeline stage {stage + 1} of {config.pipeline_parallel_size}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.json"
        # torch is changed for good, so each rank has a process of its own
        command = [sys.executable, "-W", "ignore", "-m", "train.rehearse", "--platform", options.platform]
        command += ["--gpus", options.gpus, "--framework", options.framework, "--model", options.model]
        # the Trainer makes a folder in OUTPUT_DIR, which is the user's
        command += ["--stage", str(stage), "--record", str(record), *options.settings, f"OUTPUT_DIR={folder}"]
        ran = subprocess.run(
            command, cwd=ROOT, env=os.environ | WITHOUT_GPU, capture_output=True, text=True, check=False
        )
        # a crash in C++ leaves no Python error
        if not record.exists():
            raise RehearsalError(
                f"the process of stage {stage} ended with code {ran.returncode}:\n{ran.stderr[-2000:]}"
            )
        outcome: dict[str, Any] = json.loads(record.read_text(encoding="utf8"))
    if "error" not in outcome:
        return outcome
    if outcome["whose"] == "settings":
        raise ConfigError(outcome["error"])
    raise RehearsalError(f"{outcome['traceback']}stage {stage}: {WHOSE[outcome['whose']]}: {outcome['error']}")


def _child(config: RunConfig, options: argparse.Namespace) -> int:
    """Rehearse one rank and write its account, or its error, into the record."""
    from train.rehearsal.one_rank import whose

    try:
        outcome = _rehearse(config, options.framework, options.model, options.stage)
    except Exception as error:  # noqa: BLE001 - the parent reports any of them
        outcome = {"error": str(error).strip() or type(error).__name__, "whose": whose(error)}
        outcome["traceback"] = traceback.format_exc()
    options.record.write_text(json.dumps(outcome), encoding="utf8")
    return 0 if "error" not in outcome else 1


def _rehearse(config: RunConfig, framework: str, model: str, stage: int) -> dict[str, Any]:
    """Change torch for a rehearsal, train one rank of a stage with the trainer's own functions, return its account."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from train.rehearsal import one_rank
    from train.rehearsal.one_rank import shortened

    # the ranks of a stage follow one another, and one of them stands for all
    rank = stage * config.num_gpus // config.pipeline_parallel_size
    short, spec = shortened(config), config.spec(model)
    ledger, steps = one_rank.prepare(short, spec, rank, STAND_IN_MEMORY_GB)
    with FakeTensorMode(allow_non_fake_inputs=True), ledger:
        if reads(framework, "layers"):
            from train import train_mega  # before train.mega.model, which on the CPU needs its redirection
            from train.mega.model import initialize_parallel

            one_rank.train_mega(short, spec, steps, initialize_parallel, train_mega.build, train_mega.run)
        else:
            from train import train_hf

            one_rank.train_hf(short, spec, steps, train_hf.build, train_hf.run)
    return account.of_rank(config, steps, stage, rank)


if __name__ == "__main__":
    sys.exit(run(main))
