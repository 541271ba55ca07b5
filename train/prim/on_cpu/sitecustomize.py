"""Redirects CUDA to the CPU in each rank of Primus. Python imports this file at start-up from PYTHONPATH.

Only processes of torchrun have LOCAL_RANK. The modules are loaded by their paths, because the root of this suite must
not be on the path of Primus, which has `train` and `utils` of its own.
"""

import importlib.util
import os
from pathlib import Path
from typing import Any


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"tprimat_{path.parent.name}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if "LOCAL_RANK" in os.environ:
    _prim = Path(__file__).resolve().parents[1]
    _load(_prim.parent / "mega" / "cpu.py").redirect()
    _load(_prim / "on_cpu" / "redirect.py").redirect()
