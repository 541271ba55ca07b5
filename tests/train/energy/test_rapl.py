"""RAPL counters of processors in a made-up /sys, and the reasons where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from smi_stand_ins import of_processors

FOLDER = "sys/class/powercap"


def zones(root: Path, **names: str) -> Path:
    """Make a zone `intel-rapl:<key with _ as :>` for each name."""
    for key, name in names.items():
        zone = root / FOLDER / f"intel-rapl:{key[1:].replace('_', ':')}"
        zone.mkdir(parents=True)
        (zone / "name").write_text(f"{name}\n")
        (zone / "max_energy_range_uj").write_text("262143328850\n")
        (zone / "energy_uj").write_text("1000000\n")
    return root


@pytest.mark.parametrize("start_uj", [1e6, 262143328850 - 1.2e9])
def test_two_packages_of_150_and_50_watts_take_2000_joules_in_10_seconds(tmp_path, start_uj):
    # from the second start on, the counter of 150 W starts again after 8 s, in a steady step; parts do not count
    root = zones(tmp_path, z0="package-0", z0_0="core", z0_1="dram", z1="package-1", z2="psys")
    found = of_processors(root, {"package-0": 150.0, "package-1": 50.0}, start_uj)
    assert found["joules"] == pytest.approx(2000, abs=0.1) == found["counter_joules"] == found["cpu_joules"]
    assert found["avg_watts"] == pytest.approx(200, abs=0.1) and found["method"] == "cpu_rapl"
    assert found["source"] == "CPU RAPL counter of the processors (package-0, package-1), not the wall"
    assert found["integrated_joules"] is found["gpu_count"] is None
    assert found["reasons"]["integrated_joules"] == "RAPL has a counter and no power"


def test_machine_without_any_counter_has_null_energy_with_the_reason_and_the_use_of_its_cores(tmp_path):
    found = of_processors(tmp_path, {})
    assert found["joules"] is found["cpu_joules"] is found["source"] is None
    assert found["reasons"]["joules"] == found["reasons"]["idle_watts"]
    assert "the kernel shows no RAPL zone" in found["reasons"]["joules"]
    assert found["reasons"]["max_temperature_celsius"] == found["reasons"]["gpu_count"] == "no GPU"
    assert found["mean_cpu_use_percent"] is not None and found["sample_hz"] >= 10


def test_counter_that_only_root_may_read_is_a_reason_with_the_remedy(tmp_path, monkeypatch):
    root, read_text = zones(tmp_path, z0="package-0"), Path.read_text

    def refuse(path, *arguments, **options):
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    assert "only root may read" in of_processors(root, {"package-0": 1.0})["reasons"]["joules"]
