"""RAPL counters of processors in a made-up /sys, and the reasons where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest
from smi_stand_ins import Clock, ten_steps

from train.energy import rapl, sampler, section
from train.energy.sample_file import NodeSamples


def zones(root: Path, **names: str) -> Path:
    """Make a zone `intel-rapl:<key with _ as :>` for each name."""
    for key, name in names.items():
        zone = root / rapl.FOLDER / f"intel-rapl:{key[1:].replace('_', ':')}"
        zone.mkdir(parents=True)
        (zone / "name").write_text(f"{name}\n")
        (zone / "max_energy_range_uj").write_text("262143328850\n")
        (zone / "energy_uj").write_text("1000000\n")
    return root


def test_only_packages_count_not_their_parts_and_not_what_contains_them(tmp_path):
    root = zones(tmp_path, z0="package-0", z0_0="core", z0_1="dram", z1="package-1", z2="psys")
    assert [package.name for package in rapl.packages(root)] == ["package-0", "package-1"]


def test_machine_without_rapl_is_a_reason(tmp_path):
    with pytest.raises(rapl.RaplError, match="the kernel shows no RAPL zone .*virtual machine"):
        rapl.packages(tmp_path)


def test_counter_that_only_root_may_read_is_a_reason_with_the_remedy(tmp_path, monkeypatch):
    root = zones(tmp_path, z0="package-0")
    read_text = Path.read_text

    def refuse(path, *arguments, **options):
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(rapl.RaplError, match="only root may read .*chmod"):
        rapl.packages(root)


def sampled(root: Path, watts: dict[str, float], start_uj: float = 1e6) -> NodeSamples:
    """Return samples of 12 s of processors that draw `watts`."""
    time = Clock()
    sources = sampler.Sources((), rapl.packages(root), reasons={"gpus": "no GPU"})
    ticks, taken = sampler.Ticks(sources, time.now), []

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        for package in sources.packages:
            counted = (start_uj + 1e6 * watts[package.name] * time.seconds) % package.wraps_uj
            package.path.write_text(f"{counted:.0f}\n")

    sleep(0.0)
    sampler.sample_until(lambda: time.seconds >= 12, ticks, lambda sample, _: taken.append(sample), time.now, sleep)
    options = type("Options", (), {"platform": "cpu", "node": 0})()
    header = sampler.header(options, sources)
    return NodeSamples(header, taken, None, dict(header["reasons"]))


@pytest.mark.parametrize("start_uj", [1e6, 262143328850 - 1.2e9])
def test_two_packages_of_150_and_50_watts_take_1400_joules_in_7_seconds(tmp_path, start_uj):
    # from the second start on, the counter of 150 W starts again after 8 s, in a steady step
    node = sampled(zones(tmp_path, z0="package-0", z1="package-1"), {"package-0": 150.0, "package-1": 50.0}, start_uj)
    result, steps = ten_steps("cpu", 1)
    found = section.of_job([node], result, steps)
    assert found["joules"] == pytest.approx(1400, abs=0.1) == found["counter_joules"] == found["cpu_joules"]
    assert found["avg_watts"] == pytest.approx(200, abs=0.1) and found["method"] == "cpu_rapl"
    assert found["source"] == "CPU RAPL counter of the processors (package-0, package-1), not the wall"
    assert found["integrated_joules"] is found["gpu_count"] is None
    assert found["reasons"]["integrated_joules"] == "RAPL has a counter and no power"


def test_machine_without_any_counter_has_null_energy_with_the_reason_and_the_use_of_its_cores(tmp_path):
    time, taken = Clock(), []
    sources = sampler.Sources(reasons={"gpus": "no GPU", "rapl": rapl.NO_RAPL})
    ticks = sampler.Ticks(sources, time.now)
    sampler.sample_until(
        lambda: time.seconds >= 12, ticks, lambda sample, _: taken.append(sample), time.now, time.sleep
    )
    options = type("Options", (), {"platform": "cpu", "node": 0})()
    node = NodeSamples(sampler.header(options, sources), taken, None, dict(sources.reasons))
    found = section.of_job([node], *ten_steps("cpu", 1))
    assert found["joules"] is found["cpu_joules"] is found["source"] is None
    assert found["reasons"]["joules"] == found["reasons"]["idle_watts"] == rapl.NO_RAPL
    assert found["reasons"]["max_temperature_celsius"] == found["reasons"]["gpu_count"] == "no GPU"
    assert found["mean_cpu_use_percent"] is not None and found["sample_hz"] >= 10
