"""Results of a container without a GPU, told as those of its vendor's GPUs; the recorded variables stay."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from sides import DEVICES, STACKS, make_consistent

_ENGINE = {"layer_implementation": "transformer_engine", "attention_backend": "transformer_engine:auto"}
LAYERS = {
    "hf": {"amd": {"attention_backend": "torch_sdpa:flash"}, "nvd": {"attention_backend": "torch_sdpa:cudnn"}},
    **dict.fromkeys(("mega", "prim", "bridge"), dict.fromkeys(STACKS, _ENGINE)),
}
SOFTWARE = {
    "amd": {"software_version": "7.15.26300", "driver_version": "6.16.6", "pytorch_version": "2.12.0+rocm7.15"},
    "nvd": {"software_version": "13.0", "driver_version": "580.95.05", "pytorch_version": "2.12.0a0+nv26.08"},
}
OF_CPU = ("TORCHDYNAMO_DISABLE", "NCCL_IB_HCA")
"""Recorded variables that are not the image's: train/prim/environment.py sets them where there is no GPU."""
FRAMEWORKS = {"amd": ("mega", "hf", "prim"), "nvd": ("mega", "hf", "bridge")}
"""Frameworks that run in each vendor's image without NeMo 2."""


def told_of(platform: str, result: Mapping[str, Any], number: int, seconds: float) -> dict[str, Any]:
    """Return run `number` at `seconds` a step, with 0.2 % of noise, on the vendor's GPUs.

    Replaced: platform, device, software, memory, layers, the last digits of the losses, and what follows from the
    times. All else is as recorded.
    """
    told = copy.deepcopy(dict(result))
    random = np.random.default_rng([number, sum(map(ord, platform + told["framework"]))])
    told |= {"platform": platform, "run": number, "attempt": 1, "warnings": []}
    told["gpu_info"] |= DEVICES[platform] | SOFTWARE[platform] | {"software_stack": STACKS[platform], "reasons": {}}
    told["resolved_config"] |= LAYERS[told["framework"]][platform]
    told["step_times"] = [round(float(seconds * (1 + random.normal(0, 0.002))), 4) for _ in told["steps"]]
    if told["framework"] != "prim":  # two devices never round alike as one CPU does; Primus's losses are in its log
        told["loss_values"] = [float(loss * (1 + random.normal(0, 1e-4))) for loss in told["loss_values"]]
    if told["data_wait_seconds"]:
        told["data_wait_seconds"] = [0.0] * len(told["steps"])
        told["performance_metrics"]["data_wait_fraction"] = 0.0
    if "loop_seconds" in told["performance_metrics"]:
        told["performance_metrics"]["loop_seconds"] = round(sum(told["step_times"]), 3)
    told.pop("conditions", None)  # those of the machine of the tests, which has no GPU
    for name in OF_CPU:
        told["provenance"]["environment"].pop(name, None)
    told["provenance"]["host"] = f"{platform}-1"
    make_consistent(told, {"learning_rates", "gpu_info__device_count"})
    return told


def log_told_of(result: Mapping[str, Any], log: str) -> str:
    """Return the log of Primus with the times of a result that was told, to the 0.1 ms that Primus prints."""
    times = dict(zip(result["steps"], result["step_times"], strict=True))

    def line(match: re.Match[str]) -> str:
        step = int(match["step"])
        return f"{match['before']}{1000 * times[step]:.1f}{match['after']}" if step in times else match[0]

    told = re.sub(
        r"(?P<before> iteration +(?P<step>\d+)/.*? elapsed time per iteration \(ms\): )[\d.]+(/[\d.]+)?(?P<after>.*)",
        line,
        log,
    )
    return re.sub(r" tokens/s/GPU inst/harmonic mean: [\d./]+ +\|", "", told)
