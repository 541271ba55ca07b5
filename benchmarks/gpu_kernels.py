"""The kernels of one training step: the job of a trainer, with torch's profiler around one steady step.

    python -m torch.distributed.run --standalone --nproc-per-node 1 -m benchmarks.gpu_kernels --kernels OUT.json \\
        --framework mega|hf --platform nvd|amd|cpu --model llama [KEY=VALUE ...]

It runs the trainer's own `main` on one rank; only the recorder is replaced by one that profiles step PROFILED. OUT.json
holds a list of {name, count, seconds}, the longest first: kernels of the GPU, on a CPU the operators of torch. The
names show which attention, norm and matrix kernels ran. The step is slower than without a profiler: its result has the
label of the caller and is no measurement of speed.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from train.common import trainer
from train.job.recorder import StepRecorder
from utils.arguments import Parser, run

PROFILED = 4
"""Number of the profiled step, from 1: the first ones compile and allocate."""
MICRO = 1e-6


class ProfilingRecorder:
    """A StepRecorder's stand-in that forwards everything to it and profiles one step."""

    def __init__(self, recorder: StepRecorder, path: Path) -> None:
        self._recorder, self._path, self._steps = recorder, path, 0
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
        self._profile = profile(activities=activities)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._recorder, name)

    def end_step(self, **values: Any) -> None:
        """Record the step; start the profiler before step PROFILED and write the kernels after it."""
        self._recorder.end_step(**values)
        self._steps += 1
        if self._steps == PROFILED - 1:
            self._profile.start()
        elif self._steps == PROFILED:
            self._profile.stop()
            self._path.write_text(json.dumps(kernels(self._profile), indent=1), encoding="utf8")


def kernels(profiled: profile) -> list[dict[str, Any]]:
    """Return name, count and seconds of each kernel (on a CPU: of each operator, without those that it called)."""
    on_gpu = torch.cuda.is_available()
    found = []
    for event in profiled.key_averages():
        if on_gpu and event.device_type == torch.autograd.DeviceType.CPU:
            continue
        seconds = (event.self_device_time_total if on_gpu else event.self_cpu_time_total) * MICRO
        if seconds > 0:
            found.append({"name": event.key, "count": event.count, "seconds": round(seconds, 6)})
    return sorted(found, key=lambda kernel: -kernel["seconds"])


def main() -> int:
    """Run one job with the profiling recorder."""
    parser = Parser(prog="python -m benchmarks.gpu_kernels", description=__doc__)
    parser.add_argument("--kernels", type=Path, required=True, help="file to write, .json")
    parser.add_argument("--framework", required=True, choices=("mega", "hf"))
    options, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    of_trainer = trainer.recorder
    trainer.recorder = lambda *arguments: ProfilingRecorder(of_trainer(*arguments), options.kernels)  # type: ignore[assignment,return-value]
    return int(importlib.import_module(f"train.train_{options.framework}").main())


if __name__ == "__main__":
    sys.exit(run(main))
