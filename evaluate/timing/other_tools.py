"""Tables of two other readers of traces, shown where they are installed: TraceLens and HolisticTraceAnalysis.

TraceLens is AMD's (github.com/AMD-AGI/TraceLens, read at commit 171dd74); the package of that name on PyPI is another
project. HolisticTraceAnalysis is Meta's (PyPI: HolisticTraceAnalysis 0.5.0). Each runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

TIMEOUT_SECONDS = 1800
TOOLS = {
    "tracelens": (
        "TraceLens",
        "TraceLens (time of the GPU)",
        "import sys, TraceLens\n"
        "print(TraceLens.TreePerfAnalyzer.from_file(sys.argv[1]).get_df_gpu_timeline().to_string(index=False))",
    ),
    "hta": (
        "hta",
        "HolisticTraceAnalysis (temporal breakdown)",
        "import sys; from hta.trace_analysis import TraceAnalysis\n"
        "found = TraceAnalysis(trace_files={0: sys.argv[1]}, include_last_profiler_step=True)\n"
        "print(found.get_temporal_breakdown(visualize=False).to_string(index=False))",
    ),
}
"""Module, title and program of each tool; the program prints a table for the trace in its first argument."""
_INSTALL = {
    "tracelens": "pip install git+https://github.com/AMD-AGI/TraceLens",
    "hta": "pip install HolisticTraceAnalysis",
}


def tables(tool: str, path: Path) -> list[tuple[str, str]]:
    """Return title and table of `tool` for a trace; none, with one line on stderr, where it is missing or fails."""
    module, title, program = TOOLS[tool]
    if importlib.util.find_spec(module) is None:
        print(f"warning: {module} is not installed here, so its table is left out; {_INSTALL[tool]}", file=sys.stderr)
        return []
    try:
        ran = subprocess.run(
            [sys.executable, "-c", program, str(path.absolute())],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        print(f"warning: {module} did not end within {TIMEOUT_SECONDS} s for {path}", file=sys.stderr)
        return []
    if ran.returncode:
        said = (ran.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"warning: {module} failed for {path}: {said}", file=sys.stderr)
        return []
    return [(f"{title}, {path}", ran.stdout.rstrip())]
