"""One job of the matrix, and the report that turns whatever happens in it into one result."""

from __future__ import annotations

import datetime
import os
import platform
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from train.job.oom import advice, memory_at
from train.job.recorder import NonFiniteError, Samples, StepRecorder
from train.job.reserve import release_reserve
from utils.memory.estimate import cpu_capacity_gb
from utils.models import ModelSpec
from utils.provenance import origin
from utils.provenance.digests import sha256_code, sha256_json
from utils.results import store
from utils.results.performance import data_wait_fraction, data_wait_warning, summarize, warmup_steps
from utils.results.schema import NO_ENERGY
from utils.settings.config import ROOT, RunConfig

REASON_LINES = 6
ONE_STEADY_STEP = "one steady step has no spread"
NO_DATA_WAIT = "the framework does not tell how long it waits for samples"


class MismatchError(RuntimeError):
    """What was built is not what was asked; the message shows both for every setting that differs."""


class IncompleteError(RuntimeError):
    """The training returned before its last step."""


@dataclass(frozen=True)
class Job:
    """One training: a framework, a model, a run number, and the attempt at it (from 1)."""

    config: RunConfig
    framework: str
    model: str
    run: int = 1
    attempt: int = 1

    @property
    def spec(self) -> ModelSpec:
        """The model that is trained."""
        return self.config.spec(self.model)

    def numbered(self, attempt: int) -> Job:
        """Return the same job as another attempt."""
        return replace(self, attempt=attempt)

    @property
    def name(self) -> str:
        """Name of the job in messages and log files."""
        return f"train_{self.config.platform}_{self.framework}_{self.model}_run{self.run}"

    @property
    def result_path(self) -> Path:
        """Where the result of the job stands."""
        name = store.result_name(self.config.platform, self.framework, self.model, self.run)
        return self.config.results_dir / name

    def identity(self, dataset_bin_sha256: str) -> str:
        """Return the hash of everything that makes this job the same job: settings, data, code and machine."""
        return sha256_json(
            {
                "asked": self.config.asked() | {"dataset": dataset_bin_sha256},
                "platform": self.config.platform,
                "framework": self.framework,
                "model": self.spec.as_dict(),
                "method": self.config.method,
                "run": self.run,
                "code": sha256_code(ROOT),
                "host": machine(self.config),
            }
        )

    def empty_result(
        self, status: str, reason: str | None, identity: str, command: str, started: str
    ) -> dict[str, Any]:
        """Return a result that holds nothing measured, with `reason` beside every null; see
        `utils/results/store.py`.
        """
        reasons = {"reasons": {"*": reason or "not measured"}}
        return {
            "schema_version": store.SCHEMA_VERSION,
            "status": status,
            "reason": reason,
            "warnings": [],
            "platform": self.config.platform,
            "framework": self.framework,
            "model": self.model,
            "model_size": self.config.model_size,
            "method": self.config.method,
            "label": self.config.label,
            "run": self.run,
            "attempt": self.attempt,
            "identity_sha256": identity,
            "gpu_info": dict.fromkeys(store.SECTIONS["gpu_info"]) | reasons,
            "training_config": self.config.asked(),
            "resolved_config": dict.fromkeys(store.SECTIONS["resolved_config"]) | reasons,
            "performance_metrics": dict.fromkeys(store.SECTIONS["performance_metrics"]) | reasons,
            "memory_metrics": dict.fromkeys(store.SECTIONS["memory_metrics"]) | reasons,
            "energy_metrics": dict.fromkeys(store.SECTIONS["energy_metrics"])
            | {"reasons": dict.fromkeys(store.SECTIONS["energy_metrics"], NO_ENERGY)},
            **{key: [] for key in store.SAMPLES},
            "fingerprint": dict.fromkeys(store.SECTIONS["fingerprint"]) | reasons,
            "provenance": origin.describe(command, started, utc_now()),
        }


class JobReport:
    """Context of a training: leaves a validated result behind on every way out of it, and lets errors go on.

    The trainer fills in `gpu_info`, `resolved`, `fingerprint` and `recorder` as it gets to know them. The reporting
    rank writes the `ok` result; any rank writes the failure that ends it, and the first one written stays.
    """

    def __init__(self, job: Job, identity: str, command: str, *, is_reporter: bool = True) -> None:
        self.job = job
        self.recorder: StepRecorder | None = None
        self.gpu_info: dict[str, Any] = {}
        self.resolved: dict[str, Any] = {}
        self.fingerprint: dict[str, Any] = {}
        self._identity = identity
        self._command = command
        self.is_reporter = is_reporter
        self._started = utc_now()

    def __enter__(self) -> JobReport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if self.is_reporter:
                self._report_success()
            return
        self._report_failure(error)

    def _report_success(self) -> None:
        """Write the ok result; what forbids it - a step that is missing, a full disk - becomes the failure instead."""
        try:
            self._check_complete()
            if not store.write(self.result("ok", None), self.job.result_path, replace=False):
                raise store.ResultError(f"{self.job.result_path}: another attempt has left its result here already")
            release_reserve(self.job.result_path)
        except (IncompleteError, OSError) as error:
            self._report_failure(error)
            raise

    def _report_failure(self, error: BaseException) -> None:
        status, reason = self.classified(error)
        if status == "oom":
            reason += "\n" + self._memory_hint()
        release_reserve(self.job.result_path)
        store.write(self.result(status, reason), self.job.result_path, replace=False)

    def classified(self, error: BaseException) -> tuple[str, str]:
        """Return status and reason of the error that ended the training."""
        return classify(error)

    def _memory_hint(self) -> str:
        job, total = self.job, self.gpu_info.get("total_memory_gb")
        capacity = cpu_capacity_gb(job.config.ranks_per_node)[0] if job.config.platform == "cpu" else total
        held = memory_at(self.recorder.device if self.recorder else None)
        return f"{held}; {advice(job.config, job.framework, job.spec, capacity)}"

    def _check_complete(self) -> None:
        steps, wanted = self.recorder.samples.steps if self.recorder else [], self.job.config.train_iterations
        if len(steps) != wanted:
            raise IncompleteError(f"the training ended after {len(steps)} of {wanted} steps")

    def check_resolved(self) -> None:
        """Raise MismatchError where the running framework holds another value than was asked."""
        asked = self.job.config.asked()
        wrong = [
            f"{key}: asked {asked[key]!r}, built {value!r}"
            for key, value in self.resolved.items()
            if key in asked and value is not None and asked[key] != value
        ]
        if wrong:
            raise MismatchError("the framework did not build what was asked: " + "; ".join(wrong))

    def result(self, status: str, reason: str | None) -> dict[str, Any]:
        """Return the result as far as it is known."""
        result = self.job.empty_result(status, reason, self._identity, self._command, self._started)
        for section, known in (
            ("gpu_info", self.gpu_info),
            ("resolved_config", self.resolved),
            ("fingerprint", self.fingerprint),
        ):
            if known:
                result[section] = known
        if self.recorder is not None and self.recorder.samples.steps:
            self._add_measurements(result, self.recorder)
        return result

    def _add_measurements(self, result: dict[str, Any], recorder: StepRecorder) -> None:
        samples, config = recorder.samples, self.job.config
        if recorder.peak_allocated_gb is None:
            recorder.note_memory()
        is_ok = result["status"] == "ok"
        result["steps"] = samples.steps
        result["step_times"] = samples.step_times
        result["data_wait_seconds"] = samples.data_wait_seconds
        result["loss_values"] = [x if is_ok else _finite(x) for x in samples.loss_values]
        result["grad_norms"] = [x if is_ok else _finite(x) for x in samples.grad_norms]
        result["learning_rates"] = samples.learning_rates
        result["performance_metrics"] = _performance(samples, config)
        if warning := data_wait_warning(result["performance_metrics"]["data_wait_fraction"]):
            result["warnings"].append(warning)
        reserved = recorder.peak_reserved_gb
        result["memory_metrics"] = {
            "avg_memory_allocated_gb": recorder.avg_allocated_gb,
            "peak_memory_allocated_gb": recorder.peak_allocated_gb,
            "peak_memory_reserved_gb": reserved,
            "source": f"{recorder.device.source}, {recorder.memory_scope}",
            "reasons": {} if reserved is not None else {"peak_memory_reserved_gb": "no caching allocator on a CPU"},
        }


def _performance(samples: Samples, config: RunConfig) -> dict[str, Any]:
    summary = summarize(samples.step_times, config.tokens_per_step, config.num_gpus)
    reasons = {key: ONE_STEADY_STEP for key, value in summary.items() if value is None}
    excluded = warmup_steps(len(samples.step_times))
    waiting = data_wait_fraction(samples.step_times[excluded:], samples.data_wait_seconds[excluded:])
    if waiting is None:
        reasons["data_wait_fraction"] = NO_DATA_WAIT
    return summary | {"data_wait_fraction": waiting, "reasons": reasons}


def classify(error: BaseException) -> tuple[str, str]:
    """Return status and reason of the error that ended a training."""
    lines = "".join(traceback.format_exception(error)).strip().splitlines()
    reason = "\n".join(lines[-REASON_LINES:])
    text = str(error).lower()
    if isinstance(error, NonFiniteError):
        return "nan", str(error)
    out_of_memory = "out of memory" in text or "can't allocate memory" in text
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or out_of_memory:
        return "oom", reason
    return "failed", reason


def machine(config: RunConfig) -> str:
    """Return what stands for the machine of a job: this host; of several nodes, or under Slurm, the same on all of them
    and on whichever nodes Slurm gives the next time (TPRIMAT_MACHINE).
    """
    of_several = f"{config.nodes} nodes at {config.master_addr}" if config.nodes > 1 else platform.node()
    return os.environ.get("TPRIMAT_MACHINE") or of_several


def utc_now() -> str:
    """Return the time as ISO 8601 in UTC, whole seconds."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _finite(value: float) -> float | None:
    return value if value - value == 0 else None


def log_path(job: Job, node: int | None = None) -> Path:
    """Return where the output of an attempt is kept: of this node, or of the one whose number is given."""
    label = f"{job.config.label}_" if job.config.label else ""
    node = job.config.node_rank if node is None else node
    of_node = f"_node{node}" if node > 0 else ""
    return job.config.output_dir / "logs" / f"{label}{job.name}_attempt{job.attempt}{of_node}.log"
