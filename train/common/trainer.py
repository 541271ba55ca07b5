"""Code that every trainer of ours shares: command line, fingerprint, recorder, checks, banners and exit codes."""

from __future__ import annotations

import argparse
import faulthandler
import math
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from train.common import kernels
from train.job.device import CpuDevice, CudaDevice
from train.job.job import Job, profile_folder
from train.job.processes import end_with_parent
from train.job.recorder import StepRecorder
from train.job.report import JobReport, MismatchError
from train.profiling import profile_json
from train.profiling.recording import StepRecording
from train.profiling.tools import RECORDINGS
from utils.arguments import Parser
from utils.dataset.gpt_dataset import check_epochs, data_prefix, describe
from utils.dataset.manifest import licences
from utils.errors import ConfigError, DataError
from utils.hardware import detect as hardware
from utils.models import ModelSpec
from utils.provenance import origin
from utils.provenance.digests import TOKEN_STREAM_BATCHES, sha256_json, sha256_token_stream
from utils.results import raw_samples
from utils.settings.config import RunConfig, load
from utils.settings.profiling import TORCH

FLOAT32_RELATIVE = 1e-6
TrainFunction = Callable[[Job, JobReport, Path, dict[str, Any]], None]


def main(
    framework: str, initialize: Callable[[RunConfig], None], is_reporter: Callable[[], bool], train: TrainFunction
) -> int:
    """Run one rank of one job; 0 for an ok result, 2 for bad input. Other errors write a result and propagate."""
    options = arguments(framework)
    end_with_parent()  # torchrun
    # train/job/supervise.py requests the stack of a rank that hangs
    faulthandler.register(signal.SIGUSR1, all_threads=True)
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
        manifest = describe(prefix, config.data_dir, config=config)
    except (ConfigError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    initialize(config)
    kernels.multiply_exactly()
    command = shlex.join(["python", "-m", f"train.train_{framework}", *sys.argv[1:]])
    identity = job.identity(manifest["bin_sha256"])
    with JobReport(job, identity, command, is_reporter=is_reporter()) as report:
        report.gpu_info = hardware.gpu_info(config.platform, config.num_gpus)
        train(job, report, prefix, manifest)
        report.resolved |= kernels.read(report.resolved)
        finish_profile(job, report)
    torch.distributed.barrier()  # a gloo rank that leaves first can abort the others
    torch.distributed.destroy_process_group()
    leave_at_once()
    return 0


def leave_at_once() -> None:
    """End this rank after its result is written, without the interpreter's shutdown.

    Seen once in some hundred jobs of two gloo ranks on a busy machine: a library's thread still runs when its object
    is destroyed at the end of the interpreter. That aborts the process (`terminate called without an active
    exception`) and would turn a complete measurement into a failure.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def arguments(framework: str) -> argparse.Namespace:
    """Parse the command line that train/launch.py passes."""
    parser = Parser(prog=f"python -m train.train_{framework}", description=__doc__)
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
    profile = job.config.profiled
    recording = None
    if profile is not None:
        recording = RECORDINGS[profile.tool](profile, profile_folder(job), int(os.environ["RANK"]))
    return StepRecorder(
        job.config.train_iterations, device=device, title=title, is_reporter=is_reporter, profile=recording
    )


def finish_profile(job: Job, report: JobReport) -> None:
    """Write profile.json after the last step of a job with a profile of torch.profiler; every rank calls it."""
    recorder = report.recorder
    if recorder is None or not isinstance(recorder.profile, StepRecording):
        return
    files = profile_json.gather(recorder.profile)
    if not report.is_reporter or recorder.steps_done != job.config.train_iterations:
        return
    folder, profile = recorder.profile.folder, recorder.profile.profile
    report.warnings += profile_json.warnings_of(files)
    if profile.tool == TORCH:
        found = profile_json.content(report.result("ok", None), profile, recorder.profiled_seconds, files)
        report.warnings += profile_json.write(folder, found)
    print(f"    profile: {profile.text}, in {folder}", flush=True)


def fingerprint(
    job: Job, prefix: Path, manifest: dict[str, Any], dataset: Any, weights_sha256: str | None
) -> dict[str, Any]:
    """Return the `fingerprint` section: digests of data, order of samples, model and initial weights."""
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
        "licences": licences(manifest),
        "reasons": reasons,
    }


def absent(resolved: dict[str, Any]) -> dict[str, str]:
    """Return a reason for each trait that a model lacks, for the `reasons` of its resolved configuration."""
    why = {
        "rope_scaling": "this model has plain rotary frequencies",
        "sliding_window": "this model attends to every earlier token",
    }
    return {key: reason for key, reason in why.items() if resolved[key] is None}


def one_epsilon(epsilons: Iterable[float]) -> float:
    """Return the epsilon that these norms of a layer share; raise MismatchError where they differ."""
    found = sorted(set(epsilons))
    if len(found) != 1:
        raise MismatchError(f"norms of one layer: got epsilons {', '.join(map(str, found))}, wanted one for all")
    return found[0]


def model_differences(spec: ModelSpec, resolved: Mapping[str, Any]) -> list[str]:
    """Return the differences between the resolved configuration and the model, as `key: asked ..., built ...`.

    Floats are compared with float32 precision, because rope's base is computed from frequencies of that precision.
    """
    wanted: dict[str, Any] = {
        "num_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "ffn_hidden_size": spec.ffn_hidden_size,
        "num_attention_heads": spec.num_attention_heads,
        "num_query_groups": spec.num_query_groups,
        "vocab_size": spec.vocab_size,
        "norm_eps": spec.norm_epsilon,
        "qkv_bias": spec.qkv_bias,
        "rope_base": spec.rope_base,
        "parameter_count": spec.parameter_count,
    }
    found = {key: (value, resolved[key]) for key, value in wanted.items() if resolved[key] is not None}
    if resolved["num_layers"] is not None:  # the configuration is known
        found["rope_scaling"] = (spec.rope_scaling and spec.rope_scaling.__dict__, resolved["rope_scaling"])
        for key in ("tie_word_embeddings", "query_key_norm"):  # `resolved_config` has them only where they are true
            found[key] = (getattr(spec, key), resolved.get(key, False))
    return [
        f"{key}: asked {value!r}, built {built!r}" for key, (value, built) in found.items() if not _same(value, built)
    ]


def check_model(spec: ModelSpec, resolved: Mapping[str, Any]) -> None:
    """Raise MismatchError where the framework has built another model than the spec."""
    wrong = model_differences(spec, resolved)
    if resolved["sliding_window"] != spec.sliding_window:
        wrong.append(f"sliding_window: asked {spec.sliding_window!r}, built {resolved['sliding_window']!r}")
    if wrong:
        raise MismatchError(f"the framework built another model than {spec.name}: " + "; ".join(wrong))


def _same(value: Any, built: Any) -> bool:
    if isinstance(value, float) and isinstance(built, float):
        return math.isclose(value, built, rel_tol=FLOAT32_RELATIVE)
    return bool(value == built)


def print_start(job: Job, report: JobReport) -> None:
    """Print, on the reporting rank, the model, machine and settings of the training."""
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
    """Print, on the reporting rank, the measurements."""
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
