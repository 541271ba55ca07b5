"""A stand-in for nvidia-smi: answers from $FAKE_SMI/nvidia.json, and refuses what that driver's would refuse.

Seen in: `nvidia-smi --help-query-gpu` and RETURN VALUE of nvidia-smi(1), drivers 470 to 580; issues with real output:
tutulino/Megaminer 235 ([Not Supported]), Quake4/MindMiner 627 ([Unknown Error]), plambe/zabbix-nvidia-smi-multi-gpu 17
(Field ... is not a valid field to query).
"""

import json
import os
import sys
from pathlib import Path

GOOD_FORMATS = ("--format=csv,noheader,nounits", "--format=csv,noheader")


def refuse(said: str, code: int) -> None:
    print(said)
    sys.exit(code)


def main() -> None:
    machine = json.loads((Path(os.environ["FAKE_SMI"]) / "nvidia.json").read_text())
    with (Path(os.environ["FAKE_SMI"]) / "calls").open("a") as calls:
        calls.write(" ".join(["nvidia-smi", *sys.argv[1:]]) + "\n")
    if "broken" in machine:
        refuse(machine["broken"], machine["code"])
    arguments = sys.argv[1:]
    if arguments == ["-L"]:
        for gpu in machine["gpus"]:
            print(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})")
        return
    if len(arguments) != 2 or arguments[1] not in GOOD_FORMATS:
        refuse("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", 2)
    what, _, fields = arguments[0].partition("=")
    if what == "--query-gpu":
        rows = machine["gpus"]
    elif what == "--query-compute-apps":
        rows = machine["processes"]
    else:
        refuse(f"Option \"{what}\" is not recognized. Please run 'nvidia-smi -h'.\n", 2)
    known = machine["fields"] if what == "--query-gpu" else ["gpu_uuid", "pid", "used_memory", "process_name"]
    for field in fields.split(","):
        if field not in known:
            refuse(f'Field "{field}" is not a valid field to query.\n', 2)
    if what == "--query-gpu" and not rows:
        refuse("No devices were found", 6)
    for row in rows:
        print(", ".join(row.get(field, "[N/A]") for field in fields.split(",")))


main()
