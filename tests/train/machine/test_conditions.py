"""The snapshots before and after a job become a valid section of the result, every null with its reason."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from smi_machine import H100, Machine, amd_process, mi300x_metric, mi300x_static

from example import example_result
from train.machine import conditions
from utils.results import store
from utils.results.schema import OPTIONAL_SECTIONS

KEYS = set(OPTIONAL_SECTIONS["conditions"])


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(conditions, "BUSY_SAMPLE_SECONDS", 0.0)
    return made


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def is_valid(section: dict[str, Any]) -> bool:
    assert set(section) == KEYS | {"reasons"}
    assert store.problems(example_result(conditions=section)) == []
    return all(section["reasons"].get(key) for key in KEYS if section[key] is None)


def test_a_cpu_machine_has_no_gpu_and_says_so(host: Machine) -> None:
    section = conditions.section(conditions.take_snapshot("cpu"), conditions.take_snapshot("cpu"))
    assert is_valid(section)
    assert section["power_cap_watts"] is None and section["reasons"]["power_cap_watts"] == "no GPU"
    assert section["reasons"]["throttled_percent"] == "no GPU"


def test_the_real_machine_gives_a_valid_section() -> None:
    section = conditions.section(conditions.take_snapshot("cpu", {}), None)
    assert is_valid(section)
    nofile = subprocess.run(["sh", "-c", "ulimit -n"], capture_output=True, text=True, check=True).stdout.strip()
    assert str(section["open_files_limit"] or "unlimited") == nofile


def test_of_two_gpus_the_worse_one_is_recorded(host: Machine) -> None:
    second = H100 | {"index": "1", "uuid": "GPU-2", "enforced.power.limit": "500.00", "temperature.gpu": "64"}
    host.nvidia(H100, second)
    before = conditions.take_snapshot("nvd", {})
    counters = {"clocks_event_reasons_counters.sw_power_cap": "3000000"}
    host.nvidia(H100 | {"clocks_event_reasons.active": "0x0000000000000040"}, second | counters)
    after = conditions.take_snapshot("nvd", {})
    section = conditions.section(before, conditions.Snapshot(before.seconds + 10, *list(vars(after).values())[1:]))
    assert is_valid(section)
    assert (section["gpu_tool"], section["gpu_count"], section["driver_version"]) == ("nvidia-smi", 2, "550.54.15")
    assert (section["power_cap_watts"], section["default_power_cap_watts"]) == (500.0, 700.0)
    assert (section["temperature_before_celsius"], section["max_sm_clock_mhz"]) == (64.0, 1980.0)
    assert (section["throttle_before"], section["throttle_after"]) == (
        ["gpu_idle"],
        ["gpu_idle", "hw_thermal_slowdown"],
    )
    assert section["throttled_percent"]["sw_power_cap"] == 30.0, "3 of 10 s, on the second GPU"
    assert section["other_processes"] == 0


def test_only_gpus_and_processes_of_the_job_count(host: Machine) -> None:
    held = [{"gpu": index, "process_list": [amd_process(4_000_000 + index, 10**9)]} for index in range(2)]
    host.amd([mi300x_static(0, cap=600), mi300x_static(1)], [mi300x_metric(0), mi300x_metric(1)], held)
    seen = conditions.take_snapshot("amd", {"ROCR_VISIBLE_DEVICES": "1"})
    assert [gpu.index for gpu in seen.gpus] == [1]
    assert [one.process_id for one in seen.processes or ()] == [4_000_001]
    section = conditions.section(seen, None)
    assert is_valid(section)
    assert (section["power_cap_watts"], section["other_processes"]) == (750.0, 1)
    assert section["reasons"]["throttle_after"] == "nobody looked after the job"
    assert "power1_cap_default" in section["reasons"]["default_power_cap_watts"]


def test_who_started_the_job_is_no_other_process(host: Machine) -> None:
    import os

    ours = {"gpu_uuid": H100["uuid"], "pid": str(os.getppid()), "used_memory": "500", "process_name": "python"}
    host.nvidia(H100, processes=[ours])
    assert conditions.take_snapshot("nvd", {}).processes == ()


def test_a_driver_in_trouble_leaves_its_words_as_the_reason(host: Machine) -> None:
    host.nvidia(broken="NVIDIA-SMI has failed", code=9)
    section = conditions.section(conditions.take_snapshot("nvd", {}), None)
    assert is_valid(section) and section["gpu_count"] is None
    assert "exit code 9" in section["reasons"]["power_cap_watts"]


def test_what_linux_says_of_the_machine(host: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        host.root,
        proc__sys__kernel__numa_balancing="1\n",
        sys__devices__system__cpu__cpu0__cpufreq__scaling_governor="powersave\n",
        sys__devices__system__cpu__cpu1__cpufreq__scaling_governor="performance\n",
        sys__devices__system__node__node0__meminfo="",
        sys__devices__system__node__node1__meminfo="",
        proc__meminfo="MemTotal: 16000000 kB\nSwapTotal:        4000000 kB\nSwapFree:         3000000 kB\n",
        proc__stat="cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 1 1 1\n",
    )
    found = conditions.read_machine()
    assert (found.numa_balancing, found.numa_nodes, found.cpu_governor) == (True, 2, "performance or powersave")
    assert found.swap_used_gb == pytest.approx(1.024), "1,000,000 KiB"
    assert found.shared_memory_gb is None and found.reasons["shared_memory_gb"] == "there is no /dev/shm"
    assert found.busy_percent is None, "no time has passed between the two looks"
    later = iter(["cpu  100 0 100 700 100 0 0 0 50 0\n", "cpu  130 0 110 750 110 0 0 0 60 0\n"])
    monkeypatch.setattr(conditions, "_text", lambda file: next(later))
    # 40 of 100 ticks: user and system; idle and iowait are not work, guests are in user already
    assert conditions._busy_percent(Path("stat")) == pytest.approx(40.0)


def test_after_a_job_nobody_asks_how_busy_the_cores_are(host: Machine) -> None:
    write(host.root, proc__stat="cpu  100 0 100 700 100 0 0 0 50 0\n")
    seen = conditions.take_snapshot("cpu", is_before=False)
    assert (seen.machine.busy_percent, seen.machine.reasons["busy_percent"]) == (None, "not sampled")


def test_an_empty_machine_gives_nulls_with_reasons(host: Machine) -> None:
    found = conditions.read_machine()
    for name in ("numa_balancing", "numa_nodes", "cpu_governor", "busy_percent", "swap_used_gb", "shared_memory_gb"):
        assert getattr(found, name) is None and found.reasons[name]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"power_cap_watts": "700"}, "conditions.power_cap_watts: got '700', wanted finite number"),
        ({"numa_balancing": 1}, "conditions.numa_balancing: got 1, wanted bool"),
        ({"reasons": {}}, "conditions.gpu_tool: missing without a reason"),
    ],
)
def test_a_section_that_breaks_the_schema_is_refused(host: Machine, change: dict[str, Any], said: str) -> None:
    section = conditions.section(conditions.take_snapshot("cpu"), None) | change
    assert said in store.problems(example_result(conditions=section))


def test_results_without_the_section_stay_valid_and_those_with_it_are_read_whole(host: Machine, tmp_path: Path) -> None:
    store.write(example_result(), tmp_path / "old.json")
    assert "conditions" not in store.read(tmp_path / "old.json")
    section = conditions.section(conditions.take_snapshot("cpu"), None)
    del section["partition"]
    store.write(example_result(conditions=section), tmp_path / "new.json")
    assert store.read(tmp_path / "new.json")["conditions"]["partition"] is None
