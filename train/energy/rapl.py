"""Energy of the processors of this machine: the RAPL counters of Linux, read where they exist and may be read.

Source: Linux, Documentation/power/powercap/powercap.rst: `energy_uj` of each package zone `intel-rapl:N` (Intel, and
AMD's EPYC and Ryzen under the same name), which starts again at `max_energy_range_uj`. Only packages are counted: they
contain the cores; DRAM is a zone of its own and is left out. zeus.device.cpu reads the same files, but starts a process
for each of them to watch for the wrap, which the sampler sees for itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

FOLDER = "sys/class/powercap"
NO_RAPL = (
    "the kernel shows no RAPL zone in /sys/class/powercap (usual in a virtual machine and in containers; on a machine "
    "of your own: modprobe intel_rapl_common intel_rapl_msr)"
)
NO_PERMISSION = (
    "RAPL is there, but only root may read {}; as root: chmod -R a+r /sys/class/powercap/intel-rapl* (until the next "
    "boot)"
)


class RaplError(RuntimeError):
    """The energy of the processors cannot be read; the message contains the reason and the remedy."""


@dataclass(frozen=True)
class Package:
    """One processor package and its counter."""

    name: str
    path: Path
    wraps_uj: float
    """Value at which the counter starts again, microjoules."""

    def read_uj(self) -> float | None:
        """Return the counter in microjoules; None if it cannot be read this time."""
        try:
            return float(self.path.read_text())
        except (OSError, ValueError):
            return None


def packages(root: Path | None = None) -> list[Package]:
    """Return the packages of this machine; raise RaplError if there are none or they cannot be read.

    `root` is the parent of /sys (tests); default: TPRIMAT_SYSROOT or the real root.
    """
    top = root or Path(os.environ.get("TPRIMAT_SYSROOT") or "/")
    found = []
    for zone in sorted(top.glob(f"{FOLDER}/intel-rapl:*")):
        if zone.name.count(":") != 1:
            continue  # a part of a package
        counter = zone / "energy_uj"
        try:
            name = (zone / "name").read_text().strip()
            wraps_uj = float((zone / "max_energy_range_uj").read_text())
            float(counter.read_text())
        except PermissionError as error:
            raise RaplError(NO_PERMISSION.format(counter)) from error
        except (OSError, ValueError) as error:
            raise RaplError(f"RAPL: {zone} cannot be read: {error}") from error
        if name.startswith("package"):  # not psys, which contains the packages
            found.append(Package(name, counter, wraps_uj))
    if not found:
        raise RaplError(NO_RAPL)
    return found
