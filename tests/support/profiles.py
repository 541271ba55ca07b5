"""Profiles of made-up runs: `profiles/<job>/profile.json` and a trace beside it, as PROFILING=true writes them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from made_traces import MadeTrace

STEP = 1e-3
TYPES = {"Input type": ["c10::BFloat16", "c10::BFloat16"]}


def made_trace(
    path: Path,
    *,
    product: str = "nvjet_tst",
    microseconds: int = 100,
    idle_microseconds: int = 650,
    device: str = "<b>made up</b>",
) -> Path:
    """Write one step: a product of `microseconds`, 200 of a reduction, 50 of exposed communication, the rest idle."""
    it = MadeTrace(deviceProperties=[{"id": 0, "name": device}])
    it.step(3, 0, 250 + microseconds + idle_microseconds)
    it.op("aten::mm", 0, 20, **{"Input Dims": [[4096, 1024], [1024, 4096]], **TYPES})
    it.kernel(product, 100, microseconds, launched=5)
    it.op("aten::sum", 20, 10, **{"Input Dims": [[4096, 4096]]})
    it.kernel("at::native::reduce_kernel", 400, 200, launched=25)
    it.kernel("ncclDevKernel_AllReduce", 580, 70, stream=20)
    return it.write(path)


def write_profile(folder: Path, result: dict[str, Any], trace: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Write the profile of a job whose run is `result`; return its folder.

    `trace` has the arguments of `made_trace`, and `changes` replace keys of profile.json.
    """
    place = folder / "profiles" / f"profiled_train_{result['platform']}_mega_llama_run1_attempt1"
    place.mkdir(parents=True)
    path = made_trace(place / "rank0.json.gz", **(trace or {}))
    content = {
        "profile_version": 1,
        **{key: result[key] for key in ("platform", "framework", "model", "model_size", "run")},
        "host": result["provenance"]["host"],
        "device_name": result["gpu_info"]["device_name"],
        "started_utc": result["provenance"]["started_utc"],
        "reasons": {},
        "settings": result["training_config"],
        "steps": [3],
        "ranks": [0],
        "traces": {"0": {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}},
        "profiled_step_seconds": [STEP],
        "unprofiled_step_seconds": 0.8 * STEP,
    }
    (place / "profile.json").write_text(json.dumps(content | changes))
    return place
