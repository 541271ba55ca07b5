"""What every trainer of ours shares: its command line, fingerprint, recorder and banners, and its exit codes."""

from __future__ import annotations

import argparse
import faulthandler
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from train.job.job import Job, JobReport
from train.job.processes import end_with_parent
from train.job.recorder import CpuDevice, CudaDevice, StepRecorder
from utils.dataset.gpt_dataset import check_epochs, data_prefix, describe
from utils.errors import ConfigError, DataError
from utils.hardware import detect as hardware
from utils.provenance import origin
from utils.provenance.digests import TOKEN_STREAM_BATCHES, sha256_json, sha256_token_stream
from utils.results import raw_samples
from utils.settings.config import RunConfig, load

TrainFunction = Callable[[Job, JobReport, Path, dict[str, Any]], None]


def main(
    framework: str, initialize: Callable[[RunConfig], None], is_reporter: Callable[[], bool], train: TrainFunction
) -> int:
    """Run one rank of one job: 0 for an ok result, 2 for bad input; any other error leaves a result and goes on."""
    options = arguments(framework)
    end_with_parent()  # torchrun
    faulthandler.register(
        signal.SIGUSR1, all_threads=True
    )  # train/job/hang_report.py asks for the stack of a rank that hangs
    try:
        config = load(
            options.platform,
            int(os.environ["LOCAL_WORLD_SIZE"]),
            arguments=[*options.settings, f"FRAMEWORK={framework}", f"MODEL={options.model}"],
        )
        if config.num_gpus != int(os.environ["WORLD_SIZE"]):
            raise ConfigError(f"WORLD_SIZE={os.environ['WORLD_SIZE']}: the settings say {config.num_gpus} ranks")
        job = Job(config, framework, options.model, options.run_number, options.attempt)
        prefix = data_prefix(config, options.model)
        manifest = describe(prefix, config.data_dir)
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    initialize(config)
    command = shlex.join(["python", "-m", f"train.train_{framework}", *sys.argv[1:]])
    identity = job.identity(manifest["bin_sha256"])
    with JobReport(job, identity, command, is_reporter=is_reporter()) as report:
        report.gpu_info = hardware.gpu_info(config.platform, config.num_gpus)
        train(job, report, prefix, manifest)
    torch.distributed.barrier()  # a gloo rank that leaves first can abort the others
    torch.distributed.destroy_process_group()
    leave_at_once()
    return 0


def leave_at_once() -> None:
    """End this rank, whose work is done and whose result is written, without taking the libraries apart.

    Seen once in some hundred jobs of two gloo ranks on a busy machine: a library's thread still runs when its object
    is destroyed at the end of the interpreter, which aborts the process (`terminate called without an active
    exception`) and would make a failure of a complete measurement.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def arguments(framework: str) -> argparse.Namespace:
    """Parse the command line that train/launch.py writes."""
    parser = argparse.ArgumentParser(prog=f"python -m train.train_{framework}", description=__doc__)
    parser.add_argument("--platform", required=True, choices=("amd", "nvd", "cpu"))
    parser.add_argument("--model", required=True)
    parser.add_argument("--run-number", type=int, default=1, help="number of the run (process restart), from 1")
    parser.add_argument("--attempt", type=int, default=1, help="number of the attempt at this run, from 1")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    return parser.parse_args()


def recorder(job: Job, is_reporter: bool) -> StepRecorder:
    """Return the recorder of this rank."""
    device = CudaDevice() if torch.cuda.is_available() else CpuDevice()
    title = {"cpu": "CPU", "nvd": "NVIDIA", "amd": "AMD"}[job.config.platform]
    return StepRecorder(job.config.train_iterations, device=device, title=title, is_reporter=is_reporter)


def fingerprint(
    job: Job, prefix: Path, manifest: dict[str, Any], dataset: Any, weights_sha256: str | None
) -> dict[str, Any]:
    """Return the `fingerprint` section: what was read, in which order, by which model, from which weights."""
    reasons = {}
    tokenizer = manifest.get("tokenizer") or {}
    if not tokenizer.get("sha256"):
        reasons["tokenizer_sha256"] = f"no manifest beside {prefix.name}.bin names a tokenizer"
    if weights_sha256 is None:
        reasons["initial_weights_sha256"] = "INIT=native: each framework draws its own weights"
    epochs, _ = check_epochs(job.config, manifest["tokens"])
    batches = min(TOKEN_STREAM_BATCHES, job.config.train_iterations)
    return {
        "dataset_bin_sha256": manifest["bin_sha256"],
        "dataset_idx_sha256": manifest["idx_sha256"],
        "tokenizer_sha256": tokenizer.get("sha256"),
        "model_config_sha256": sha256_json(job.spec.as_dict()),
        "token_stream_sha256": sha256_token_stream(dataset, job.config.global_batch_size, batches),
        "token_stream_batches": batches,
        "initial_weights_sha256": weights_sha256,
        "epochs": round(epochs, 4),
        "reasons": reasons,
    }


def absent(resolved: dict[str, Any]) -> dict[str, str]:
    """Return the reasons for what a model does not have, for the `reasons` of its resolved configuration."""
    why = {
        "rope_scaling": "this model has plain rotary frequencies",
        "sliding_window": "this model attends to every earlier token",
    }
    return {key: reason for key, reason in why.items() if resolved[key] is None}


def print_start(job: Job, report: JobReport) -> None:
    """Say, on the reporting rank, what is about to be trained on what."""
    if not (report.recorder and report.recorder.is_reporter):
        return
    config, resolved = job.config, report.resolved
    versions = ", ".join(f"{name} {version}" for name, version in origin.versions().items())
    unit = "ranks on" if config.platform == "cpu" else "x"
    ranks = f"TP {resolved['tp']} PP {resolved['pp']} CP {resolved['cp']} DP {resolved['dp']}"
    print(
        f"=== {job.name}: {job.model} {config.model_size}, {resolved['parameter_count']:,} parameters, "
        f"{resolved['precision']}\n"
        f"    {config.num_gpus} {unit} {report.gpu_info['device_name']}; {versions}\n"
        f"    {config.train_iterations} steps of GBS {config.global_batch_size} = MBS {config.micro_batch_size} x "
        f"GA {config.gradient_accumulation} x DP {config.data_parallel_size} at SL {config.sequence_length}; {ranks}; "
        f"{config.train_iterations * config.tokens_per_step:,} tokens",
        flush=True,
    )
    if resolved["dp"] > 1:
        print("    the loss shown is this rank's; the result holds the mean over ranks", flush=True)


def print_end(job: Job, report: JobReport) -> None:
    """Say, on the reporting rank, what was measured."""
    if not (report.recorder and report.recorder.is_reporter):
        return
    result = report.result("ok", None)
    speed, losses = result["performance_metrics"], result["loss_values"]
    print(
        f"=== {job.name}: {speed['avg_step_time_seconds']:.3f} s a step, "
        f"{speed['tokens_per_second_per_gpu']:,.0f} tokens/s/GPU, loss {losses[0]:.4f} -> {losses[-1]:.4f}, "
        f"peak {result['memory_metrics']['peak_memory_allocated_gb']:.1f} GB",
        flush=True,
    )
    for warning in result["warnings"]:
        print(f"    warning: {warning}", flush=True)
    for line in raw_samples.lines(result):
        print(line, end="", flush=True)
