"""From a run that was read from a log to the sections of a result that come from it.

What no log says stays null with its reason; utils/schema.py says what a result with `source` "log" may leave out.
"""

from __future__ import annotations

from typing import Any

from utils.log_run import RunLog
from utils.performance import summarize, warmup_steps

NOT_IN_LOG = "the log does not say it"
NO_DATA_WAIT = "the log does not tell how long it waits for samples"
ONE_STEADY_STEP = "one steady step has no spread"
FEW_STEPS = 3
"""Up to here all steps are of the warm-up that a summary leaves out where it can (utils/performance.py)."""
NO_TIMED_STEP = "the log has no step with a time"
DEVICE_USED = "device used"


def measured(run: RunLog, tokens_per_step: int, num_gpus: int) -> dict[str, Any]:
    """Return source, status, reason, warnings, samples, `performance_metrics` and `memory_metrics` of a result.

    `tokens_per_step` are GBS x SL. The samples are the iterations whose time is known; `excluded_steps` says which
    others were printed and why they are left out.
    """
    timed = [step for step in run.steps if step.step_time_seconds is not None]
    return {
        "source": "log",
        "status": run.status,
        "reason": run.reason,
        "warnings": [*run.notes, *_few_steps(len(timed))],
        "excluded_steps": {str(number): why for number, why in run.excluded.items()},
        "steps": [step.number for step in timed],
        "step_times": [step.step_time_seconds for step in timed],
        "data_wait_seconds": [None] * len(timed),
        "loss_values": [step.loss for step in timed],
        "grad_norms": [step.grad_norm for step in timed],
        "learning_rates": [step.learning_rate for step in timed],
        "performance_metrics": _performance(run, tokens_per_step, num_gpus),
        "memory_metrics": memory(run),
    }


def memory(run: RunLog) -> dict[str, Any]:
    """Return `memory_metrics`; what the log says in its own words is under `as_logged`.

    The peak is the framework's own (`max allocated`). What a driver counts as used holds other processes, caches and
    communication buffers as well, and is not taken for it.
    """
    allocated, reserved = run.memory.get("max allocated"), run.memory.get("max reserved")
    used = [one.printed for name, one in run.memory.items() if name.startswith(DEVICE_USED)]
    why = f"the log has the memory in use on the whole device only ({', '.join(used)})" if used else NOT_IN_LOG
    reasons = {"avg_memory_allocated_gb": NOT_IN_LOG}
    reasons |= {} if allocated else {"peak_memory_allocated_gb": why}
    reasons |= {} if reserved else {"peak_memory_reserved_gb": why}
    sources = [f"{one.meaning}: {one.printed} ({one.where})" for one in (allocated, reserved) if one]
    reasons |= {} if sources else {"source": why}
    return {
        "avg_memory_allocated_gb": None,
        "peak_memory_allocated_gb": allocated.gb if allocated else None,
        "peak_memory_reserved_gb": reserved.gb if reserved else None,
        "source": "the framework's log, " + ", ".join(sources) if sources else None,
        "as_logged": {name: one.printed for name, one in run.memory.items()},
        "reasons": reasons,
    }


def _few_steps(count: int) -> list[str]:
    return [f"only {count} steps with a time: their speed is that of a warm-up"] if 0 < count <= FEW_STEPS else []


def _performance(run: RunLog, tokens_per_step: int, num_gpus: int) -> dict[str, Any]:
    times = [step.step_time_seconds for step in run.steps if step.step_time_seconds]
    summary = summarize(times, tokens_per_step, num_gpus)
    excluded = warmup_steps(len(times))
    why = NO_TIMED_STEP if not times else ONE_STEADY_STEP if len(times) - excluded == 1 else NOT_IN_LOG
    reasons = {key: why for key, value in summary.items() if value is None}
    return summary | {"data_wait_fraction": None, "reasons": reasons | {"data_wait_fraction": NO_DATA_WAIT}}
