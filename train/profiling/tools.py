"""The tools around the profiled steps: torch.profiler, and the vendors' own of shell/profile.sh, nsys and rocprofv3.

torch.profiler records operators with shapes, kernels of the GPU, and a range for each step. The trace of a rank,
`rank<R>.json.gz`, is checked, compressed, and renamed when it is complete. The profiler is started once for nothing
before, because its first start loads the libraries of the device.

nsys wraps the launcher of the job (shell/profile.sh); a rank opens and closes its capture range. rocprofv3 must not
wrap torchrun, which owns no GPU: each recorded rank starts it, attached to itself. torch is imported on use.
"""

from __future__ import annotations

import ctypes
import gc
import gzip
import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from train.job.processes import wait_until
from train.profiling.recording import STEP, StepRecording
from utils.errors import ForeignFileError
from utils.files import temporary_beside, written_whole
from utils.provenance.digests import sha256_file
from utils.settings.profiling import Trace

MOST_MEMORY_EVENTS = 1_000_000
"""Allocations and frees that a snapshot keeps, the last ones; each takes some hundred bytes of host memory."""
NO_ALLOCATOR = "a CPU has no caching allocator; the trace has each allocation"
LEVEL = 6
"""Of gzip: Python's own default, 9, takes twice as long for 2 % less."""
_TAIL_BYTES = 4096
_PIECE_BYTES = 1 << 20


class TorchRecording(StepRecording):
    """Records with torch.profiler and writes `rank<R>.json.gz`, with PROFILE_MEMORY also `rank<R>_memory.pickle`."""

    _profiler: Any = None

    def start(self) -> None:
        """Start the profiler; one that cannot start (another one is active) is a reason, not an error."""
        import torch

        try:
            with _profiler(with_memory=False):  # its first start loads the libraries of the device
                torch.zeros(1, device="cuda" if torch.cuda.is_available() else "cpu").add_(1)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
            self._profiler = _profiler(with_memory=self.profile.with_memory)
            gc.collect()  # not inside of a profiled step
            if self.profile.with_memory and torch.cuda.is_available():
                torch.cuda.memory._record_memory_history(max_entries=MOST_MEMORY_EVENTS)
            self._profiler.start()
        except RuntimeError as error:
            self._profiler = None
            self.miss(self.name, f"torch.profiler cannot start: {error}")

    def begin_step(self, number: int) -> None:
        """Open the range of a step."""
        if self._profiler is None:
            return
        from torch.profiler import record_function

        self._marks.enter_context(record_function(f"{STEP}{number}"))

    def stop_tool(self) -> None:
        """Stop the profiler and write its files."""
        if self._profiler is None:
            return
        self._profiler.stop()
        # a full disk is known here first
        try:
            self.trace = write_trace(self._profiler, self.folder / f"{self.name}.json.gz")
        except (OSError, RuntimeError, ForeignFileError) as error:
            self.miss(self.name, error)
        if self.profile.with_memory:
            self._write_memory()
        self._profiler = None

    def _write_memory(self) -> None:
        import torch

        name = f"{self.name}_memory"
        if not torch.cuda.is_available():
            self.reasons[name] = NO_ALLOCATOR
            return
        try:
            with written_whole(self.folder / f"{name}.pickle") as (temporary,):
                torch.cuda.memory._dump_snapshot(str(temporary))
        except (OSError, RuntimeError, ForeignFileError) as error:
            self.miss(name, error)
        torch.cuda.memory._record_memory_history(enabled=None)


def _profiler(*, with_memory: bool) -> Any:
    """Return a profiler of the CPU and, where there is one, the GPU (CUDA and ROCm have the same name in torch)."""
    import torch
    from torch.profiler import ProfilerActivity

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    # there is one cycle; `acc_events` only keeps torch from warning that events of earlier ones are dropped
    return torch.profiler.profile(
        activities=activities, record_shapes=True, profile_memory=with_memory, acc_events=True
    )


class TraceError(RuntimeError):
    """torch.profiler wrote no complete trace; the message states the file."""


def write_trace(profiler: Any, path: Path) -> Trace:
    """Write the trace of a stopped profiler to `path` and return its name and digest.

    Raises OSError where the disk refuses, and TraceError for a trace that is cut off: torch's C++ writer does not
    report a full disk.
    """
    plain = temporary_beside(path)
    try:
        with written_whole(path) as (temporary,):
            profiler.export_chrome_trace(str(plain))
            require_whole(plain)
            compress(plain, temporary)
    finally:
        plain.unlink(missing_ok=True)
    return Trace(path.name, sha256_file(path))


def compress(source: Path, target: Path) -> None:
    """Write `source`, compressed with gzip, over `target`; equal content gives equal bytes."""
    with source.open("rb") as plain, target.open("wb") as file, gzip.GzipFile("", "wb", LEVEL, file, 0) as compressed:
        shutil.copyfileobj(plain, compressed, _PIECE_BYTES)


def require_whole(path: Path) -> None:
    """Raise TraceError unless a trace in JSON is there and has its end."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read().rstrip()
    except FileNotFoundError:
        size, tail = 0, b""
    # a list of events that was cut off ends with an event and a comma, or inside of one (libkineto, output_json.cpp)
    if not tail.endswith(b"}") or b'"traceName"' not in tail:
        raise TraceError(f"{path.parent}: torch.profiler wrote no complete trace ({size:,} bytes); is the disk full?")


ATTACH_SECONDS, DETACH_SECONDS = 120.0, 600.0
"""Longest time until rocprofv3 is in the process, and until it has written its files."""
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

    _operators = ExitStack()

    def start(self) -> None:
        """Open the capture range."""
        import torch

        torch.cuda.profiler.start()
        self._operators.enter_context(torch.autograd.profiler.emit_nvtx(record_shapes=True))

    def begin_step(self, number: int) -> None:
        """Open the range of a step."""
        import torch

        self._marks.enter_context(torch.cuda.nvtx.range(f"{STEP}{number}"))

    def stop_tool(self) -> None:
        """Close the capture range; nsys writes its report when the job has ended."""
        import torch

        self._operators.close()
        torch.cuda.profiler.stop()


class RocprofRecording(StepRecording):
    """Attaches rocprofv3 to this process for the profiled steps.

    Options: ROCprofiler-SDK 7.13 and 10.2, "Dynamic process attachment using rocprofv3". The process must have been
    started with ROCP_TOOL_ATTACH=1 (train/launch.py).
    """

    _tool: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start rocprofv3 and wait until it is in this process; without it the training goes on."""
        folder = self.folder / FOLDER
        try:
            folder.mkdir(parents=True, exist_ok=True)
            ctypes.CDLL(None).prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)
            command = [ROCPROFV3, "--attach", str(os.getpid()), "--attach-sync-output"]
            command += [
                "--kernel-trace",
                "--hip-runtime-trace",
                "--memory-copy-trace",
                "--marker-trace",
                "--rccl-trace",
            ]
            command += ["--output-format", "pftrace", "csv", "--output-directory", str(folder)]
            tool = subprocess.Popen([*command, "--output-file", self.name], stdin=subprocess.PIPE)
        except OSError as error:
            self.miss(self.name, f"{ROCPROFV3} cannot be started: {error}")
            return
        # it attaches from outside and says nothing when it has
        wait_until(lambda: _is_attached() or tool.poll() is not None, ATTACH_SECONDS)
        if _is_attached():
            self._tool = tool
        else:
            code = tool.poll()
            _end(tool)
            how = f"within {ATTACH_SECONDS:g} s" if code is None else f"and ended with exit code {code}"
            self.miss(self.name, f"{ROCPROFV3} did not attach {how}; its message is above; see docs/why.md")

    def stop_tool(self) -> None:
        """Detach rocprofv3, which then writes its files."""
        if self._tool is None:
            return
        try:
            self._tool.communicate(b"\n", timeout=DETACH_SECONDS)  # Enter detaches
        except subprocess.TimeoutExpired:
            self.miss(self.name, f"{ROCPROFV3} did not detach within {DETACH_SECONDS:g} s")
        else:
            if code := self._tool.returncode:
                self.miss(self.name, f"{ROCPROFV3} ended with exit code {code}; its message is above")
        _end(self._tool)


RECORDINGS: dict[str, type[StepRecording]] = {
    "torch": TorchRecording,
    "nsys": NsysRecording,
    "rocprofv3": RocprofRecording,
}
"""Recording of each tool of utils/settings/profiling.py."""


def _end(tool: subprocess.Popen[bytes]) -> None:
    """End the tool if it still runs."""
    tool.kill()
    tool.wait()


def _is_attached() -> bool:
    return LIBRARY in MAPS.read_text(encoding="utf8", errors="replace")
