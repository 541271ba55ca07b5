"""The output of nvidia-smi and amd-smi, in the formats of several versions, becomes the same fields."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from checkout import ROOT
from smi_machine import EVENTS, FIELDS, H100, OLD, Machine, amd_process, mi300x_metric, mi300x_static

from train.machine import gpus


def test_processes_keep_commas_in_their_names_and_unknown_memory_unknown(host: Machine) -> None:
    one = {
        "gpu_uuid": H100["uuid"],
        "pid": "4242",
        "used_memory": "72042",
        "process_name": "/opt/a, b/python, --x=1,2",
    }
    host.nvidia(H100, processes=[one, one | {"pid": "7", "used_memory": "[N/A]", "gpu_uuid": "GPU-none"}])
    first, second = gpus.read("nvd").processes or ()
    assert (first.process_id, first.gpu, first.name) == (4242, 0, "/opt/a, b/python, --x=1,2")
    assert first.memory_gb == pytest.approx(75.541, abs=0.001)  # 72,042 MiB
    assert (second.gpu, second.memory_gb) == (None, None)


def test_a_driver_in_trouble_is_an_error_with_its_words_and_never_no_gpu(host: Machine) -> None:
    host.nvidia(broken="Failed to initialize NVML: Driver/library version mismatch", code=18)
    with pytest.raises(gpus.GpuToolError, match="exit code 18 and said: Failed to initialize NVML"):
        gpus.read("nvd")


def mi355x() -> tuple[dict[str, Any], dict[str, Any]]:
    """AMD SMI 26.2 (ROCm 7.2): a key around the list, the cap under ppt0; `throttle` as in its changelog."""
    watts = {"socket_power_limit": {"value": 1400, "unit": "W"}, "max_power_limit": {"value": 1400, "unit": "W"}}
    static = mi300x_static() | {
        "asic": {"market_name": "AMD Instinct MI355X"},
        "driver": {"name": "amdgpu", "version": "6.16.6"},
        "limit": {"ppt0": watts, "ppt1": dict.fromkeys(("socket_power_limit", "max_power_limit"), "N/A")},
        "partition": {"accelerator_partition": "SPX", "memory_partition": "NPS1", "partition_id": 0},
    }
    names = ("prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal")
    counted = dict.fromkeys((f"{name}_accumulated" for name in names), 0)
    throttle = {"accumulation_counter": 3808991, **counted, "ppt_accumulated": 585613}
    throttle |= {"socket_thermal_accumulated": 2190} | {f"{name}_violation_status": "NOT ACTIVE" for name in names}
    throttle |= {f"{name}_violation_activity": {"value": 0, "unit": "%"} for name in names}
    metric = mi300x_metric() | {"throttle": throttle | {"ppt_violation_status": "ACTIVE"}}
    metric["mem_usage"] = {"total_vram": {"value": 294896, "unit": "MB"}, "used_vram": {"value": 283, "unit": "MB"}}
    return {"gpu_data": [static]}, {"gpu_data": [metric]}


KNOWS_LITTLE = [field for field in FIELDS if field not in ("enforced.power.limit", "mig.mode.current", OLD)]
DOES_NOT_KNOW = "this driver's nvidia-smi does not know "
THROTTLED = mi300x_metric()
THROTTLED["power"]["throttle_status"] = "THROTTLED"
KNOWS_NOTHING = {"gpu": 0, "usage": "N/A", "power": {"socket_power": "N/A", "throttle_status": "N/A"}, "clock": "N/A"}
DRESSES = [
    *(("12.5", 12.5), ("750.0 W", 750.0), ("(2105Mhz)", 2105.0), ({"value": 3, "unit": "%"}, 3.0), (7, 7.0)),
    *(("N/A", None), ("N/A (Secondary die)", None), ({"value": "N/A", "unit": ""}, None), (True, None), ([1], None)),
    ("1 of 2", None),
]
COUNTERS = dict.fromkeys(
    ("sw_power_cap", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"), 0.0
)
ACCUMULATED = {"accumulation_counter": 3808991.0, "ppt": 585613.0, "socket_thermal": 2190.0}
ACCUMULATED |= dict.fromkeys(("prochot", "vr_thermal", "hbm_thermal"), 0.0)
READ: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], list[dict[str, Any]], dict[str, str]]] = {
    "H100s under driver 550": (
        "nvidia",
        (H100, H100 | {"index": "1", "uuid": "GPU-2", "enforced.power.limit": "500.00", "clocks.sm": "345"}),
        {},
        [
            {
                **{"index": 0, "name": "NVIDIA H100 80GB HBM3", "driver_version": "550.54.15"},
                "memory_total_gb": pytest.approx(85.52, abs=0.005),  # 81,559 MiB: 81559 * 1.048576 / 1000
                **{"power_watts": 69.58, "power_cap_watts": 700.0, "default_power_cap_watts": 700.0},
                **{"max_sm_clock_mhz": 1980.0, "max_memory_clock_mhz": 2619.0, "temperature_celsius": 31.0},
                **{"persistence": "Enabled", "compute_mode": "Default", "ecc": "Enabled", "partition": "Disabled"},
                **{"throttle_reasons": ("gpu_idle",), "throttle_counters": COUNTERS},
            },
            {"power_cap_watts": 500.0, "sm_clock_mhz": 345.0},
        ],
        {},
    ),
    "a driver 470 that is asked by older names": (
        "nvidia",
        (H100 | {"driver_version": "470.57.02", OLD: "0x0000000000000044"},),
        {"fields": FIELDS},
        [{"throttle_reasons": ("sw_power_cap", "hw_thermal_slowdown"), "power_cap_watts": 700.0}],
        {"throttle_counters": "clocks_event_reasons_counters"},
    ),
    "a driver without the enforced limit and MIG": (
        "nvidia",
        (H100 | {"power.limit": "650.00"},),
        {"fields": KNOWS_LITTLE},
        [{"power_cap_watts": 650.0, "memory_used_gb": pytest.approx(3 * 1.048576 / 1000)}],
        {
            "partition": f"{DOES_NOT_KNOW}mig.mode.current",
            "throttle_reasons": f"{DOES_NOT_KNOW}clocks_event_reasons.active",
        },
    ),
    **{
        f"a board that says {said}": (
            "nvidia",
            (H100 | {"power.default_limit": said, "clocks.applications.graphics": said, EVENTS[0]: said},),
            {},
            [{}],
            {"default_power_cap_watts": said, "clock_limit_mhz": "", "throttle_reasons": ""},
        )
        for said in (
            "[N/A]",
            "[Not Supported]",
            "[Unknown Error]",
            "[Requested functionality has been deprecated]",
            "N/A",
        )
    },
    "a reason without a name": (
        *("nvidia", (H100 | {EVENTS[0]: "0x0000000000000204"},), {}),
        *([{"throttle_reasons": ("sw_power_cap", "0x200")}], {}),
    ),
    "no reason": ("nvidia", (H100 | {EVENTS[0]: "0x0000000000000000"},), {}, [{"throttle_reasons": ()}], {}),
    "no devices": ("nvidia", (), {}, [], {}),
    "MI300X under ROCm 6.2": (
        "amd",
        ([mi300x_static(0), mi300x_static(1, cap=600)], [mi300x_metric(0), mi300x_metric(1, used_mb=68000)]),
        {},
        [
            {
                **{"name": "AMD Instinct MI300X", "driver_version": "6.8.5"},
                **{"power_cap_watts": 750.0, "max_power_cap_watts": 750.0},
                "memory_total_gb": pytest.approx(206.14, abs=0.005),  # 196,592 MiB
                **{"sm_clock_mhz": 132.0, "max_sm_clock_mhz": 2100.0, "temperature_celsius": 38.0},
                **{"ecc": "Enabled", "partition": "SPX/NPS1", "performance_level": "AMDSMI_DEV_PERF_LEVEL_AUTO"},
                **{"throttle_reasons": None, "throttle_counters": None, "default_power_cap_watts": 750.0},
            },
            {"power_cap_watts": 600.0, "memory_used_gb": pytest.approx(71.3, abs=0.05)},
        ],
        {"default_power_cap_watts": "power1_cap_default"},
    ),
    "MI355X under ROCm 7.2": (
        "amd",
        mi355x(),
        {},
        [
            {
                **{"name": "AMD Instinct MI355X", "power_cap_watts": 1400.0, "max_power_cap_watts": 1400.0},
                **{"throttle_reasons": ("ppt",), "partition": "SPX/NPS1"},
                "throttle_counters": ACCUMULATED,
            }
        ],
        {},
    ),
    "ROCm 6.0, of one GPU, in one word": (
        "amd",
        (mi300x_static() | {"limit": {"max_power": 750, "current_power": 700}}, THROTTLED),
        {},
        [{"throttle_reasons": ("throttled",), "power_cap_watts": 700.0, "default_power_cap_watts": 750.0}],
        {},
    ),
    "an amd-smi that knows nothing": (
        "amd",
        ([{"gpu": 0, "asic": {"market_name": "N/A"}, "limit": "N/A"}], [KNOWS_NOTHING]),
        {},
        [dict.fromkeys(("name", "power_watts", "power_cap_watts", "memory_total_gb"))],
        {},
    ),
    "a number in every dress": (
        "amd",
        (
            [mi300x_static(index) for index in range(len(DRESSES))],
            [mi300x_metric(index) | {"power": {"socket_power": given}} for index, (given, _) in enumerate(DRESSES)],
        ),
        {},
        [{"power_watts": meant} for _, meant in DRESSES],
        {},
    ),
}


@pytest.mark.parametrize("case", READ)
def test_output_of_the_tools_becomes_the_same_fields_and_every_null_has_a_reason(host: Machine, case: str) -> None:
    tool, answers, options, wanted, why = READ[case]
    hwmon = host.root / "sys/bus/pci/devices/0000:05:00.0/hwmon/hwmon7"  # of the first GPU of AMD alone
    hwmon.mkdir(parents=True)
    (hwmon / "power1_cap_default").write_text("750000000\n")
    getattr(host, tool)(*answers, **options)
    reading = gpus.read({"nvidia": "nvd", "amd": "amd"}[tool])
    assert (reading.tool, len(reading.gpus), reading.processes) == (f"{tool}-smi", len(wanted), ())
    for gpu, fields in zip(reading.gpus, wanted, strict=True):
        assert {name: getattr(gpu, name) for name in fields} == fields
    for name, said in why.items():
        assert getattr(reading.gpus[-1], name) is None and said in reading.gpus[-1].reasons[name]
    assert all(value is not None or gpu.reasons.get(name) for gpu in reading.gpus for name, value in vars(gpu).items())


IN_QUERY = {
    # field of --query-gpu: section and label of `nvidia-smi -q`
    **{"uuid": ("", "GPU UUID"), "name": ("", "Product Name"), "driver_version": ("", "Driver Version")},
    **{"persistence_mode": ("", "Persistence Mode"), "compute_mode": ("", "Compute Mode")},
    **{"ecc.mode.current": ("ECC Mode", "Current"), "mig.mode.current": ("MIG Mode", "Current")},
    **{f"memory.{name.lower()}": ("FB Memory Usage", name) for name in ("Total", "Used", "Reserved")},
    **{"utilization.gpu": ("Utilization", "GPU"), "temperature.gpu": ("Temperature", "GPU Current Temp")},
    "power.draw": ("GPU Power Readings", "Average Power Draw"),
    "enforced.power.limit": ("GPU Power Readings", "Current Power Limit"),
    "power.limit": ("GPU Power Readings", "Current Power Limit"),
    "power.default_limit": ("GPU Power Readings", "Default Power Limit"),
    "power.max_limit": ("GPU Power Readings", "Max Power Limit"),
    **{"clocks.sm": ("Clocks", "SM"), "clocks.mem": ("Clocks", "Memory")},
    **{"clocks.max.sm": ("Max Clocks", "SM"), "clocks.max.mem": ("Max Clocks", "Memory")},
    "clocks.applications.graphics": ("Applications Clocks", "Graphics"),
    "clocks.default_applications.graphics": ("Default Applications Clocks", "Graphics"),
}
LABELS = {
    **{"sw_power_cap": "SW Power Capping", "sync_boost": "Sync Boost", "sw_thermal_slowdown": "SW Thermal Slowdown"},
    **{"hw_thermal_slowdown": "HW Thermal Slowdown", "hw_power_brake_slowdown": "HW Power Braking"},
}
FIRST_GPU = ROOT / "tests" / "h200"


def first_gpu() -> dict[str, str]:
    """Return the answer of nvidia-smi on the H200, from the page that `nvidia-smi -q` printed there."""
    page = (FIRST_GPU / "facts" / "nvidia_smi_q.txt").read_text()

    def value(section: str, label: str) -> str:
        start = page.index(f"\n    {section}") if section else 0
        return re.compile(rf"^ *{re.escape(label)} +: (.*)$", re.MULTILINE).search(page, start)[1]  # type: ignore[index]

    row = {field: re.sub(" (MiB|W|MHz|C|%)$", "", value(*place)) for field, place in IN_QUERY.items()}
    counted = {name: value("Clocks Event Reasons Counters", label) for name, label in LABELS.items()}
    row |= {f"clocks_event_reasons_counters.{name}": said.removesuffix(" us") for name, said in counted.items()}
    assert value("Clocks Event Reasons", "Idle") == "Active"
    return row | {"index": "0", EVENTS[0]: "0x0000000000000001", OLD: "0x0000000000000001"}


def test_the_first_gpu_is_read_as_its_results_have_it(host: Machine) -> None:
    host.nvidia(first_gpu())
    (gpu,) = gpus.read("nvd").gpus
    assert (gpu.memory_total_gb, gpu.memory_reserved_gb) == (143_771 * 2**20 / 1e9, 616 * 2**20 / 1e9)
    assert gpu.throttle_counters == COUNTERS | {"sw_power_cap": 18_134_696.0}
    result = json.loads((FIRST_GPU / "results" / "full_local__train_nvd_mega_llama_run1.json").read_text())
    recorded = result["conditions"]  # by the suite itself, on that machine, from --query-gpu
    names = [name for name in vars(gpu) if name in recorded and name not in ("reasons", "performance_level")]
    assert len(names) == 12 and {name: getattr(gpu, name) for name in names} == {name: recorded[name] for name in names}
    assert list(gpu.throttle_reasons or ()) == recorded["throttle_before"]


def test_processes_of_amd_have_their_gpu_and_memory(host: Machine) -> None:
    nobody = {"gpu": 1, "process_list": [{"process_info": "No running processes detected"}]}
    processes = [{"gpu": 0, "process_list": [amd_process(4242, 121_000_000_000)]}, nobody]
    host.amd([mi300x_static(0), mi300x_static(1)], [mi300x_metric(0), mi300x_metric(1)], processes)
    (process,) = gpus.read("amd").processes or ()
    assert (process.process_id, process.gpu, process.memory_gb) == (4242, 0, 121.0)


def test_a_tool_that_is_missing_or_fails_or_prints_something_else_is_an_error_with_its_words(host: Machine) -> None:
    with pytest.raises(gpus.GpuToolError, match="amd-smi is not installed"):
        gpus.read("amd")
    host.amd([], [])
    (host.answers / "amd_static.json").write_text("{")
    with pytest.raises(gpus.GpuToolError, match="amd-smi static --json: got '{.*', wanted JSON"):
        gpus.read("amd")
    (host.answers / "amd_broken").write_text("amdsmi cannot be imported")
    with pytest.raises(gpus.GpuToolError, match=r"amd-smi static.*amdsmi cannot be imported"):
        gpus.read("amd")


CUDA, HIP, ROCR = (f"{name}_VISIBLE_DEVICES" for name in ("CUDA", "HIP", "ROCR"))
ALL = [0, 1, 2, 3]
CHOSEN: list[tuple[str, dict[str, str], list[int]]] = [
    ("nvd", {}, ALL),
    ("nvd", {CUDA: "2,3"}, [2, 3]),
    ("nvd", {CUDA: "GPU-3abc,GPU-1"}, [3, 1]),
    ("nvd", {CUDA: "MIG-1"}, ALL),
    ("nvd", {HIP: "0"}, ALL),  # not NVIDIA's
    # as torch's own _parse_visible_devices and the CUDA Programming Guide have it
    *(
        ("nvd", {CUDA: text}, found)
        for text, found in {"": [], "-1": [], "0,-1,1": [0], "2,9,1": [2], "1,1": []}.items()
    ),
    # the variable of HIP or else that of CUDA, which torch for ROCm honours, counts within that of ROCR
    ("amd", {ROCR: "1,2,3", HIP: "1"}, [2]),
    ("amd", {ROCR: "1,2,3", CUDA: "1"}, [2]),
    ("amd", {CUDA: "0,2"}, [0, 2]),
    ("amd", {HIP: "3", CUDA: "0,2"}, [3]),
    ("amd", {HIP: "", CUDA: "0"}, []),
    ("amd", {ROCR: "GPU-4b2c1a9f8d3e6f7a"}, ALL),  # amd-smi gives no such identifier
]


@pytest.mark.parametrize(("platform", "environ", "wanted"), CHOSEN)
def test_the_visibility_variables_choose_the_gpus_of_a_job(
    host: Machine, platform: str, environ: dict[str, str], wanted: list[int]
) -> None:
    host.nvidia(*(H100 | {"index": str(index), "uuid": f"GPU-{index}abc"} for index in ALL))
    host.amd([mi300x_static(index) for index in ALL], [mi300x_metric(index) for index in ALL])
    assert [gpu.index for gpu in gpus.visible(gpus.read(platform), platform, environ)] == wanted


# The memory of a CPU


def cpu_machine(tmp_path, monkeypatch, groups, address_space=gpus.resource.RLIM_INFINITY):
    """A machine of 16 GiB whose control groups are `groups`: limit by file."""
    monkeypatch.setattr(gpus.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**22}.__getitem__)
    monkeypatch.setattr(gpus.resource, "getrlimit", lambda which: (address_space, address_space))
    (tmp_path / "proc/self").mkdir(parents=True)
    for name, text in groups.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    return tmp_path


V1 = "sys/fs/cgroup/memory"
V2 = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("groups", "wanted_gib", "source"),
    [
        ({}, 16, "physical memory"),
        ({"proc/self/cgroup": "0::/job", f"{V2}/job/memory.max": str(4 * 2**30)}, 4, "job/memory.max"),
        ({"proc/self/cgroup": "0::/job", f"{V2}/job/memory.max": "max"}, 16, "physical memory"),
        (
            {
                "proc/self/cgroup": "0::/slurm/job",
                f"{V2}/slurm/memory.max": str(3 * 2**30),
                f"{V2}/slurm/job/memory.max": "max",
            },
            3,
            "slurm/memory.max",
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,memory:/docker/1f\n0::/",
                f"{V1}/memory.limit_in_bytes": str(2 * 2**30),  # inside a container: its own group is the mount
            },
            2,
            "memory/memory.limit_in_bytes",
        ),
        (
            {"proc/self/cgroup": "4:memory:/", f"{V1}/memory.limit_in_bytes": "9223372036854771712"},
            16,
            "physical memory",
        ),
        ({"proc/self/cgroup": "0::/../../job", f"{V2}/memory.max": str(5 * 2**30)}, 5, "cgroup/memory.max"),
    ],
    ids=["none", "v2", "v2-max", "v2-parent", "v1-container", "v1-unlimited", "v2-outside"],
)
def test_capacity_is_the_smallest_limit_and_names_it(tmp_path, monkeypatch, groups, wanted_gib, source):
    found, said = gpus.cpu_capacity_gb(1, cpu_machine(tmp_path, monkeypatch, groups))
    assert found == pytest.approx(wanted_gib * 2**30 / 1e9)
    assert said.endswith(source)


@pytest.mark.parametrize(
    ("ranks", "wanted_gib", "source"),
    [(1, 6, "RLIMIT_AS of each process"), (2, 6, "RLIMIT_AS of each process"), (4, 4, "physical memory / 4 ranks")],
)
def test_ranks_share_memory_but_not_the_limit_of_address_space(tmp_path, monkeypatch, ranks, wanted_gib, source):
    root = cpu_machine(tmp_path, monkeypatch, {}, address_space=6 * 2**30)
    assert gpus.cpu_capacity_gb(ranks, root) == (wanted_gib * 2**30 / 1e9, source)
