"""A training of any framework: command line, data, weights, recorder, checks, fingerprint, banners and exit codes."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import shlex
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from train.common import kernels
from train.common.banners import print_end, print_start
from train.common.built import model_differences
from train.common.kernels import Facts
from train.common.weights import EqualWeights, WeightSource, combined_digest
from train.job.job import Job, profile_folder
from train.job.processes import end_with_parent
from train.job.recorder import CpuDevice, CudaDevice, ExpertTokens, StepRecorder
from train.job.report import JobReport, MismatchError
from train.profiling.recording import StepRecording, gather_files, warnings_of, write_profile
from train.profiling.tools import RECORDINGS
from utils.arguments import Parser, refusing
from utils.dataset.gpt_dataset import build_train_dataset, check_epochs, describe
from utils.dataset.manifest import licences
from utils.dataset.place import data_prefix
from utils.errors import ConfigError, DataError
from utils.hardware import detect as hardware
from utils.models import TRAITS
from utils.provenance.digests import TOKEN_STREAM_BATCHES, sha256_json, sha256_token_stream
from utils.readings import attempt
from utils.settings.config import RunConfig, load
from utils.settings.profiling import TORCH

Ready = Callable[..., None]
"""Function `ready(built, dataset, fill=None)` that a framework calls once, on every rank, before its first step.

`built` is what `facts` reads, `dataset` what the loader takes its samples from. `fill(source)` puts the equal weights
into what is built; a framework that fills them in while it builds leaves it out. Raises MismatchError.
"""
NO_KERNEL = "this torch does not tell which kernel of attention it takes"
ABSENT = {trait.key: trait.why_absent for trait in TRAITS if trait.why_absent} | {"attention_backend": NO_KERNEL}
"""Reason for each key of the resolved configuration that may be None: of a trait that the model lacks, and others."""


@dataclass(frozen=True)
class Data:
    """The encoded data of a job."""

    config: RunConfig
    prefix: Path
    manifest: dict[str, Any]

    @cached_property
    def dataset(self) -> Any:
        """megatron-core's GPTDataset, made on first use."""
        return build_train_dataset(self.config, self.prefix, self.manifest)


class Framework(ABC):
    """The differences between the frameworks that torchrun starts; `main` owns everything else of a training."""

    name: str
    """As in FRAMEWORK."""

    def start(self, config: RunConfig) -> None:
        """Start torch.distributed, and what must be there before anything is built."""
        init_process_group(config)

    @abstractmethod
    def run(self, job: Job, data: Data, source: WeightSource | None, recorder: StepRecorder, ready: Ready) -> None:
        """Build, call `ready`, train all steps on this rank, record each, and merge the ranks.

        Weights come from `source`, or from the framework's own generator if it is None.
        """

    @abstractmethod
    def facts(self, job: Job, built: Any) -> Facts:
        """Return `resolved_config` as it is read back from the built objects, without `init`."""

    def routers(self, built: Any) -> Iterable[tuple[Any, Callable[[Any], Any]]]:
        """Return the routers of a mixture of experts, each with the function that counts its tokens of each expert."""
        return ()

    def check(self, job: Job, built: Any, resolved: Mapping[str, Any]) -> None:
        """Raise MismatchError where the built objects are not what was asked: here, another model than the spec."""
        wrong = model_differences(job.spec, resolved)
        # not among the model's own differences: a framework without windows may train sequences within the window
        if resolved["sliding_window"] != job.spec.sliding_window:
            wrong.append(f"sliding_window: asked {job.spec.sliding_window!r}, built {resolved['sliding_window']!r}")
        if wrong:
            raise MismatchError(f"the framework built another model than {job.spec.name}: " + "; ".join(wrong))


def init_process_group(config: RunConfig) -> None:
    """Start torch.distributed by gloo or, with the GPU of this rank, by NCCL or RCCL.

    Without its device torch guesses it from the number of the rank, which it warns of at each barrier.
    """
    if config.platform == "cpu":
        torch.distributed.init_process_group("gloo")
    else:
        torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))


@refusing((ConfigError, DataError))
def main(framework: Framework) -> int:
    """Run one rank of one job; 0 for an ok result, 2 for bad input. Other errors write a result and propagate."""
    options = arguments(framework.name)
    end_with_parent()  # torchrun
    # train/job/supervise.py requests the stack of a rank that hangs
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    job, data = job_of(framework.name, options, int(os.environ["LOCAL_WORLD_SIZE"]))
    config = job.config
    if config.num_gpus != int(os.environ["WORLD_SIZE"]):
        raise ConfigError(f"WORLD_SIZE={os.environ['WORLD_SIZE']}: the settings say {config.num_gpus} ranks")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    framework.start(config)
    # TF32 off: NVIDIA's images turn it on by TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, which sets torch's default
    torch.set_float32_matmul_precision("highest")
    command = shlex.join(["python", "-m", f"train.train_{framework.name}", *sys.argv[1:]])
    identity = job.identity(data.manifest["bin_sha256"])
    with JobReport(job, identity, command, is_reporter=is_reporter(config)) as report:
        report.take_gpu_info(hardware.gpu_info(config.platform, config.num_gpus))
        train(framework, report, data)
        read_kernels(report)
        finish_profile(job, report)
        if report.is_reporter:
            report.reading("end of the log", lambda: print_end(job, report))
    _, why = attempt(leave)
    if why:
        print(f"    warning: the ranks did not part in order: {why}", file=sys.stderr)
    # Without the interpreter's shutdown. Seen once in some hundred jobs of two gloo ranks on a busy machine: a
    # library's thread still runs when its object is destroyed at the end of the interpreter. That aborts the process
    # (`terminate called without an active exception`) and would turn a complete measurement into a failure.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def silence(messages: Mapping[str, tuple[str, ...]]) -> None:
    """Drop messages that mean nothing for a run, by the name of their logger and their beginnings, and nothing else."""
    for name, beginnings in messages.items():
        logger = logging.getLogger(name)
        logger.addFilter(lambda record, known=beginnings: not record.getMessage().startswith(known))  # type: ignore[misc]


def leave() -> None:
    """Leave the group of the ranks together: a gloo rank that leaves first can abort the others."""
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def is_reporter(config: RunConfig) -> bool:
    """Return whether this rank has the loss and writes the result: last pipeline stage, first of all other groups.

    megatron-core numbers the stages outermost (tp-cp-ep-dp-pp). A framework without stages reports on rank 0.
    """
    stages = config.pipeline_parallel_size
    return int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) // stages * (stages - 1)


def train(framework: Framework, report: JobReport, data: Data) -> None:
    """Train the job with a framework and fill in its report."""
    job, config = report.job, report.job.config
    source = EqualWeights(job.spec, config.seed, config.init_std) if config.init == "equal" else None
    steps = report.recorder = recorder(job, report.is_reporter)

    def ready(built: Any, dataset: Any, fill: Callable[[WeightSource], None] | None = None) -> None:
        resolved = framework.facts(job, built)
        reasons = {key: why for key, why in ABSENT.items() if resolved[key] is None}
        reasons |= resolved.get("reasons", {})
        if resolved["attention_backend"] is None:
            report.warnings.append(f"attention_backend: {NO_KERNEL}")
        report.resolved = resolved | {"init": config.init, "reasons": reasons}
        report.check_resolved()
        if job.spec.num_experts:
            steps.experts = ExpertTokens(framework.routers(built))
        framework.check(job, built, report.resolved)
        digest = None
        if source is not None:
            if fill is not None:
                fill(source)
            digest = combined_digest(source.digests)
        report.fingerprint = fingerprint(job, data, dataset, digest)
        if report.is_reporter:
            report.reading("beginning of the log", lambda: print_start(job, report))
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()  # the peak of the steps, not of the building

    framework.run(job, data, source, report.recorder, ready)


def read_kernels(report: JobReport) -> None:
    """Put the kernels that have run into `resolved`; what cannot be read has its reason there, and a warning."""
    facts, why = attempt(lambda: kernels.read(report.resolved))
    if facts is None:
        facts = dict.fromkeys(kernels.KEYS) | {"reasons": dict.fromkeys(kernels.KEYS, why)}
    reasons = facts.pop("reasons", {})
    report.warnings += [f"{key}: {why}" for key, why in reasons.items()]
    report.resolved |= facts
    report.resolved["reasons"] |= reasons
    loaded = report.reading("cuDNN", kernels.loaded_cudnn) or {}
    if len(loaded) > 1:
        versions = " and ".join(f"{version} of {folder}" for folder, version in loaded.items())
        report.warnings.append(
            f"cuDNN: {versions} are loaded in one process, and either may run; put the folder of one of them first in "
            "LD_LIBRARY_PATH"
        )


OPTIONS: dict[str, dict[str, Any]] = {
    "--platform": {"required": True, "choices": ("amd", "nvd", "cpu")},
    "--model": {"required": True},
    "--run-number": {"type": int, "default": 1, "help": "number of the run (process restart), from 1"},
    "--attempt": {"type": int, "default": 1, "help": "number of the attempt at this run, from 1"},
    "settings": {"nargs": "*", "metavar": "KEY=VALUE"},
}


def arguments(framework: str) -> argparse.Namespace:
    """Parse the command line that train/launch.py passes."""
    return Parser(OPTIONS, prog=f"python -m train.train_{framework}", description=__doc__).parse_args()


def job_of(framework: str, options: argparse.Namespace, visible: int | None) -> tuple[Job, Data]:
    """Return the job of a command line and its data; `visible` is the number of GPUs of this machine.

    Raises ConfigError or DataError for bad settings or data.
    """
    settings = [*options.settings, f"FRAMEWORK={framework}", f"MODEL={options.model}"]
    config = load(options.platform, visible, arguments=settings)
    prefix = data_prefix(config, options.model)
    data = Data(config, prefix, describe(prefix, config.data_dir, config=config))
    return Job(config, framework, options.model, options.run_number, options.attempt), data


def recorder(job: Job, is_reporter: bool) -> StepRecorder:
    """Return the recorder of this rank."""
    device = CudaDevice() if torch.cuda.is_available() else CpuDevice()
    title = {"cpu": "CPU", "nvd": "NVIDIA", "amd": "AMD"}[job.config.platform]
    profile = job.config.profiled
    recording = None
    if profile is not None:
        rank = int(os.environ["RANK"])
        kind = RECORDINGS[profile.tool] if profile.has_rank(rank) else StepRecording
        recording = kind(profile, profile_folder(job), rank)
    return StepRecorder(
        job.config.train_iterations, device=device, title=title, is_reporter=is_reporter, profile=recording
    )


def finish_profile(job: Job, report: JobReport) -> None:
    """Write profile.json after the last step of a job with a profile of torch.profiler; every rank calls it."""
    recorder = report.recorder
    if recorder is None or not isinstance(recorder.profile, StepRecording):
        return
    files = report.reading("profile", lambda: gather_files(recorder.profile))
    if files is None or not report.is_reporter or recorder.steps_done != job.config.train_iterations:
        return
    folder, profile = recorder.profile.folder, recorder.profile.profile
    report.warnings += warnings_of(files)
    if profile.tool == TORCH:

        def write() -> list[str]:
            return write_profile(folder, report.result("ok", None), profile, recorder.profiled_seconds, files)

        report.warnings += report.reading("profile", write) or []
    print(f"    profile: {profile.text}, in {folder}", flush=True)


def fingerprint(job: Job, data: Data, dataset: Any, weights_sha256: str | None) -> dict[str, Any]:
    """Return the `fingerprint` section: digests of data, order of samples in `dataset`, model and initial weights."""
    reasons, manifest = {}, data.manifest
    tokenizer = manifest.get("tokenizer") or {}
    if not tokenizer.get("sha256"):
        reasons["tokenizer_sha256"] = f"no manifest beside {data.prefix.name}.bin names a tokenizer"
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
