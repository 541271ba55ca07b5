"""The output of nvidia-smi, amd-smi and rocm-smi, in the formats of several versions, becomes the same fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from smi_machine import EVENTS, FIELDS, H100, OLD, Machine, amd_process, mi300x_metric, mi300x_static

from train.machine import gpus


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def every_null_has_a_reason(reading: Any) -> bool:
    return all(value is not None or gpu.reasons.get(name) for gpu in reading.gpus for name, value in vars(gpu).items())


def test_an_h100_under_driver_550(machine: Machine) -> None:
    second = H100 | {"index": "1", "uuid": "GPU-2", "enforced.power.limit": "500.00", "clocks.sm": "345"}
    machine.nvidia(H100, second)
    reading = gpus.read("nvd")
    first, capped = reading.gpus
    assert (reading.tool, first.index, first.name, first.driver_version) == (
        "nvidia-smi",
        0,
        "NVIDIA H100 80GB HBM3",
        "550.54.15",
    )
    assert first.memory_total_gb == pytest.approx(85.52, abs=0.005)  # 81,559 MiB, by hand: 81559 * 1.048576 / 1000
    assert (first.power_watts, first.power_cap_watts, first.default_power_cap_watts) == (69.58, 700.0, 700.0)
    assert (first.max_sm_clock_mhz, first.max_memory_clock_mhz, first.temperature_celsius) == (1980.0, 2619.0, 31.0)
    assert (first.persistence, first.compute_mode, first.ecc, first.partition) == (
        "Enabled",
        "Default",
        "Enabled",
        "Disabled",
    )
    assert first.throttle_reasons == ("gpu_idle",)
    assert first.throttle_counters is not None and len(first.throttle_counters) == 5
    assert (capped.power_cap_watts, capped.sm_clock_mhz) == (500.0, 345.0)
    assert reading.processes == ()
    assert every_null_has_a_reason(reading)
    assert len(machine.calls()) == 2, "one query of the GPUs and one of the processes"


def test_a_driver_470_that_knows_fewer_fields_is_asked_by_older_names(machine: Machine) -> None:
    machine.nvidia(H100 | {"driver_version": "470.57.02", OLD: "0x0000000000000044"}, fields=FIELDS)
    (gpu,) = gpus.read("nvd").gpus
    assert gpu.throttle_reasons == ("sw_power_cap", "hw_thermal_slowdown")
    assert gpu.power_cap_watts == 700.0
    assert len(machine.calls()) == 4, "refused twice, answered, and the processes"
    assert gpu.throttle_counters is None and "clocks_event_reasons_counters" in gpu.why("throttle_counters")


def test_a_driver_without_the_enforced_limit_and_mig_still_tells_the_rest(machine: Machine) -> None:
    fields = [field for field in FIELDS if field not in ("enforced.power.limit", "mig.mode.current", OLD)]
    machine.nvidia(H100 | {"power.limit": "650.00"}, fields=fields)
    (gpu,) = gpus.read("nvd").gpus
    assert (gpu.power_cap_watts, gpu.partition, gpu.throttle_reasons) == (650.0, None, None)
    assert gpu.why("partition") == "this driver's nvidia-smi does not know mig.mode.current"
    assert gpu.why("throttle_reasons") == "this driver's nvidia-smi does not know clocks_event_reasons.active"
    assert gpu.memory_used_gb == pytest.approx(3 * 1.048576 / 1000)


@pytest.mark.parametrize(
    "said", ["[N/A]", "[Not Supported]", "[Unknown Error]", "[Requested functionality has been deprecated]", "N/A"]
)
def test_what_a_board_does_not_have_is_null_with_the_words_of_the_tool(machine: Machine, said: str) -> None:
    machine.nvidia(H100 | {"power.default_limit": said, "clocks.applications.graphics": said, EVENTS[0]: said})
    reading = gpus.read("nvd")
    (gpu,) = reading.gpus
    assert gpu.default_power_cap_watts is None and said in gpu.why("default_power_cap_watts")
    assert gpu.clock_limit_mhz is None and gpu.throttle_reasons is None
    assert every_null_has_a_reason(reading)


def test_processes_keep_commas_in_their_names_and_unknown_memory_unknown(machine: Machine) -> None:
    one = {
        "gpu_uuid": H100["uuid"],
        "pid": "4242",
        "used_memory": "72042",
        "process_name": "/opt/a, b/python, --x=1,2",
    }
    machine.nvidia(H100, processes=[one, one | {"pid": "7", "used_memory": "[N/A]", "gpu_uuid": "GPU-none"}])
    first, second = gpus.read("nvd").processes or ()
    assert (first.process_id, first.gpu, first.name) == (4242, 0, "/opt/a, b/python, --x=1,2")
    assert first.memory_gb == pytest.approx(75.541, abs=0.001)  # 72,042 MiB
    assert (second.gpu, second.memory_gb) == (None, None)


@pytest.mark.parametrize(
    ("mask", "names"),
    [("0x0000000000000204", ("sw_power_cap", "0x200")), ("0x0000000000000000", ()), ("[N/A]", None)],
)
def test_a_reason_that_has_no_name_here_is_shown_as_its_number(machine: Machine, mask: str, names: Any) -> None:
    machine.nvidia(H100 | {EVENTS[0]: mask})
    assert gpus.read("nvd").gpus[0].throttle_reasons == names


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9),
        ("Failed to initialize NVML: Driver/library version mismatch", 18),
        ("Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.", 15),
    ],
)
def test_a_driver_in_trouble_is_an_error_with_its_words_and_never_no_gpu(
    machine: Machine, said: str, code: int
) -> None:
    machine.nvidia(broken=said, code=code)
    with pytest.raises(gpus.GpuToolError, match=f"exit code {code} and said: {said[:20]}"):
        gpus.read("nvd")


def test_no_devices_is_no_gpu_and_no_error(machine: Machine) -> None:
    machine.nvidia()
    assert gpus.read("nvd").gpus == ()


def with_throttling(metric: dict[str, Any], **states: Any) -> dict[str, Any]:
    """AMD SMI 24.7 (ROCm 6.3): the example of its changelog."""
    throttle: dict[str, Any] = {"accumulation_counter": 3808991, "prochot_accumulated": 0, "ppt_accumulated": 585613}
    throttle |= {"socket_thermal_accumulated": 2190, "vr_thermal_accumulated": 0, "hbm_thermal_accumulated": 0}
    names = ("prochot", "ppt", "socket_thermal", "vr_thermal", "hbm_thermal")
    throttle |= {f"{name}_violation_status": "NOT ACTIVE" for name in names}
    throttle |= {f"{name}_violation_activity": {"value": 0, "unit": "%"} for name in names}
    return metric | {"throttle": throttle | states}


def mi355x() -> tuple[dict[str, Any], dict[str, Any]]:
    """AMD SMI 26.2 (ROCm 7.2): a key around the list, the cap under ppt0."""
    watts = {"socket_power_limit": {"value": 1400, "unit": "W"}, "max_power_limit": {"value": 1400, "unit": "W"}}
    static = mi300x_static() | {
        "asic": {"market_name": "AMD Instinct MI355X"},
        "driver": {"name": "amdgpu", "version": "6.16.6"},
        "limit": {"ppt0": watts, "ppt1": dict.fromkeys(("socket_power_limit", "max_power_limit"), "N/A")},
        "partition": {"accelerator_partition": "SPX", "memory_partition": "NPS1", "partition_id": 0},
    }
    metric = with_throttling(mi300x_metric(), ppt_violation_status="ACTIVE")
    metric["mem_usage"] = {"total_vram": {"value": 294896, "unit": "MB"}, "used_vram": {"value": 283, "unit": "MB"}}
    return {"gpu_data": [static]}, {"gpu_data": [metric]}


def test_two_mi300x_under_rocm_62(machine: Machine) -> None:
    processes = [
        {"gpu": 0, "process_list": [amd_process(4242, 121_000_000_000)]},
        {"gpu": 1, "process_list": [{"process_info": "No running processes detected"}]},
    ]
    machine.amd(
        [mi300x_static(0), mi300x_static(1, cap=600)], [mi300x_metric(0), mi300x_metric(1, used_mb=68000)], processes
    )
    reading = gpus.read("amd")
    first, second = reading.gpus
    assert (reading.tool, first.name, first.driver_version) == ("amd-smi", "AMD Instinct MI300X", "6.8.5")
    assert (first.power_cap_watts, first.max_power_cap_watts, second.power_cap_watts) == (750.0, 750.0, 600.0)
    assert first.memory_total_gb == pytest.approx(206.14, abs=0.005)  # 196,592 MiB
    assert second.memory_used_gb == pytest.approx(71.3, abs=0.05)
    assert (first.sm_clock_mhz, first.max_sm_clock_mhz, first.temperature_celsius) == (132.0, 2100.0, 38.0)
    assert (first.ecc, first.partition, first.performance_level) == (
        "Enabled",
        "SPX/NPS1",
        "AMDSMI_DEV_PERF_LEVEL_AUTO",
    )
    assert first.throttle_reasons is None and first.throttle_counters is None
    (process,) = reading.processes or ()
    assert (process.process_id, process.gpu, process.memory_gb) == (4242, 0, 121.0)
    assert every_null_has_a_reason(reading)


def test_an_mi355x_under_rocm_72(machine: Machine) -> None:
    machine.amd(*mi355x(), process=[{"gpu": 0, "process_list": [amd_process(28389, 2353860608, "llama-server")]}])
    (gpu,) = gpus.read("amd").gpus
    assert (gpu.name, gpu.power_cap_watts, gpu.max_power_cap_watts) == ("AMD Instinct MI355X", 1400.0, 1400.0)
    assert gpu.throttle_reasons == ("ppt",)
    assert gpu.throttle_counters is not None and gpu.throttle_counters["ppt"] == 585613.0
    assert gpu.partition == "SPX/NPS1"


def test_the_cap_that_the_board_starts_with_is_the_kernels(machine: Machine) -> None:
    hwmon = machine.root / "sys/bus/pci/devices/0000:05:00.0/hwmon/hwmon7"
    hwmon.mkdir(parents=True)
    (hwmon / "power1_cap_default").write_text("750000000\n")
    machine.amd([mi300x_static(cap=600), mi300x_static(1)], [mi300x_metric(), mi300x_metric(1)])
    first, second = gpus.read("amd").gpus
    assert (first.power_cap_watts, first.default_power_cap_watts) == (600.0, 750.0)
    assert second.default_power_cap_watts is None and "power1_cap_default" in second.why("default_power_cap_watts")


def test_rocm_60_says_throttled_in_one_word_and_one_gpu_may_stand_alone(machine: Machine) -> None:
    metric = mi300x_metric()
    metric["power"]["throttle_status"] = "THROTTLED"
    machine.amd(mi300x_static() | {"limit": {"max_power": 750, "current_power": 700}}, metric)
    (gpu,) = gpus.read("amd").gpus
    assert (gpu.throttle_reasons, gpu.power_cap_watts) == (("throttled",), 700.0)


def test_an_amd_smi_that_knows_nothing_gives_nulls_with_reasons(machine: Machine) -> None:
    metric = {"gpu": 0, "usage": "N/A", "power": {"socket_power": "N/A", "throttle_status": "N/A"}, "clock": "N/A"}
    machine.amd([{"gpu": 0, "asic": {"market_name": "N/A"}, "limit": "N/A"}], [metric])
    reading = gpus.read("amd")
    (gpu,) = reading.gpus
    assert (gpu.name, gpu.power_watts, gpu.power_cap_watts, gpu.memory_total_gb) == (None, None, None, None)
    assert every_null_has_a_reason(reading)


ROCM_54 = {
    "card0": {
        "GPU use (%)": "0",
        "Average Graphics Package Power (W)": "91.0",
        "Max Graphics Package Power (W)": "560.0",
        "VRAM Total Memory (B)": "68702699520",
        "VRAM Total Used Memory (B)": "11218944",
        "Temperature (Sensor edge) (C)": "38.0",
        "Temperature (Sensor junction) (C)": "41.0",
        "sclk clock speed:": "(800Mhz)",
        "sclk clock level:": "1",
        "mclk clock speed:": "(1600Mhz)",
        "Performance Level": "auto",
        "Card series": "AMD INSTINCT MI250 (MCM) OAM AC MBA",
        "PCI Bus": "0000:C1:00.0",
    },
    "card1": {"Average Graphics Package Power (W)": "N/A (Secondary die)", "VRAM Total Memory (B)": "68702699520"},
    "system": {"Driver version": "5.18.13", "PID4242": "python3, 8, 121000000000, 0, unknown", "PID9": "x, 0, 0, 0, 0"},
}
ROCM_70 = {
    "card0": {
        "Current Socket Graphics Package Power (W)": "191.0",
        "Max Graphics Package Power (W)": "750.0",
        "VRAM Total Memory (B)": "205822885888",
        "VRAM Total Used Memory (B)": "2654650368",
        "Card Series": "AMD Instinct MI300X",
        "Temperature (Sensor junction) (C)": "39.0",
    },
    "system": {"Driver version": "6.14.14", "PID28389": "llama server, 1, 2353860608, 11011, 0"},
}


def test_rocm_smi_of_two_ages_where_amd_smi_is_missing(machine: Machine) -> None:
    machine.rocm("WARNING: AMD GPU device(s) is/are in a low-power state.\n\n" + json.dumps(ROCM_54))
    reading = gpus.read("amd")
    first, second = reading.gpus
    assert (reading.tool, first.name) == ("rocm-smi", "AMD INSTINCT MI250 (MCM) OAM AC MBA")
    assert (first.power_watts, first.power_cap_watts, first.sm_clock_mhz, first.memory_clock_mhz) == (
        91,
        560,
        800,
        1600,
    )
    assert (first.memory_total_gb, first.temperature_celsius) == (pytest.approx(68.703, abs=0.001), 41.0)
    assert second.power_watts is None and second.memory_total_gb == pytest.approx(68.703, abs=0.001)
    assert [(one.process_id, one.gpu, one.name) for one in reading.processes or ()] == [(4242, None, "python3")]
    machine.rocm(json.dumps(ROCM_70))
    reading = gpus.read("amd")
    (gpu,) = reading.gpus
    assert (gpu.name, gpu.power_watts, gpu.power_cap_watts) == ("AMD Instinct MI300X", 191.0, 750.0)
    assert [(one.name, one.memory_gb) for one in reading.processes or ()] == [("llama server", 2.353860608)]
    assert every_null_has_a_reason(reading)


def test_rocm_smi_is_asked_where_amd_smi_fails_and_both_errors_are_said_where_both_do(machine: Machine) -> None:
    machine.amd([], [])
    (machine.answers / "amd_broken").write_text("amdsmi cannot be imported")
    machine.rocm(json.dumps(ROCM_70))
    assert gpus.read("amd").tool == "rocm-smi"
    (machine.answers / "rocm.json").unlink()
    with pytest.raises(
        gpus.GpuToolError, match=r"amd-smi static.*amdsmi cannot be imported; rocm-smi .*amdgpu not found"
    ):
        gpus.read("amd")


@pytest.mark.parametrize("printed", ["", "no JSON", "[1]", "{"])
def test_a_tool_that_prints_something_else_is_an_error(machine: Machine, printed: str) -> None:
    machine.rocm(printed)
    with pytest.raises(gpus.GpuToolError, match="wanted a JSON object"):
        gpus.read("amd")


def test_a_missing_tool_is_an_error_that_names_it(machine: Machine) -> None:
    with pytest.raises(gpus.GpuToolError, match="amd-smi is not installed; rocm-smi is not installed"):
        gpus.read("amd")


def test_the_visibility_variables_choose_the_gpus_of_a_job(machine: Machine) -> None:
    others = [H100 | {"index": str(index), "uuid": f"GPU-{index}abc"} for index in range(1, 4)]
    machine.nvidia(H100, *others)
    reading = gpus.read("nvd")

    def chosen(**environ: str) -> list[int]:
        return [gpu.index for gpu in gpus.visible(reading, "nvd", environ)]

    assert chosen() == [0, 1, 2, 3]
    assert chosen(CUDA_VISIBLE_DEVICES="2,3") == [2, 3]
    assert chosen(CUDA_VISIBLE_DEVICES="GPU-3abc,GPU-1") == [3, 1]
    assert chosen(CUDA_VISIBLE_DEVICES="MIG-1") == [0, 1, 2, 3]
    assert chosen(HIP_VISIBLE_DEVICES="0") == [0, 1, 2, 3], "not NVIDIA's"
    # as torch's own _parse_visible_devices and the CUDA Programming Guide have it
    assert [chosen(CUDA_VISIBLE_DEVICES=text) for text in ("", "-1", "0,-1,1", "2,9,1", "1,1")] == [
        [],
        [],
        [0],
        [2],
        [],
    ]


def test_on_amd_the_variable_of_hip_or_else_that_of_cuda_counts_within_that_of_rocr(machine: Machine) -> None:
    machine.amd([mi300x_static(index) for index in range(4)], [mi300x_metric(index) for index in range(4)])
    reading = gpus.read("amd")

    def chosen(rocr: str | None = None, hip: str | None = None, cuda: str | None = None) -> list[int]:
        names = {"ROCR_VISIBLE_DEVICES": rocr, "HIP_VISIBLE_DEVICES": hip, "CUDA_VISIBLE_DEVICES": cuda}
        return [
            gpu.index for gpu in gpus.visible(reading, "amd", {name: v for name, v in names.items() if v is not None})
        ]

    assert chosen(rocr="1,2,3", hip="1") == [2] and chosen(rocr="1,2,3", cuda="1") == [2]
    assert chosen(cuda="0,2") == [0, 2], "torch for ROCm honours it"
    assert chosen(hip="3", cuda="0,2") == [3] and chosen(hip="", cuda="0") == []
    assert chosen(rocr="GPU-4b2c1a9f8d3e6f7a") == [0, 1, 2, 3], "amd-smi gives no such identifier"


DRESSES = [
    *(("12.5", 12.5), ("750.0 W", 750.0), ("(2105Mhz)", 2105.0), ({"value": 3, "unit": "%"}, 3.0), (7, 7.0)),
    *(("N/A", None), ("N/A (Secondary die)", None), ({"value": "N/A", "unit": ""}, None), (True, None), ([1], None)),
    ("1 of 2", None),
]


def test_a_number_is_read_in_every_dress_and_nothing_else_is_one(machine: Machine) -> None:
    metrics = [mi300x_metric(index) | {"power": {"socket_power": given}} for index, (given, _) in enumerate(DRESSES)]
    machine.amd([mi300x_static(index) for index in range(len(DRESSES))], metrics)
    assert [gpu.power_watts for gpu in gpus.read("amd").gpus] == [meant for _, meant in DRESSES]
