"""Redirects CUDA to the CPU in each rank of Primus. Python imports this file at start-up from PYTHONPATH.

Only processes of torchrun have LOCAL_RANK. train/mega/cpu.py is run by its path, because the root of this suite must
not be on the path of Primus, which has `train` and `utils` of its own.
"""

import os
import runpy
from pathlib import Path

if "LOCAL_RANK" in os.environ:
    runpy.run_path(str(Path(__file__).resolve().parents[2] / "mega" / "cpu.py"))["redirect_primus"]()
