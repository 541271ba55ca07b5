"""A stand-in for rocm-smi: prints $FAKE_SMI/rocm.json, and refuses what AMD's would refuse (argparse, exit code 2).

Seen in: ROCm/rocm_smi_lib, python_smi_tools/rocm_smi.py (2024): formatJson, showPids, showMaxPower, showCurrentClocks;
ROCm/legacy-rocm-build issue 5231 (MI300X); RainbowMiner issue 749 (the keys of 2019 are those of today).
"""

import os
import sys
from pathlib import Path

KNOWN = (
    *("--showproductname", "--showbus", "--showmeminfo", "vram", "--showuse", "--showpower", "--showmaxpower"),
    *("--showclocks", "--showtemp", "--showperflevel", "--showdriverversion", "--showpids", "--showid", "--json"),
)


def main() -> None:
    folder = Path(os.environ["FAKE_SMI"])
    with (folder / "calls").open("a") as calls:
        calls.write(" ".join(["rocm-smi", *sys.argv[1:]]) + "\n")
    unknown = [argument for argument in sys.argv[1:] if argument not in KNOWN]
    if unknown:
        print(f"rocm-smi: error: unrecognized arguments: {' '.join(unknown)}", file=sys.stderr)
        sys.exit(2)
    if not (folder / "rocm.json").exists():
        print("ERROR:root:Driver not initialized (amdgpu not found in modules)", file=sys.stderr)
        sys.exit(1)
    if sys.argv[1:] == ["--showid"]:
        print("GPU[0]\t\t: Device Name: \t\tAMD Instinct MI300X")
        return
    print((folder / "rocm.json").read_text())


main()
