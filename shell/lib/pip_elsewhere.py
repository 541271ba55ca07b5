"""pip for another Python and another machine; run by shell/lib/wheels.sh.

    python pip_elsewhere.py 3.12 x86_64 download ...     pip's own arguments follow
    python pip_elsewhere.py torch 2.13.0 FOLDER          write the wheel that stands for the torch of that machine

`pip download --python-version 3.12` takes the wheels of that Python, but it evaluates the markers of requirements
(`numpy; python_version < "3.11"`) for the Python that runs it (https://github.com/pypa/pip/issues/11198). The packages
would be those of two Pythons. Here pip gets the values of the other machine.
"""

from __future__ import annotations

import importlib
import sys
import zipfile
from pathlib import Path

OWN = "your.own"
"""Local version of the wheel without content: later than those of all builds (cpu, cu130, rocm7.0, xpu)."""
NEWEST_GLIBC = 28
"""Minor version of glibc 2 that a GPU machine has at least: RHEL 8 has 2.28, Ubuntu 20.04 has 2.31. The oldest tag is
that of 2.5, once named manylinux1 (PEP 600)."""
METADATA = """Metadata-Version: 2.1
Name: torch
Version: {version}
Requires-Dist: filelock
Requires-Dist: fsspec
Requires-Dist: jinja2
Requires-Dist: networkx
Requires-Dist: setuptools
Requires-Dist: sympy
Requires-Dist: typing-extensions
"""
"""All that torch 2.13.0 requires but CUDA and triton. Python 3.11 and earlier put a setuptools into every new
environment that is too old for this torch and hides that of the machine."""
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def run_pip(python: str, machine: str, arguments: list[str]) -> int:
    """Run a command of pip for a Python (`3.12`) and a Linux machine (`x86_64`); return pip's exit code."""
    values = {"platform_machine": machine, "python_full_version": f"{python}.0", "python_version": python}
    # pip has no option for the values of markers (PEP 508), and no other interface
    markers = importlib.import_module("pip._vendor.packaging.markers")
    here = markers.default_environment
    markers.default_environment = lambda: here() | values

    options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    for minor in range(NEWEST_GLIBC, 4, -1):
        options.append(f"--platform=manylinux_2_{minor}_{machine}")
    options.append(f"--platform=manylinux2014_{machine}")  # pip adds the two older names itself
    code: int = importlib.import_module("pip._internal.cli.main").main(arguments + options)
    return code


def write_torch(version: str, folder: Path) -> None:
    """Write a wheel of torch without content that requires plain packages: pip then takes neither torch nor CUDA."""
    name = f"torch-{version}"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.dist-info/METADATA", METADATA.format(version=version))
        wheel.writestr(f"{name}.dist-info/WHEEL", WHEEL)
        wheel.writestr(f"{name}.dist-info/RECORD", "")


def main() -> int:
    """Run the command line; return its exit code."""
    first, second, *rest = sys.argv[1:]
    if first == "torch":
        write_torch(f"{second}+{OWN}", Path(rest[0]))
        return 0
    return run_pip(first, second, rest)


if __name__ == "__main__":
    sys.exit(main())
