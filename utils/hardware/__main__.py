"""Print the devices of this machine, or the table of devices with known peaks, as JSON.

    python -m utils.hardware [--table]

PLATFORM=amd, nvd or cpu in the environment sets the expected platform. Exits 0, or 2 if the machine is another one.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from utils.arguments import Parser, refusing, run
from utils.hardware.detect import HardwareError, detect_platform, gpu_info, visible_gpus
from utils.hardware.devices import DEVICES


@refusing((HardwareError,), (OSError,), interrupted="")
def main(arguments: list[str] | None = None) -> int:
    """Print this machine's `gpu_info`, or the device table, as JSON; return the exit code."""
    parser = Parser(
        {"--table": {"action": "store_true", "help": "print the devices whose peaks are known, with sources"}},
        prog="python -m utils.hardware",
        description="Print the devices of this machine as JSON: the gpu_info section of its results.",
        epilog="PLATFORM=amd, nvd or cpu in the environment sets the expected platform. Exits 0, or 2 for another one.",
    )
    if parser.parse_args(arguments).table:
        print(json.dumps([asdict(device) for device in DEVICES], indent=1))
        return 0
    platform = detect_platform(os.environ)
    count = 1 if platform == "cpu" else visible_gpus(platform) or 0
    print(json.dumps(gpu_info(platform, count), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
