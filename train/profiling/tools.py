"""The vendors' own profilers around the profiled steps, which shell/profile.sh uses: nsys and rocprofv3.

nsys wraps the launcher of the job (shell/profile.sh); a rank opens and closes its capture range. rocprofv3 must not
wrap torchrun, which owns no GPU: each recorded rank starts it, attached to itself. torch is imported on use.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from train.profiling.recording import STEP, StepRecording
from train.profiling.torch_recording import TorchRecording

ATTACH_SECONDS, DETACH_SECONDS = 120.0, 600.0
"""Longest time until rocprofv3 is in the process, and until it has written its files."""
POLL_SECONDS = 0.05
ROCPROFV3 = "rocprofv3"
FOLDER = "rocprofv3"
"""Folder of its files in that of the profile."""
MAPS = Path("/proc/self/maps")
LIBRARY = "rocprofiler-sdk-tool"
"""Part of the name of the library that rocprofv3 loads into the process it is attached to."""
PR_SET_PTRACER, PR_SET_PTRACER_ANY = 0x59616D61, ctypes.c_ulong(-1)
"""prctl(2): a child may trace this process also where Yama's ptrace_scope is 1."""


class NsysRecording(StepRecording):
    """Opens the capture range of nsys (cudaProfilerStart) and names steps and operators by NVTX ranges."""

    _operators: Any = None

    def start_tool(self) -> None:
        """Open the capture range."""
        import torch

        torch.cuda.profiler.start()
        self._operators = torch.autograd.profiler.emit_nvtx(record_shapes=True)
        self._operators.__enter__()

    def begin_step(self, number: int) -> None:
        """Open the range of a step."""
        if self.is_recorded:
            import torch

            torch.cuda.nvtx.range_push(f"{STEP}{number}")

    def end_step(self) -> None:
        """Close the range of the step."""
        if self.is_recorded:
            import torch

            torch.cuda.nvtx.range_pop()

    def stop_tool(self) -> None:
        """Close the capture range; nsys writes its report when the job has ended."""
        import torch

        self._operators.__exit__(None, None, None)
        torch.cuda.profiler.stop()


class RocprofRecording(StepRecording):
    """Attaches rocprofv3 to this process for the profiled steps.

    Options: ROCprofiler-SDK 7.13 and 10.2, "Dynamic process attachment using rocprofv3". The process must have been
    started with ROCP_TOOL_ATTACH=1 (train/launch.py).
    """

    _tool: subprocess.Popen[bytes] | None = None

    def start_tool(self) -> None:
        """Start rocprofv3 and wait until it is in this process; without it the training goes on."""
        folder = self.folder / FOLDER
        try:
            folder.mkdir(parents=True, exist_ok=True)
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)
            self._tool = subprocess.Popen(attach_command(os.getpid(), folder, self.name), stdin=subprocess.PIPE)
        except OSError as error:
            self.miss(self.name, f"{ROCPROFV3} cannot be started: {error}")
            return
        until = time.monotonic() + ATTACH_SECONDS
        while not _is_attached() and self._tool.poll() is None and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        if not _is_attached():
            code = self._tool.poll()
            self._end(self._tool)
            how = f"within {ATTACH_SECONDS:g} s" if code is None else f"and ended with exit code {code}"
            self.miss(self.name, f"{ROCPROFV3} did not attach {how}; its message is above; see docs/profiles.md")

    def stop_tool(self) -> None:
        """Detach rocprofv3, which then writes its files."""
        if self._tool is None:
            return
        tool = self._tool
        try:
            tool.communicate(b"\n", timeout=DETACH_SECONDS)  # Enter detaches
        except subprocess.TimeoutExpired:
            self.miss(self.name, f"{ROCPROFV3} did not detach within {DETACH_SECONDS:g} s")
        else:
            if tool.returncode:
                self.miss(self.name, f"{ROCPROFV3} ended with exit code {tool.returncode}; its message is above")
        self._end(tool)

    def _end(self, tool: subprocess.Popen[bytes]) -> None:
        if tool.poll() is None:
            tool.kill()
            tool.wait()
        self._tool = None


RECORDINGS: dict[str, type[StepRecording]] = {
    "torch": TorchRecording,
    "nsys": NsysRecording,
    "rocprofv3": RocprofRecording,
}
"""Recording of each tool of utils/settings/profiling.py."""


def attach_command(process: int, folder: Path, name: str) -> list[str]:
    """Return the command that attaches rocprofv3 to a process until it reads Enter; its files begin with `name`."""
    return [
        *(ROCPROFV3, "--attach", str(process), "--attach-sync-output"),
        *("--kernel-trace", "--hip-runtime-trace", "--memory-copy-trace", "--marker-trace", "--rccl-trace"),
        *("--output-format", "pftrace", "csv", "--output-directory", str(folder), "--output-file", name),
    ]


def _is_attached() -> bool:
    return LIBRARY in MAPS.read_text(encoding="utf8", errors="replace")
