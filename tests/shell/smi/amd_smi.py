"""A stand-in for amd-smi: prints $FAKE_SMI/amd_<command>.json, and refuses what AMD's would refuse.

Seen in: ROCm/amdsmi, amdsmi_cli/amdsmi_commands.py (tags rocm-6.0.0 to rocm-6.2.2) and amdsmi_cli_exceptions.py;
ROCm/rocm-systems, amdsmi_cli/subcommands/static.py and pull request 2720 (real output, all "N/A"); AMD SMI changelog.
"""

import os
import sys
from pathlib import Path

COMMANDS = ("static", "metric", "process")


def main() -> None:
    folder = Path(os.environ["FAKE_SMI"])
    with (folder / "calls").open("a") as calls:
        calls.write(" ".join(["amd-smi", *sys.argv[1:]]) + "\n")
    broken = folder / "amd_broken"
    if broken.exists():
        sys.exit(broken.read_text())
    if sys.argv[1:] == ["list"]:
        print("GPU: 0\n    BDF: 0000:05:00.0")
        return
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        print(f"Command '{' '.join(sys.argv[1:2])}' is invalid. Run '--help' for more info. Error code: -1")
        sys.exit(255)
    if sys.argv[2:] != ["--json"]:
        print(f"Parameter '{' '.join(sys.argv[2:])}' is invalid. Run '--help' for more info. Error code: -2")
        sys.exit(254)
    print((folder / f"amd_{sys.argv[1]}.json").read_text())


main()
