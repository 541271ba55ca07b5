"""Stand-ins for nvidia-smi and amd-smi: they answer from files in $FAKE_SMI and refuse what the vendors' tools refuse.

Usage: python smi_tools.py nvidia-smi|amd-smi ARGUMENT ...

Seen in: `nvidia-smi --help-query-gpu` and RETURN VALUE of nvidia-smi(1), drivers 470 to 580; issues with real output:
tutulino/Megaminer 235 ([Not Supported]), Quake4/MindMiner 627 ([Unknown Error]), plambe/zabbix-nvidia-smi-multi-gpu 17
(Field ... is not a valid field to query). ROCm/amdsmi, amdsmi_cli/amdsmi_commands.py (tags rocm-6.0.0 to rocm-6.2.2)
and amdsmi_cli_exceptions.py; ROCm/rocm-systems, amdsmi_cli/subcommands/static.py and pull request 2720 (real output,
all "N/A"); AMD SMI changelog.
"""

import json
import os
import sys
from pathlib import Path

FOLDER = Path(os.environ["FAKE_SMI"])
GOOD_FORMATS = ("--format=csv,noheader,nounits", "--format=csv,noheader")
OF_A_PROCESS = ["gpu_uuid", "pid", "used_memory", "process_name"]


def refuse(said: str, code: int) -> None:
    print(said)
    sys.exit(code)


def nvidia_smi(query: str, form: str) -> None:
    machine = json.loads((FOLDER / "nvidia.json").read_text())
    if "broken" in machine:
        refuse(machine["broken"], machine["code"])
    what, _, fields = query.partition("=")
    tables = {
        "--query-gpu": (machine["gpus"], machine["fields"]),
        "--query-compute-apps": (machine["processes"], OF_A_PROCESS),
    }
    if form not in GOOD_FORMATS or what not in tables:
        refuse("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", 2)
    rows, known = tables[what]
    for field in fields.split(","):
        if field not in known:
            refuse(f'Field "{field}" is not a valid field to query.\n', 2)
    if what == "--query-gpu" and not rows:
        refuse("No devices were found", 6)
    for row in rows:
        print(", ".join(row.get(field, "[N/A]") for field in fields.split(",")))


def amd_smi(command: str, option: str) -> None:
    broken, answer = FOLDER / "amd_broken", FOLDER / f"amd_{command}.json"
    if broken.exists():
        sys.exit(broken.read_text())
    if not answer.exists():
        refuse(f"Command '{command}' is invalid. Run '--help' for more info. Error code: -1", 255)
    if option != "--json":
        refuse(f"Parameter '{option}' is invalid. Run '--help' for more info. Error code: -2", 254)
    print(answer.read_text())


with (FOLDER / "calls").open("a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\n")
{"nvidia-smi": nvidia_smi, "amd-smi": amd_smi}[sys.argv[1]](*sys.argv[2:])
