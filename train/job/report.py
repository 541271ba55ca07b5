"""The report of a training: it turns whatever happens in a rank into the job's one result."""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from train.job.job import Draft, Job, disk_reason, utc_now
from train.job.outcome import Attempt, advice_of, write_of_rank
from train.job.recorder import (
    CLOCK_KEY,
    Device,
    ExpertTokens,
    NonFiniteError,
    Samples,
    StepRecorder,
    clock,
)
from utils.readings import Value, attempt
from utils.results import schema
from utils.results.performance import data_wait_fraction, data_wait_warning, summarize, warmup_steps
from utils.results.store import ResultError
from utils.settings.config import RunConfig
from utils.settings.keys import in_results

REASON_LINES = 6
ONE_STEADY_STEP = "one steady step has no spread"
NO_ALLOCATOR = "no caching allocator on a CPU"
NO_DATA_WAIT = "the framework does not tell how long it waits for samples"


class MismatchError(RuntimeError):
    """The framework built something else than was asked; the message shows both values of every such setting."""


class IncompleteError(RuntimeError):
    """The training returned before its last step."""


class JobReport(AbstractContextManager["JobReport"]):
    """Context manager around a training: writes a valid result however the training ends, and lets errors propagate.

    The trainer sets `gpu_info`, `resolved`, `fingerprint` and `recorder` as soon as it knows them. The reporting rank
    writes the `ok` result. Any rank writes the failure that ends it, and the first one written stays.
    """

    def __init__(self, job: Job, identity: str, command: str, *, is_reporter: bool = True) -> None:
        self.job = job
        self.recorder: StepRecorder | None = None
        self.gpu_info: dict[str, Any] = {}
        self.resolved: dict[str, Any] = {}
        self.fingerprint: dict[str, Any] = {}
        self.warnings: list[str] = []
        """Warnings of the trainer for the result."""
        self.is_reporter = is_reporter
        self._attempt = Attempt(job, identity, command, utc_now())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._report_failure(error)
        elif self.is_reporter:
            self._report_success()

    def _report_success(self) -> None:
        """Write the ok result; where a step is missing or the disk is full, write that failure instead."""
        try:
            self.check_complete()
            # every earlier result was set aside, so a file here is of another launcher or of a rank that failed
            if not write_of_rank(self._attempt, self.result("ok", None)):
                raise ResultError(f"{self.job.result_path}: another attempt has left its result here already")
        except (IncompleteError, OSError) as error:
            self._report_failure(error)
            raise

    def _report_failure(self, error: BaseException) -> None:
        status, reason = self.classified(error)
        if status == "oom":
            device = self.recorder.device if self.recorder else None
            held, why = attempt(lambda: memory_at(device))
            if held is None:
                held = f"the memory in use is unknown ({why})"
            reason += f"\n{held}; {advice_of(self.job, self.gpu_info)}"
        write_of_rank(self._attempt, self.result(status, reason))

    def classified(self, error: BaseException) -> tuple[str, str]:
        """Return status and reason of the error that ended the training."""
        text, config = str(error), self.job.config
        if isinstance(error, NonFiniteError):
            return "nan", text
        lines = "".join(traceback.format_exception(error)).strip().splitlines()
        reason = "\n".join(lines[-REASON_LINES:])
        # torch's own class is compared by name, because this module must not import torch
        is_oom = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        if is_oom or any(words in text.lower() for words in ("out of memory", "can't allocate memory")):
            return "oom", reason
        folders = [config.results_dir, config.data_dir, Path(os.environ.get("TMPDIR", "/tmp"))]
        return "failed", disk_reason(error, folders) or reason

    def take_gpu_info(self, found: dict[str, Any]) -> None:
        """Take the `gpu_info` of the result; what is unknown of a GPU is a warning."""
        self.gpu_info = found
        if found["software_stack"] != "cpu":
            self.warnings += [f"gpu: {key}: {why}" for key, why in found["reasons"].items() if found[key] is None]

    def reading(self, what: str, read: Callable[[], Value]) -> Value | None:
        """Return what `read` returns; None, with a warning in the result, where it raises (utils/readings.py)."""
        value, why = attempt(read)
        if why:
            self.warnings.append(f"{what}: {why}")
        return value

    def check_complete(self) -> None:
        """Raise IncompleteError where a step is missing."""
        done = self.recorder.steps_done if self.recorder else 0
        wanted = self.job.config.train_iterations
        if done != wanted:
            raise IncompleteError(f"the training ended after {done} of {wanted} steps")

    def check_resolved(self) -> None:
        """Raise MismatchError where the running framework has another value than was asked."""
        wrong = setting_differences(self.job.config.asked(), self.resolved)
        if wrong:
            raise MismatchError("the framework did not build what was asked: " + "; ".join(wrong))

    def result(self, status: str, reason: str | None) -> Draft:
        """Return the result with everything that is known so far."""
        result = self._attempt.empty_result(status, reason)
        result["warnings"] += self.warnings
        # what a training that failed early did not know yet stays null, with the reason of the failure
        if self.gpu_info:
            result["gpu_info"] = self.gpu_info
        if self.resolved:
            result["resolved_config"] = self._with_settings_not_read_back()
        if self.fingerprint:
            result["fingerprint"] = self.fingerprint
        if self.recorder is not None and self.recorder.samples.steps:
            self._add_measurements(result, self.recorder)
        return result

    def _with_settings_not_read_back(self) -> dict[str, Any]:
        """Return `resolved` with null and a reason for each setting that the framework's reader does not know."""
        resolved, reasons = dict(self.resolved), dict(self.resolved.get("reasons", {}))
        for place in in_results().values():
            if place.kind and place.key not in resolved:
                resolved[place.key] = None
                reasons[place.key] = f"{self.job.framework} does not read this setting back"
        return resolved | {"reasons": reasons}

    def _add_measurements(self, result: Draft, recorder: StepRecorder) -> None:
        if recorder.peak_allocated_gb is None:
            recorder.note_memory()
        add_samples(result, recorder.samples, self.job.config, recorder.loop_seconds)
        excluded = recorder.excluded_steps
        if excluded:
            result["excluded_steps"] = {str(step): why for step, why in excluded.items()}
        warning = data_wait_warning(result["performance_metrics"]["data_wait_fraction"])
        if warning is not None:
            result["warnings"].append(warning)
        if recorder.experts is not None:
            self._add_experts(result, recorder.experts)
        figures: dict[str, Any] = {
            "avg_memory_allocated_gb": recorder.avg_allocated_gb,
            "peak_memory_allocated_gb": recorder.peak_allocated_gb,
            "peak_memory_reserved_gb": recorder.peak_reserved_gb,
        }
        source = f"{recorder.device.source}, {recorder.memory_scope}"
        reasons = {}
        if recorder.peak_reserved_gb is None:  # a process on a CPU, whose resident set holds the profiler as well
            reasons["peak_memory_reserved_gb"] = NO_ALLOCATOR
            if excluded:
                source += ", the profiler's own included"
        if recorder.peak_allocated_gb is None:
            why = recorder.why_no_memory or "another rank could not read it"
            reasons = dict.fromkeys(figures, why)
            result["warnings"].append(f"memory: {why}")
        result["memory_metrics"] = figures | {"source": source, "reasons": reasons}

    def _add_experts(self, result: Draft, experts: ExpertTokens) -> None:
        """Add the section `experts`, null with its reason where it is unknown; a training that failed has none."""
        why = experts.why_unknown
        if experts.of_all_ranks:
            spec = self.job.spec
            chosen_in_a_step = self.job.config.tokens_per_step * spec.num_layers * spec.experts_per_token
            section, why = attempt(lambda: experts.section(chosen_in_a_step))
            result["experts"] = section
        if why:
            result["experts"] = schema.unknown("experts", why)
            result["warnings"].append(f"experts: {why}")


def setting_differences(asked: Mapping[str, Any], resolved: Mapping[str, Any]) -> list[str]:
    """Return each setting that was read back with another value than was asked; null was not read back."""
    differences = []
    for key, wanted in asked.items():
        built = resolved.get(key)
        if built is not None and built != wanted:
            differences.append(f"{key}: asked {wanted!r}, built {built!r}")
    return differences


def add_samples(result: Draft, samples: Samples, config: RunConfig, loop_seconds: float | None) -> None:
    """Put the samples of the steps into a result, with their summary and, where all are known, the times of their ends.

    A value that is not finite is null in a result that is not ok.
    """
    for key in schema.SAMPLES:
        result[key] = getattr(samples, key)
    if result["status"] != "ok":
        for key in ("loss_values", "grad_norms"):
            result[key] = [_finite(value) for value in result[key]]
    if len(samples.step_ends) == len(samples.steps):
        result["energy_metrics"][CLOCK_KEY] = clock() | {"ends": samples.step_ends}
    summary = summarize(samples.step_times, config.tokens_per_step, config.num_gpus)
    reasons = {key: ONE_STEADY_STEP for key, value in summary.items() if value is None}
    excluded = warmup_steps(len(samples.step_times))
    waiting = data_wait_fraction(samples.step_times[excluded:], samples.data_wait_seconds[excluded:])
    if waiting is None:
        reasons["data_wait_fraction"] = NO_DATA_WAIT
    result["performance_metrics"] = summary | {
        "data_wait_fraction": waiting,
        "loop_seconds": loop_seconds,
        "reasons": reasons,
    }


def memory_at(device: Device | None) -> str:
    """Return how much the device held when it ran out, in GB; `device` is None before the first step."""
    if device is None:
        return "the memory at that point is unknown: it was before the first step"
    text = f"{device.allocated_gb():.1f} GB were in use, {device.peak_allocated_gb():.1f} GB at the most"
    reserved = device.peak_reserved_gb()
    if reserved is not None:
        text += f", {reserved:.1f} GB reserved by the allocator"
    return text


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
