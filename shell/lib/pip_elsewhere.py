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
"""Minor version of glibc 2 that a GPU machine has at least: Ubuntu 20.04 has 2.31, RHEL 8 has 2.28."""
OLDEST_GLIBC = 5
"""The oldest tag, once named manylinux1 (PEP 600)."""

PLAIN_PACKAGES = ("filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy", "typing-extensions")
"""All that torch 2.13.0 requires (its METADATA) but CUDA and triton. Python 3.11 and earlier put a setuptools into every new
environment that is too old for this torch and hides that of the machine."""


def values_of_markers(python: str, machine: str) -> dict[str, str]:
    """Return the values of all environment markers that differ between machines (PEP 508), for CPython on Linux."""
    return {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def run_pip(python: str, machine: str, arguments: list[str]) -> int:
    """Run a command of pip for a Python (`3.12`) and a machine (`x86_64`); return pip's exit code."""
    # pip has no option for it, and no other interface either
    markers = importlib.import_module("pip._vendor.packaging.markers")
    here = markers.default_environment
    markers.default_environment = lambda: here() | values_of_markers(python, machine)

    options = ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    for minor in range(NEWEST_GLIBC, OLDEST_GLIBC - 1, -1):
        options.append(f"--platform=manylinux_2_{minor}_{machine}")
    options.append(f"--platform=manylinux2014_{machine}")  # pip adds the two older names itself
    code: int = importlib.import_module("pip._internal.cli.main").main([*arguments, *options])
    return code


def write_torch(version: str, folder: Path) -> None:
    """Write a wheel of torch without content that requires plain packages: pip then takes neither torch nor CUDA."""
    name = f"torch-{version}+{OWN}"
    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
        metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}+{OWN}\n"
        for package in PLAIN_PACKAGES:
            metadata += f"Requires-Dist: {package}\n"
        wheel.writestr(f"{name}.dist-info/METADATA", metadata)
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")


def main() -> int:
    """Run the command line; return its exit code."""
    first, second, *rest = sys.argv[1:]
    if first == "torch":
        write_torch(second, Path(rest[0]))
        return 0
    return run_pip(first, second, rest)


if __name__ == "__main__":
    sys.exit(main())
