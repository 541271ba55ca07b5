"""The unified result of a Primus training: speed and losses from its log, samples checked against our data set, traces.

Primus profiles by its own keys (train/settings_map/prim_column.py) and writes below its workspace. The numbers of its
marks `ProfilerStep#N` are those of the steps: Megatron calls `prof.step()` at the begin of each iteration.
"""

from __future__ import annotations

import math
import re
import shutil
import statistics
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from train.common.built import model_differences
from train.job.job import Draft, Job, profile_folder
from train.job.recorder import NonFiniteError, Samples
from train.job.report import IncompleteError, JobReport, MismatchError, add_samples, setting_differences
from train.prim.arguments import Arguments, first_learning_rate, plain
from train.prim.install import printed_variable
from train.prim.yaml_config import unloaded
from train.profiling.recording import Files, warnings_of, write_profile
from train.profiling.tools import compress
from utils.errors import ForeignFileError
from utils.files import written_whole
from utils.logs.iterations import iterations
from utils.logs.lines import IterationLine, Line, RunLog, value_of
from utils.provenance.digests import sha256_file
from utils.results import schema
from utils.results.raw_samples import format_profiled, format_step
from utils.settings.profiling import Profile, Trace

INDICES = ("document_index", "sample_index", "shuffle_index")
"""Attributes of GPTDataset and ends of its cache files (megatron/core/datasets/gpt_dataset.py, core 0.15 and 0.16)."""
IN_ORDER = "single"
"""The `dataloader_type` that keeps the order of samples; `cyclic`, Primus's default, shuffles them once more."""

TRACES = (
    # tensorboard_trace_handler with the worker name of Primus (torch_profiler_patches.py)
    re.compile(r"primus-megatron-exp\[.*\]-rank\[(?P<rank>\d{1,9})\]\..*\.pt\.trace\.json(?:\.gz)?"),
    # Megatron-LM d3528a2, training.py, `trace_handler`, where Primus does not replace it
    re.compile(r"rank-(?P<rank>\d{1,9})\.json(?:\.gz)?"),
)
"""Names of a rank's trace."""
LAST_LINES = 8
TITLE = "AMD"
NO_EXPERT_TOKENS = "Megatron's log under Primus has no tokens of each expert"
NO_SNAPSHOT = "this version requests no memory snapshot of Primus"


class Follower:
    """Reader of Primus's output, which it also passes on: arguments, environment, learning rates, progress.

    After each new iteration line it prints a progress line in the suite's own format, which the watchdog of the job and
    the view of the matrix read.
    """

    def __init__(self, job: Job) -> None:
        self.arguments = Arguments()
        self.environment: dict[str, str] = {}
        """Variables that Primus's launcher prints after setting them."""
        self.learning_rates: dict[int, float] = {}
        """As printed with each iteration: the rate of the next one."""
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self.memory_lines: list[str] = []
        """The first line about an out-of-memory error."""
        self.unloaded: str | None = None
        """Names of the checkpoint that Megatron could not load, as it prints them."""
        self.step_ends: dict[int, float] = {}
        """`time.perf_counter` when the line of each iteration came, which Primus prints as it ends."""
        self.mismatch: str | None = None
        """Result of `check_arguments` once the table of arguments is complete."""
        self._job = job
        self._seconds: list[float] = []

    def take(self, line: str) -> None:
        """Read one line, with its newline."""
        # Primus's output is the log of the job
        print(line, end="", flush=True)
        was_complete = self.arguments.is_complete
        self.arguments.take(line)
        # at once: a training of something else would take hours to be refused
        if self.arguments.is_complete and not was_complete:
            self.mismatch = check_arguments(self._job, self.arguments)
        text = plain(line)
        variable = printed_variable(text)
        if variable is not None:
            name, value = variable
            self.environment[name] = value
        if line.strip():
            self.last_lines.append(text)
        self.unloaded = self.unloaded or unloaded(line)
        if "out of memory" in line and not self.memory_lines:
            self.memory_lines.append(text)
        for seen in iterations(Line(line, Path(), 0, True)):
            self._take_step(seen)

    def learning_rate(self, step: int) -> float | None:
        """Return the rate of a step: Megatron's scheduler advances before it prints (training.py, `train`)."""
        return first_learning_rate(self.arguments.values) if step == 1 else self.learning_rates.get(step - 1)

    def _take_step(self, seen: IterationLine) -> None:
        if seen.learning_rate is not None:
            self.learning_rates[seen.number] = seen.learning_rate.value
        if seen.step_time is None or seen.number <= max(self.step_ends, default=0):
            return
        self.step_ends[seen.number] = time.perf_counter()
        config = self._job.config
        seconds = seen.step_time.value
        used = [memory.gb for memory in seen.memory if "used" in memory.meaning]
        loss = seen.loss.value if seen.loss is not None else math.nan
        memory_gb = max(used, default=math.nan)
        if config.profiled is not None and seen.number in config.profiled.steps:
            text = format_profiled(TITLE, seen.number, config.train_iterations, loss, memory_gb)
        else:
            self._seconds.append(seconds)
            average = statistics.fmean(self._seconds[1:] or self._seconds)
            text = format_step(TITLE, seen.number, config.train_iterations, seconds, average, loss, memory_gb)
        print(text, end="", flush=True)


def check_arguments(job: Job, arguments: Arguments) -> str | None:
    """Return the settings and facts of the model in which the running Megatron differs from the job, else None."""
    asked, resolved = job.config.asked(), arguments.resolved(job.spec)
    asked.pop("init")  # on a GPU Primus draws its own weights, which is a warning of the result
    wrong = setting_differences(asked, resolved) + model_differences(job.spec, resolved)
    return "Primus did not build what was asked: " + "; ".join(wrong) if wrong else None


class PrimusError(RuntimeError):
    """Primus ended with an exit code other than 0."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class LogReport(JobReport):
    """The report of a training that is known only from its log; see JobReport for the files it writes."""

    def __init__(self, job: Job, identity: str, command: str) -> None:
        # the last rank prints the iterations, so of several nodes the last one has them in its log
        super().__init__(job, identity, command, is_reporter=job.config.node_rank == job.config.nodes - 1)
        self.log: RunLog | None = None
        self.follower = Follower(job)
        self.versions: dict[str, str] = {}
        self.environment: dict[str, str] = {}

    def check_complete(self) -> None:
        """Raise NonFiniteError, IncompleteError or MismatchError where the log shows a failed or different run."""
        if self.log is None:
            raise IncompleteError("Primus ended with exit code 0 and printed no iteration")
        if self.log.status == "nan":
            raise NonFiniteError(str(self.log.reason))
        if self.log.problems:
            raise IncompleteError(f"Primus ended with exit code 0, but its log is no good run: {self.log.reason}")
        config = self.job.config
        asked = {
            "world_size": config.num_gpus,
            "global_batch_size": config.global_batch_size,
            "total_steps": config.train_iterations,
            "sequence_length": config.sequence_length,
        }
        wrong = []
        for name, value in asked.items():
            fact = self.log.facts.get(name)
            if fact is not None and fact.value != value:
                words = name.replace("_", " ")
                wrong.append(f"{words}: asked {value}, the log says {fact.value} ({fact.where})")
        if wrong:
            raise MismatchError("Primus trained something else than was asked: " + "; ".join(wrong))

    def classified(self, error: BaseException) -> tuple[str, str]:
        """Return status and reason; for an error of Primus without our traceback, which would add nothing."""
        status, reason = super().classified(error)
        if isinstance(error, PrimusError | IncompleteError | MismatchError):
            reason = str(error)
        return status, reason

    def result(self, status: str, reason: str | None) -> Draft:
        """Return the result as far as it is known."""
        result = super().result(status, reason)
        result["source"] = "log"
        result["provenance"]["framework_versions"] = self.versions
        result["provenance"]["environment"] = self.environment
        if self.log is not None and self.log.steps:
            self._add_log(result, self.log)
        return result

    def _add_log(self, result: Draft, log: RunLog) -> None:
        follower = self.follower
        excluded, profile = dict(log.excluded), self.job.config.profiled
        if profile is not None:
            printed = {step.number for step in log.steps} | excluded.keys()
            for number, why in profile.excluded_by_primus.items():
                if number in printed:
                    # a step that was not printed is missing, which `check_complete` says
                    excluded[number] = why
        samples = Samples(**log.samples(excluded))
        # the log has the rate of the next step, and no time of day
        samples.learning_rates = [follower.learning_rate(step) for step in samples.steps]
        samples.step_ends = [follower.step_ends[step] for step in samples.steps if step in follower.step_ends]
        add_samples(result, samples, self.job.config, _loop_seconds(samples, follower.step_ends))
        result["excluded_steps"] = {str(number): why for number, why in sorted(excluded.items())}
        result["memory_metrics"] = memory(log, has_gpu=self.job.config.platform != "cpu")
        if self.job.spec.num_experts:
            result["experts"] = schema.unknown("experts", NO_EXPERT_TOKENS)


def _loop_seconds(samples: Samples, ends: Mapping[int, float]) -> float | None:
    """Return the seconds between the lines of the counted iterations, as this process saw them come: a second
    source of the printed times. None where a line was not seen.

    An iteration without a seen line before it counts with its printed time.
    """
    if not ends.keys() >= set(samples.steps):
        return None
    total = 0.0
    for step, seconds in zip(samples.steps, samples.step_times, strict=True):
        total += ends[step] - ends[step - 1] if step - 1 in ends else seconds
    return total


def memory(log: RunLog, *, has_gpu: bool = True) -> dict[str, Any]:
    """Return `memory_metrics`: null with a reason that quotes Primus's figures, which are no peak over the run.

    Without a GPU the figures are those of train/mega/cpu.py, which measures nothing.

    The device's own figure counts other processes and the allocator's reserve; Megatron reads its peak once, after
    the first or second iteration, on rank 0.
    """
    if not has_gpu:
        figures = "only the memory of a GPU, which is not there"
    elif log.memory:
        figures = "; ".join(
            f"{memory.meaning}: {memory.printed} ({memory.gb:.1f} GB)" for memory in log.memory.values()
        )
    else:
        figures = "no memory figure at all"
    why = f"Primus prints no peak over the run; it prints {figures}"
    return schema.unknown("memory_metrics", why) | {"source": "log of Primus"}


def why_unproven(cache: Path, dataset: Any, arguments: Mapping[str, Any], prefix: Path) -> str | None:
    """Return why it is not proven that Primus trained on the samples of `dataset`, our GPTDataset; None where it is.

    Megatron's GPTDataset writes three index files into `cache`, an empty folder that Primus was given. With the tokens
    they decide every sample: the order of documents, the start of each sample, the order of samples. `arguments` are
    those that the running Megatron printed.
    """
    paths = arguments.get("train_data_path")
    if arguments.get("mock_data") is not False or paths != [str(prefix)]:
        return f"Primus printed train_data_path={paths!r}, mock_data={arguments.get('mock_data')!r}"
    if arguments.get("dataloader_type") != IN_ORDER:
        return f"Primus printed dataloader_type={arguments.get('dataloader_type')!r}: samples in another order"
    for name in INDICES:
        files = sorted(cache.glob(f"*-GPTDataset-train-{name}.npy"))
        if len(files) != 1:
            return f"Primus left {len(files)} files of its {name}, wanted one"
        if not _equal(files[0], getattr(dataset, name)):
            return f"the {name} that Primus drew is not the one of our data set: other samples, or another order"
    return None


def _equal(path: Path, ours: Any) -> bool:
    try:
        theirs = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return False
    return bool(np.array_equal(theirs, np.asarray(ours)))


def take_profile(report: LogReport, profile: Profile, workspace: Path) -> list[str]:
    """Move the traces of a training that has ended well and write profile.json; return warnings for the result."""
    folder = profile_folder(report.job)
    by_rank = traces(workspace)
    files = [_taken(rank, by_rank.get(rank), profile, folder) for rank in profile.ranks_of(report.job.config.num_gpus)]
    printed = {}
    if report.log is not None:
        printed = {step.number: value_of(step.step_time) for step in report.log.steps}
    seconds, missing = [], []
    for step in profile.steps:
        step_seconds = printed.get(step)
        if step_seconds is None:
            missing.append(str(step))
        else:
            seconds.append(step_seconds)
    if missing:
        return [
            f"profile: Primus printed no time of the profiled step {', '.join(missing)}; no profile.json is written"
        ]
    print(f"    profile: {profile.text}, in {folder}", flush=True)
    return [*warnings_of(files), *write_profile(folder, report.result("ok", None), profile, seconds, files)]


def traces(workspace: Path) -> dict[int, Path]:
    """Return the trace of each rank below the workspace of Primus; of several, the last one by name."""
    by_rank = {}
    for path in sorted(path for path in workspace.rglob("*.json*") if path.is_file()):
        for pattern in TRACES:
            match = pattern.fullmatch(path.name)
            if match is not None:
                by_rank[int(match["rank"])] = path
    return by_rank


def _taken(rank: int, source: Path | None, profile: Profile, folder: Path) -> Files:
    """Move the trace of a rank; a trace that is missing or cannot be moved has a reason."""
    reasons = {f"rank{rank}_memory": NO_SNAPSHOT} if profile.with_memory else {}
    if source is None:
        return Files(rank, None, reasons | {f"rank{rank}": "Primus wrote no trace of this rank"})
    target = folder / f"rank{rank}.json.gz"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with written_whole(target) as (temporary,):
            if source.suffix == ".gz":
                shutil.copyfile(source, temporary)
            else:
                compress(source, temporary)
        # only now: until the copy is whole the trace has one place
        source.unlink()
    except (OSError, ForeignFileError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return Files(rank, None, reasons | {f"rank{rank}": f"{target}: {why}"})
    return Files(rank, Trace(target.name, sha256_file(target)), reasons)
