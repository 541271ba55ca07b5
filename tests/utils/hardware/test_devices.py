"""The device table: who is matched, who must not be, and peaks that agree with figures from elsewhere."""

from __future__ import annotations

import dataclasses

import pytest

from utils.hardware.devices import DEVICES, NUMBERS, SHORT_NAMES, find_device, named, short_name

BY_NAME = {device.name: device for device in DEVICES}
# What torch, nvidia-smi and rocm-smi say, with the memory in 1e9 bytes that the driver reports where it was published.
KNOWN = [
    ("NVIDIA H100 80GB HBM3", 85.0, "NVIDIA H100 SXM 80GB"),
    ("NVIDIA H100 PCIe", 85.0, "NVIDIA H100 PCIe 80GB"),
    ("NVIDIA H100 NVL", 99.9, "NVIDIA H100 NVL 94GB"),
    ("NVIDIA H200", 150.1, "NVIDIA H200 SXM 141GB"),
    ("NVIDIA H200 NVL", 143_771 * 2**20 / 1e9, "NVIDIA H200 NVL 141GB"),
    ("NVIDIA A100-SXM4-40GB", 42_405_855_232 / 1e9, "NVIDIA A100 SXM 40GB"),
    ("NVIDIA A100-SXM4-80GB", 85.0, "NVIDIA A100 SXM 80GB"),
    ("A100-SXM4-80GB", 85.0, "NVIDIA A100 SXM 80GB"),
    ("NVIDIA A100-PCIE-40GB", 42.4, "NVIDIA A100 PCIe 40GB"),
    ("NVIDIA A100 80GB PCIe", 85.0, "NVIDIA A100 PCIe 80GB"),
    ("NVIDIA B200", 179 * 2**30 / 1e9, "NVIDIA B200 180GB"),
    ("AMD Instinct MI300X", 192 * 2**30 / 1e9, "AMD Instinct MI300X"),
    ("AMD Instinct MI300X OAM", 192 * 2**30 / 1e9, "AMD Instinct MI300X"),
    ("AMD Instinct MI300X VF", 196_288 * 2**20 / 1e9, "AMD Instinct MI300X"),
    ("AMD Instinct MI325X", 256 * 2**30 / 1e9, "AMD Instinct MI325X"),
    ("AMD Instinct MI355X OAM", 288 * 2**30 / 1e9, "AMD Instinct MI355X"),
    ("AMD Instinct MI250X", 64 * 2**30 / 1e9, "AMD Instinct MI250X (one of 2 dies)"),
    ("NVIDIA GH200 480GB", 97_871 * 2**20 / 1e9, "NVIDIA GH200 96GB"),
    ("NVIDIA GH200 144G HBM3e", 153_008_209_920 / 1e9, "NVIDIA GH200 144GB"),
    ("NVIDIA GB200", 189_471 * 2**20 / 1e9, "NVIDIA GB200 186GB"),
    ("NVIDIA GB300", 284_208 * 2**20 / 1e9, "NVIDIA GB300 279GB"),
    ("NVIDIA B300 SXM6 AC", 275_040 * 2**20 / 1e9, "NVIDIA B300 270GB"),
    ("NVIDIA H20", 97_871 * 2**20 / 1e9, "NVIDIA H20 96GB"),
    ("NVIDIA L40S", 46_068 * 2**20 / 1e9, "NVIDIA L40S 48GB"),
    ("AMD Instinct MI300A", 131_809_200 * 2**10 / 1e9, "AMD Instinct MI300A"),
    ("AMD Instinct MI350X", 288 * 2**30 / 1e9, "AMD Instinct MI350X"),
    ("AMD Instinct MI350X VF", 288 * 2**30 / 1e9, "AMD Instinct MI350X"),
    ("AMD Instinct MI355X VF", 288 * 2**30 / 1e9, "AMD Instinct MI355X"),
    ("AMD Instinct MI210", 64 * 2**30 / 1e9, "AMD Instinct MI210"),
    ("AMD Instinct MI250", 64 * 2**30 / 1e9, "AMD Instinct MI250 (one of 2 dies)"),
]


@pytest.mark.parametrize(("reported", "memory_gb", "expected"), KNOWN)
def test_a_known_board_is_found_by_the_name_its_driver_gives(reported, memory_gb, expected):
    device = find_device(reported, memory_gb)
    assert device is not None and device.name == expected
    needs_memory = reported.endswith(" VF")
    assert find_device(reported) == (None if needs_memory else device)


UNKNOWN = (
    *("NVIDIA B100", "NVIDIA H100", "NVIDIA H100 96GB HBM2e", "NVIDIA H100 80GB HBM2e", "NVIDIA H800"),
    *("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H20-3e", "NVIDIA GH200", "NVIDIA B300", "NVIDIA L40", "NVIDIA R200"),
    *("NVIDIA A100-SXM-64GB", "NVIDIA A800-SXM4-80GB", "NVIDIA A10", "NVIDIA GeForce RTX 4090", "AMD Instinct MI308X"),
    *("AMD Instinct MI300A Accelerator", "AMD Instinct MI455X", "AMD Instinct MI100", "AMD Radeon Graphics"),
    *("AMD EPYC 9654 96-Core Processor", ""),
)
OTHER_NUMBERS = [  # a known name with the memory or cores of something else
    ("NVIDIA H200", 85.0, None),
    ("NVIDIA H100 80GB HBM3", 85.0, 14592),
    ("AMD Instinct MI300X", 24 * 2**30 / 1e9, None),
    ("AMD Instinct MI300X", 192 * 2**30 / 1e9, 38 * 64),
    ("AMD Instinct MI300X VF", 96 * 2**30 / 1e9, None),
    ("AMD Instinct MI250X", 128 * 2**30 / 1e9, None),
]


@pytest.mark.parametrize(
    ("reported", "memory_gb", "cores"),
    [*((name, memory, None) for name in UNKNOWN for memory in (None, 85.0, 150.1, 206.2)), *OTHER_NUMBERS],
)
def test_an_unknown_device_has_no_peak_rather_than_that_of_a_similar_one(reported, memory_gb, cores):
    assert find_device(reported, memory_gb, cores) is None


def test_the_name_that_drivers_give_both_mi250_and_mi250x_is_told_apart_by_cores_only():
    shared, memory_gb = "AMD Instinct MI250X / MI250", 64 * 2**30 / 1e9
    assert find_device(shared, memory_gb) is None
    assert find_device(shared, memory_gb, 104 * 64) == find_device("AMD Instinct MI250")
    assert find_device(shared, memory_gb, 110 * 64) == find_device("AMD Instinct MI250X")
    assert find_device(shared, memory_gb, 64) is None


@pytest.mark.parametrize("name", ["AMD Instinct MI250", "AMD Instinct MI250X"])
def test_one_die_of_a_board_of_two_is_half_of_the_board(name):
    board, die = BY_NAME[name], find_device(name)
    assert die is not None
    for number in NUMBERS:
        whole, half = getattr(board, number), getattr(die, number)
        assert half is None if whole is None else half == whole / 2


# Worked by hand: units x FLOP a clock and unit x clock. An SM has 4 tensor cores of 2 x 256 (A100) or 2 x 512 (Hopper)
# FLOP a clock, at 1.41 and 1.83 GHz (1.62 on PCIe); a compute unit of CDNA 2, 3 and 4 does 1024, 2048 and 4096, at
# 1.7, 2.1 and 2.4 GHz (2.2 on the MI350X).
@pytest.mark.parametrize(
    ("name", "units", "flop_per_clock", "gigahertz"),
    [
        ("NVIDIA A100 SXM 80GB", 108, 4 * 2 * 256, 1.41),
        ("NVIDIA H100 SXM 80GB", 132, 4 * 2 * 512, 1.83),
        ("NVIDIA H200 SXM 141GB", 132, 4 * 2 * 512, 1.83),
        ("NVIDIA H100 PCIe 80GB", 114, 4 * 2 * 512, 1.62),
        ("NVIDIA GH200 96GB", 132, 4 * 2 * 512, 1.83),
        ("NVIDIA GH200 144GB", 132, 4 * 2 * 512, 1.83),
        ("AMD Instinct MI210", 104, 1024, 1.7),
        ("AMD Instinct MI250", 208, 1024, 1.7),
        ("AMD Instinct MI250X", 220, 1024, 1.7),
        ("AMD Instinct MI300A", 228, 2048, 2.1),
        ("AMD Instinct MI300X", 304, 2048, 2.1),
        ("AMD Instinct MI325X", 304, 2048, 2.1),
        ("AMD Instinct MI350X", 256, 4096, 2.2),
        ("AMD Instinct MI355X", 256, 4096, 2.4),
    ],
)
def test_bf16_peak_is_units_times_flop_per_clock_times_clock(name, units, flop_per_clock, gigahertz):
    device = BY_NAME[name]
    assert device.dense_bf16_tflops == pytest.approx(units * flop_per_clock * gigahertz / 1e3, rel=5e-4)
    assert device.cores == units * (128 if "H" in name.removeprefix("NVIDIA ") else 64)


NVL = ("H100 NVL 94GB", "H200 NVL 141GB")
ELSEWHERE = [  # board, number, value of another source and its exactness
    # Vendors state for whole machines, with sparsity except where it says dense, PFLOPS in BF16, FP8 and FP4.
    *(
        (name, f"dense_{precision}_tflops", pflops * 1e3 / count, 1e-3)
        for name, count, bf16, fp8, fp4 in (
            ("NVIDIA GB200 186GB", 72, 360 / 2, 720 / 2, 1440 / 2),  # GB200 NVL72
            ("NVIDIA GB300 279GB", 72, 360 / 2, 720 / 2, 1080),  # GB300 NVL72, FP4 dense
            ("NVIDIA B200 180GB", 8, 36 / 2, 72 / 2, 144 / 2),  # HGX B200
            ("AMD Instinct MI350X", 8, 18.45, 36.9, 73.816),  # MI350X platform, FP4 dense
        )
        for precision, pflops in (("bf16", bf16), ("fp8", fp8), ("fp4", fp4))
    ),
    # The table of torch/_inductor/analysis/device_info.py (PyTorch 2.13): TFLOP/s in BF16 and FP8, GB/s, GB.
    *(
        (name, number, value, exactness)
        for name, *values in (
            ("AMD Instinct MI300A", 980.6, 1961.2, 5300, 128),
            ("AMD Instinct MI300X", 1307.4, 2614.9, 5300, 192),
            ("AMD Instinct MI350X", 2309.6, 4614.0, 8000, 288),
            ("AMD Instinct MI210", 181.0, None, 1600, 64),
        )
        for (number, exactness), value in zip(
            {
                **{"dense_bf16_tflops": 2e-3, "dense_fp8_tflops": 1e-3},
                **{"memory_bandwidth_gb_per_second": 0, "memory_gb": 0},
            }.items(),
            values,
            strict=True,
        )
    ),
    # NVIDIA states 108 PFLOPS for eight B300 and 14 for one: the higher one. BF16 is that of a B200.
    ("NVIDIA B300 270GB", "dense_fp4_tflops", 14e3, 0),
    ("NVIDIA B300 270GB", "dense_bf16_tflops", 36e3 / 2 / 8, 0),
    # The press figures of the H20 are dense: 142.25 were measured, 90 to 100 % of them (10240 x 10240, torch 2.7:
    # github.com/zzc0721/torch-performance-test-data, issue 77).
    ("NVIDIA H20 96GB", "dense_bf16_tflops", 142.25 / 0.95, 0.05),
    # The NVL peak is dense: 132 SMs at the highest clock of 1785 MHz, as drivers report both, cannot reach more.
    *((f"NVIDIA {name}", "dense_bf16_tflops", 0.9 * 132 * 4 * 2 * 512 * 1.785 / 1e3, 0.1) for name in NVL),
    # Published utilization: TFLOP/s that were reached, of which this is the share.
    ("NVIDIA H100 SXM 80GB", "dense_bf16_tflops", 550.0 / 0.556, 1e-3),
    ("NVIDIA B200 180GB", "dense_fp8_tflops", 1576.0 / 0.350, 1e-3),
    ("AMD Instinct MI355X", "dense_fp8_tflops", 1617.0 / 0.321, 1e-3),
]


@pytest.mark.parametrize(("name", "number", "value", "exactness"), ELSEWHERE)
def test_numbers_agree_with_those_of_other_sources(name, number, value, exactness):
    assert getattr(BY_NAME[name], number) == (None if value is None else pytest.approx(value, rel=exactness))


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_every_number_has_a_datasheet_and_lower_precisions_exist_where_the_hardware_has_them(device):
    for number in NUMBERS:
        source = device.sources[number]
        assert any(f"(20{year})" in source for year in range(20, 27)) and "https://" in source, number
    numeric = {field.name for field in dataclasses.fields(device) if "int" in field.type or "float" in field.type}
    assert numeric - {"torch_devices_per_board"} == set(NUMBERS) == set(device.sources)
    has_fp8 = not any(old in device.name for old in ("A100", "MI210", "MI250"))
    has_fp4 = any(new in device.name for new in ("B200", "B300", "MI350X", "MI355X"))
    assert (device.dense_fp8_tflops is not None, device.dense_fp4_tflops is not None) == (has_fp8, has_fp4)
    if has_fp8:  # the L40S's datasheet gives 362.05 and 733
        exactness = 0.02 if "L40S" in device.name else 1e-3
        assert device.dense_fp8_tflops == pytest.approx(2 * device.dense_bf16_tflops, rel=exactness)
    if has_fp4:
        ratio = device.dense_fp4_tflops / device.dense_fp8_tflops
        assert ratio >= 3 if "B300" in device.name else ratio == pytest.approx(2, rel=1e-3)
    else:
        assert "no FP4" in device.sources["dense_fp4_tflops"]


@pytest.mark.parametrize("short", SHORT_NAMES)
def test_a_short_name_leads_to_a_torch_device_and_back(short):
    device = named(short)
    assert device is not None and short_name(device) == short
    assert short_name(named("NVIDIA H100 PCIe")) is None


def test_no_two_boards_answer_to_one_name():
    own = [name for board in DEVICES for name in board.names + board.names_with_memory]
    assert len(own) == len(set(own))
    shared = [(name, board.memory_gb, board.cores) for board in DEVICES for name in board.names_with_cores]
    assert len(shared) == len(set(shared)) and not {name for name, *_ in shared} & set(own)
    assert len({board.name for board in DEVICES}) == len(DEVICES)
