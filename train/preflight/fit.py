"""The memory of a job against that of its device: a job that cannot fit is refused before it is started."""

from __future__ import annotations

from train.job.job import Job
from utils.memory.estimate import FRAMEWORKS, estimate
from utils.memory.fit import change_text, changes_that_fit, lower_bound_gb, terms_text

LAYERS = "mega: torch's layers, TransformerEngine's are not estimated"
"""The layers that every estimate of a GPU is for, as text."""


def refusal(job: Job, capacity: float | None) -> str | None:
    """Return why a job cannot fit into `capacity` GB of its device, and what would fit; None if it may.

    None also for FIT=ignore, for an unknown capacity, and for a framework without a formula.
    """
    if job.config.fit == "ignore" or capacity is None or job.framework not in FRAMEWORKS:
        return None
    found = estimate(job.config, job.framework, job.spec)
    needed = lower_bound_gb(found)
    if needed <= capacity:
        return None
    return (
        f"predicted, not run: at least {needed:.1f} GB are needed of a device with {capacity:.1f} GB "
        f"(estimate, GB: {terms_text(found)}); {_remedy(job, capacity)}; FIT=ignore starts it anyway"
    )


def _remedy(job: Job, capacity: float) -> str:
    changes = changes_that_fit(job.config, job.framework, job.spec, capacity)
    if not changes:
        return "no MBS, RECOMPUTE, OPTIMIZER_STATE, TP or PP fits: use more GPUs, a lower SL, or MODEL_SIZE=proxy"
    return f"should fit: {', or '.join(map(change_text, changes))} (on both sides of a comparison)"
