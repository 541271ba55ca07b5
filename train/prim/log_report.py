"""The unified result of a Primus training: speed and losses from its log, settings from what its Megatron printed."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from train.job.job import Job
from train.job.recorder import NonFiniteError
from train.job.report import NO_DATA_WAIT, ONE_STEADY_STEP, IncompleteError, JobReport, MismatchError
from utils.logs.reader import LogFormatError, read_log
from utils.logs.run_log import RunLog
from utils.results.performance import summarize


class PrimusError(RuntimeError):
    """Primus ended with an exit code that is not 0."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class LogReport(JobReport):
    """The report of a training that only its log tells of; see JobReport for what it leaves behind."""

    def __init__(self, job: Job, identity: str, command: str) -> None:
        # the last rank prints the iterations, so of several nodes the last one has them in its log
        super().__init__(job, identity, command, is_reporter=job.config.node_rank == job.config.nodes - 1)
        self.log: RunLog | None = None
        self.learning_rates: dict[int, float] = {}
        """As printed with each iteration, which is what the next one trains with."""
        self.first_learning_rate: float | None = None
        self.versions: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        self.warnings: list[str] = []

    def read(self, path: Path) -> None:
        """Take what the log holds, also of a training that failed; nothing where no iteration is in it."""
        with suppress(LogFormatError, OSError):
            self.log = read_log([path], "prim")

    def check_log(self) -> None:
        """Raise NonFiniteError, IncompleteError or MismatchError for what speaks against the run."""
        if self.log is None:
            raise IncompleteError("Primus ended with exit code 0 and printed no iteration")
        if self.log.status == "nan":
            raise NonFiniteError(str(self.log.reason))
        if self.log.problems:
            raise IncompleteError(f"Primus ended with exit code 0, but its log is no good run: {self.log.reason}")
        self._check_figures(self.log)

    def _check_figures(self, log: RunLog) -> None:
        """Raise MismatchError where the log tells of another training than was asked."""
        config = self.job.config
        asked = {
            "world_size": config.num_gpus,
            "global_batch_size": config.global_batch_size,
            "total_steps": config.train_iterations,
            "sequence_length": config.sequence_length,
        }
        wrong = [
            f"{name.replace('_', ' ')}: asked {value}, the log says {fact.value} ({fact.where})"
            for name, value in asked.items()
            if (fact := log.facts.get(name)) and fact.value != value
        ]
        if wrong:
            raise MismatchError("Primus trained something else than was asked: " + "; ".join(wrong))

    def _check_complete(self) -> None:
        self.check_log()

    def classified(self, error: BaseException) -> tuple[str, str]:
        """Return status and reason; an error that tells of Primus says all, a traceback of ours would add nothing."""
        status, reason = super().classified(error)
        return status, str(error) if isinstance(error, PrimusError | IncompleteError | MismatchError) else reason

    def result(self, status: str, reason: str | None) -> dict[str, Any]:
        """Return the result as far as it is known."""
        result = super().result(status, reason)
        result["source"] = "log"
        result["warnings"] += self.warnings
        result["provenance"]["framework_versions"] = self.versions
        result["provenance"]["environment"] = self.environment
        if self.log is not None and self.log.steps:
            self._add_log(result, self.log)
        return result

    def _add_log(self, result: dict[str, Any], log: RunLog) -> None:
        steps = [step for step in log.steps if step.step_time_seconds is not None]
        result["steps"] = [step.number for step in steps]
        result["step_times"] = [step.step_time_seconds for step in steps]
        result["data_wait_seconds"] = [None] * len(steps)
        result["loss_values"] = [step.loss for step in steps]
        result["grad_norms"] = [step.grad_norm for step in steps]
        result["learning_rates"] = [self._learning_rate(step.number) for step in steps]
        result["excluded_steps"] = {str(number): why for number, why in log.excluded.items()}
        config = self.job.config
        summary = summarize(result["step_times"], config.tokens_per_step, config.num_gpus)
        reasons = {key: ONE_STEADY_STEP for key, value in summary.items() if value is None}
        reasons["data_wait_fraction"] = NO_DATA_WAIT
        result["performance_metrics"] = summary | {"data_wait_fraction": None, "reasons": reasons}
        result["memory_metrics"] = memory(log)

    def _learning_rate(self, step: int) -> float | None:
        """What a step trained with: Megatron's scheduler has moved on before it prints (training.py, `train`)."""
        return self.first_learning_rate if step == 1 else self.learning_rates.get(step - 1)


def memory(log: RunLog) -> dict[str, Any]:
    """Return `memory_metrics`: null, because what Primus prints is no peak over the run; what it is, is said.

    The device's own figure counts other processes and the allocator's reserve; Megatron's peak is read once, after the
    first or second iteration and on rank 0.
    """
    figures = "; ".join(f"{one.meaning}: {one.printed} ({one.gb:.1f} GB)" for one in log.memory.values())
    why = f"Primus prints no peak over the run; it prints {figures or 'no memory figure at all'}"
    keys = ("avg_memory_allocated_gb", "peak_memory_allocated_gb", "peak_memory_reserved_gb")
    return {**dict.fromkeys(keys), "source": "log of Primus", "reasons": dict.fromkeys(keys, why)}
