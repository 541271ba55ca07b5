"""The device table: who is matched, who must not be, and peaks that agree with figures from elsewhere."""

from __future__ import annotations

import dataclasses
import json
import platform as python_platform
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkout import ROOT

from tests.support.example import example_result
from utils.hardware import __main__, detect
from utils.hardware.devices import DEVICES, NUMBERS, SHORT_NAMES, find_device, named, short_name
from utils.results import store

BY_NAME = {device.name: device for device in DEVICES}
MIB, GIB = 2**20 / 1e9, 2**30 / 1e9
# What torch, nvidia-smi and rocm-smi say, with the memory in 1e9 bytes that the driver reports where it was published.
KNOWN = [
    ("NVIDIA H100 80GB HBM3", 85.0, "NVIDIA H100 SXM 80GB"),
    ("NVIDIA H100 PCIe", 85.0, "NVIDIA H100 PCIe 80GB"),
    ("NVIDIA H200", 150.1, "NVIDIA H200 SXM 141GB"),
    ("NVIDIA A100-SXM4-40GB", 42.406, "NVIDIA A100 SXM 40GB"),
    ("NVIDIA A100-SXM4-80GB", 85.0, "NVIDIA A100 SXM 80GB"),
    ("A100-SXM4-80GB", 85.0, "NVIDIA A100 SXM 80GB"),
    ("NVIDIA B200", 179 * GIB, "NVIDIA B200 180GB"),
    ("AMD Instinct MI300X", 192 * GIB, "AMD Instinct MI300X"),
    ("AMD Instinct MI300X VF", 196_288 * MIB, "AMD Instinct MI300X"),
    ("AMD Instinct MI325X", 256 * GIB, "AMD Instinct MI325X"),
    ("AMD Instinct MI355X OAM", 288 * GIB, "AMD Instinct MI355X"),
    ("AMD Instinct MI250X", 64 * GIB, "AMD Instinct MI250X (one of 2 dies)"),
    ("NVIDIA GH200 480GB", 97_871 * MIB, "NVIDIA GH200 96GB"),
    ("NVIDIA GH200 144G HBM3e", 153.008, "NVIDIA GH200 144GB"),
    ("NVIDIA GB200", 189_471 * MIB, "NVIDIA GB200 186GB"),
    ("NVIDIA GB300", 284_208 * MIB, "NVIDIA GB300 279GB"),
    ("NVIDIA B300 SXM6 AC", 275_040 * MIB, "NVIDIA B300 270GB"),
    ("NVIDIA H20", 97_871 * MIB, "NVIDIA H20 96GB"),
    ("NVIDIA L40S", 46_068 * MIB, "NVIDIA L40S 48GB"),
    ("AMD Instinct MI300A", 134.973, "AMD Instinct MI300A"),
    ("AMD Instinct MI350X", 288 * GIB, "AMD Instinct MI350X"),
    ("AMD Instinct MI355X VF", 288 * GIB, "AMD Instinct MI355X"),
    ("AMD Instinct MI210", 64 * GIB, "AMD Instinct MI210"),
    ("AMD Instinct MI250", 64 * GIB, "AMD Instinct MI250 (one of 2 dies)"),
]


@pytest.mark.parametrize(("reported", "memory_gb", "expected"), KNOWN)
def test_a_known_board_is_found_by_the_name_its_driver_gives(reported, memory_gb, expected):
    device = find_device(reported, memory_gb)
    assert device is not None and device.name == expected
    needs_memory = reported.endswith(" VF")
    assert find_device(reported) == (None if needs_memory else device)


UNKNOWN = (
    "NVIDIA B100",
    "NVIDIA H100",
    "NVIDIA H100 96GB HBM2e",
    "NVIDIA H100 80GB HBM2e",
    "NVIDIA H800",
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
    "NVIDIA H20-3e",
    "NVIDIA GH200",
    "NVIDIA B300",
    "NVIDIA L40",
    "NVIDIA R200",
    "NVIDIA A100-SXM-64GB",
    "NVIDIA A800-SXM4-80GB",
    "NVIDIA A10",
    "NVIDIA GeForce RTX 4090",
    "AMD Instinct MI308X",
    "AMD Instinct MI300A Accelerator",
    "AMD Instinct MI455X",
    "AMD Instinct MI100",
    "AMD Radeon Graphics",
    "AMD EPYC 9654 96-Core Processor",
    "",
)
OTHER_NUMBERS = [  # a known name with the memory or cores of something else
    ("NVIDIA H200", 85.0, None),
    ("NVIDIA H100 80GB HBM3", 85.0, 14592),
    ("AMD Instinct MI300X", 24 * GIB, None),
    ("AMD Instinct MI300X", 192 * GIB, 38 * 64),
    ("AMD Instinct MI300X VF", 96 * GIB, None),
    ("AMD Instinct MI250X", 128 * GIB, None),
    *(("AMD Instinct MI250X / MI250", 64 * GIB, cores) for cores in (None, 64)),
]


@pytest.mark.parametrize(
    ("reported", "memory_gb", "cores"),
    [*((name, memory, None) for name in UNKNOWN for memory in (None, 85.0, 150.1, 206.2)), *OTHER_NUMBERS],
)
def test_an_unknown_device_has_no_peak_rather_than_that_of_a_similar_one(reported, memory_gb, cores):
    assert find_device(reported, memory_gb, cores) is None


@pytest.mark.parametrize(("name", "cores"), [("AMD Instinct MI250", 104 * 64), ("AMD Instinct MI250X", 110 * 64)])
def test_one_die_of_a_board_of_two_is_half_of_the_board_and_told_apart_by_its_cores(name, cores):
    die = find_device(name)
    assert die == find_device("AMD Instinct MI250X / MI250", 64 * GIB, cores)
    for number in NUMBERS:
        whole = getattr(BY_NAME[name], number)
        assert getattr(die, number) == (None if whole is None else whole / 2)


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


OF_TORCH = ("dense_bf16_tflops", "dense_fp8_tflops", "memory_bandwidth_gb_per_second")
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
    # The table of torch/_inductor/analysis/device_info.py (PyTorch 2.13): TFLOP/s in BF16 and FP8, GB/s.
    *(
        (name, number, value, exactness)
        for name, *values in (
            ("AMD Instinct MI300A", 980.6, 1961.2, 5300),
            ("AMD Instinct MI300X", 1307.4, 2614.9, 5300),
            ("AMD Instinct MI350X", 2309.6, 4614.0, 8000),
            ("AMD Instinct MI210", 181.0, None, 1600),
        )
        for number, exactness, value in zip(OF_TORCH, (2e-3, 1e-3, 0), values, strict=True)
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


# Memory of the boards: what their drivers report, and the datasheet's number where no report is known.


FIRST_GPU = ROOT / "tests" / "h200"
# In bytes or GB by another source than that of the row: Modal's own conversion of the MiB, rocm-smi beside amd-smi.
REPORTED = {
    "NVIDIA H100 SXM 80GB": 85.52,
    "NVIDIA A100 SXM 80GB": 85.89,
    "NVIDIA A100 SXM 40GB": 42.94,
    "NVIDIA L40S 48GB": 48.30,
    "NVIDIA H200 SXM 141GB": 150.75,
    "AMD Instinct MI300X": 206.14,
    "AMD Instinct MI355X": 309.22,
}
MARKETED = {"NVIDIA H100 PCIe 80GB": 80.0, "NVIDIA H200 NVL 141GB": 141.0, "AMD Instinct MI210": 64.0}


@pytest.mark.parametrize("name", REPORTED)
def test_memory_is_that_of_the_driver_in_gb_of_1e9_bytes_and_no_longer_the_number_in_the_name(name):
    device = BY_NAME[name]
    assert device.memory_gb == pytest.approx(REPORTED[name], abs=0.01)
    assert device.sources["memory_gb"].startswith(("nvidia-smi", "rocm-smi", "amd-smi"))


@pytest.mark.parametrize("name", MARKETED)
def test_a_board_without_a_known_report_keeps_the_number_of_its_datasheet_and_says_so(name):
    device = BY_NAME[name]
    assert device.memory_gb == MARKETED[name] and "-smi" not in device.sources["memory_gb"]


def test_memory_of_the_first_gpu_is_that_of_its_driver_and_torch_has_it_without_what_the_driver_reserves():
    page = (FIRST_GPU / "facts" / "nvidia_smi_q.txt").read_text()
    said = re.search(r"FB Memory Usage\s+Total +: (\d+) MiB\s+Reserved +: (\d+) MiB", page)
    total, reserved = (int(size) * MIB for size in said.groups())
    h200 = named("H200")
    assert h200.memory_gb == pytest.approx(total, rel=1e-9)
    for path in (FIRST_GPU / "results").glob("*.json"):
        info = json.loads(path.read_text())["gpu_info"]
        assert info["total_memory_gb"] == pytest.approx(total - reserved, abs=2e-3)
        assert find_device(info["device_name"], info["total_memory_gb"], info["gpu_cores"]) == h200


# The platform of a process and the gpu_info section, with fake torch modules for both vendors.


def gpu(cores: int, memory_bytes: int, major: int = 9, minor: int = 0, **more: str) -> SimpleNamespace:
    return SimpleNamespace(total_memory=memory_bytes, multi_processor_count=cores, major=major, minor=minor, **more)


H100 = gpu(132, 85_000_000_000)
MI300X = gpu(304, 192 * 2**30, 9, 4)
GB300 = gpu(152, 284_208 * 2**20, 10, 3)
MI250 = gpu(104, 64 * 2**30)


def fake_torch(build: str, names: tuple[str, ...] = (), properties=None, accelerator: str | None = None):
    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda="12.8" if build == "cuda" else None, hip="7.0.51831" if build == "rocm" else None),
        cuda=SimpleNamespace(
            is_available=lambda: bool(names),
            device_count=lambda: len(names),
            get_device_name=lambda index: names[index],
            get_device_properties=lambda index: properties,
        ),
        accelerator=SimpleNamespace(
            is_available=lambda: bool(names) or accelerator is not None,
            current_accelerator=lambda: SimpleNamespace(type=accelerator or "cuda"),
        ),
    )


BUILDS = {"nvd": "cuda", "amd": "rocm"}
VERSIONS = {"nvd": "12.8", "amd": "7.0.51831"}
DRIVERS = {"nvd": "570.86.10", "amd": "6.14.14"}
BOARDS = [  # platform, name, properties, cores, short name; None: unknown, as not the whole board of that name
    ("nvd", "NVIDIA H100 80GB HBM3", H100, 16896, "H100"),
    ("amd", "AMD Instinct MI300X", MI300X, 19456, "MI300X"),
    ("nvd", "NVIDIA GB300", GB300, 19456, "GB300"),
    ("amd", "AMD Instinct MI250X / MI250", MI250, 6656, "MI250"),
    ("amd", "AMD Instinct MI250X", gpu(110, 64 * 2**30), 7040, "MI250X"),  # a die has half the cores of the board
    ("nvd", "NVIDIA H100 PCIe", gpu(114, 85_000_000_000), 14592, None),
    ("nvd", "NVIDIA H20", H100, None, None),
    ("nvd", "NVIDIA H100 80GB HBM3", gpu(60, 85_000_000_000), None, None),
    ("nvd", "NVIDIA GeForce RTX 4090", gpu(132, 85_000_000_000, 8, 9), None, None),
    ("nvd", "Some GPU", H100, None, None),
    ("amd", "AMD Instinct MI300X", gpu(38, 192 * 2**30, 9, 4), None, None),
]


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Return a way to put fake tools in a folder that is all of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def add(name: str, script: str) -> None:
        tool = tmp_path / name
        tool.write_text(f"#!{sys.executable}\n{script}\n")
        tool.chmod(0o755)

    return add


@pytest.mark.parametrize(("platform", "name", "properties", "cores", "short"), BOARDS)
def test_gpu_info_is_a_valid_section_with_the_cores_of_a_whole_board(platform, name, properties, cores, short, tools):
    tools("nvidia-smi", "print('570.86.10'); print('570.86.10')")
    tools("rocm-smi", """print('{"system": {"Driver version": "6.14.14"}}')""")
    torch = fake_torch(BUILDS[platform], (name,) * 8, properties)
    info = detect.gpu_info(platform, 8, torch)
    assert store.problems(example_result(gpu_info=info)) == []
    assert (info["device_name"], info["device_count"], info["gpu_cores"]) == (name, 8, cores)
    assert cores is not None or name in info["reasons"]["gpu_cores"]
    assert info["total_memory_gb"] == pytest.approx(properties.total_memory / 1e9, abs=5e-4)
    assert (info["software_stack"], info["software_version"]) == (BUILDS[platform], VERSIONS[platform])
    if not Path("/sys/module/amdgpu/version").exists():
        assert info["driver_version"] == DRIVERS[platform]
    assert detect.visible_device(platform, torch) == short
    assert detect.visible_device("cpu", torch) is None
    assert detect.visible_device(platform, fake_torch(BUILDS[platform])) is None


PLATFORMS = [  # PLATFORM, torch, platform or the message of an error
    *((override, fake_torch("cuda", ("A GPU",)), "nvd") for override in (None, "", "nvd")),
    *((override, fake_torch("rocm", ("A GPU",)), "amd") for override in (None, "", "amd")),
    *(("cpu", fake_torch(build, ("A GPU",)), "cpu") for build in ("cuda", "rocm")),
    *((None, fake_torch(build), "cpu") for build in ("cpu", "cuda", "rocm")),
    ("amd", fake_torch("cuda", ("A GPU",)), "error: got amd, but this torch computes on"),
    ("nvd", fake_torch("rocm", ("A GPU",)), "error: got nvd, but this torch computes on"),
    *((platform, fake_torch("cpu"), f"error: got {platform}, but this torch") for platform in ("amd", "nvd")),
    *((platform, fake_torch(BUILDS[platform]), "error: computes on cpu") for platform in ("amd", "nvd")),
    *((value, fake_torch("cpu"), "error: wanted amd, nvd, cpu") for value in ("nvidia", "AMD", "gpu", " cpu")),
    *((None, fake_torch("cpu", accelerator=kind), f"error: {kind}") for kind in ("xpu", "hpu", "npu", "mps")),
    *(("cpu", fake_torch("cpu", accelerator=kind), "cpu") for kind in ("xpu", "mps")),
]


@pytest.mark.parametrize(("override", "torch", "wanted"), PLATFORMS)
def test_platform_is_the_vendor_of_the_gpu_that_torch_sees_and_never_a_guess(override, torch, wanted):
    environ = {} if override is None else {"PLATFORM": override}
    if not wanted.startswith("error: "):
        assert detect.detect_platform(environ, torch) == wanted
        return
    with pytest.raises(detect.HardwareError, match=wanted.removeprefix("error: ")):
        detect.detect_platform(environ, torch)


def test_without_torch_the_platform_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(detect.HardwareError, match="torch: cannot be imported"):
        detect.detect_platform({})


def test_gpu_info_of_this_machine_is_a_valid_section():
    info = detect.gpu_info("cpu", 4)
    assert store.problems(example_result(gpu_info=info)) == []
    assert info["device_count"] == 4 and info["software_stack"] == "cpu"
    assert set(info["reasons"]) >= {"gpu_cores", "software_version", "driver_version"}


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9654: 96-Core\n", "AMD EPYC 9654: 96-Core"),
        ("processor\t: 0\nCPU part\t: 0xd4f\n", "aarch64"),
    ],
)
def test_the_cpu_is_named_by_the_kernel_and_else_by_python(tmp_path, monkeypatch, cpuinfo, name):
    monkeypatch.setattr(python_platform, "processor", lambda: "aarch64")
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert detect._cpu_name(tmp_path / "cpuinfo") == name


def test_a_cpu_without_a_name_has_a_reason(monkeypatch):
    monkeypatch.setattr(detect, "_cpu_name", lambda: "")
    info = detect.gpu_info("cpu", 1, fake_torch("cpu"))
    assert info["device_name"] is None and "processor" in info["reasons"]["device_name"]


@pytest.mark.skipif(Path("/sys/module/amdgpu/version").exists(), reason="this machine has AMD's packaged driver")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "not installed"),
        ("raise SystemExit(9)", "failed"),
        ("print('')", "wanted"),
        ("print('570.86.10'); print('580.1')", "wanted one version"),
    ],
)
def test_a_driver_version_that_cannot_be_read_is_null_with_the_reason(script, reason, tools):
    for tool, platform, properties in (("nvidia-smi", "nvd", H100), ("rocm-smi", "amd", MI300X)):
        if script is not None:
            tools(tool, script)
        info = detect.gpu_info(platform, 1, fake_torch(BUILDS[platform], ("A GPU",), properties))
        said = info["reasons"]["driver_version"]
        assert info["driver_version"] is None and tool in said and (reason in said or tool == "rocm-smi")


@pytest.mark.parametrize("names", [(), ("NVIDIA H100 PCIe", "NVIDIA H100 NVL")])
def test_no_gpu_and_gpus_that_differ_are_errors(names):
    with pytest.raises(detect.HardwareError, match="wanted GPUs of one kind"):
        detect.gpu_info("nvd", 2, fake_torch("cuda", names, H100))


def test_the_command_line_prints_the_section_and_the_table(capsys, monkeypatch):
    """tests/test_bad_input.py has what it refuses."""
    monkeypatch.setenv("PLATFORM", "cpu")
    for arguments, keys in (([], {"software_stack"}), (["--table"], {"name", "sources", "dense_bf16_tflops"})):
        assert __main__.main(arguments) == 0
        printed = json.loads(capsys.readouterr().out)
        assert keys <= set(printed[0] if arguments else printed)


def amd(units: int, gigabytes: int, architecture: str) -> SimpleNamespace:
    return gpu(units, gigabytes * 2**30, 9, 4, gcnArchName=architecture)


GENERIC = [  # name that is given, properties, and name, short name and cores of the one board that fits
    ("", amd(304, 192, "gfx942:sramecc+:xnack-"), "AMD Instinct MI300X", "MI300X", 19456),
    ("AMD Radeon Graphics", amd(304, 256, "gfx942"), "AMD Instinct MI325X", "MI325X", 19456),
    ("AMD Instinct", amd(228, 128, "gfx942"), "AMD Instinct MI300A", "MI300A", 14592),
    ("AMD Radeon Graphics", amd(110, 64, "gfx90a"), "AMD Instinct MI250X", "MI250X", 7040),
    ("AMD Radeon Graphics", amd(256, 288, "gfx950"), None, None, None),  # MI350X or MI355X
    ("AMD Radeon Graphics", amd(104, 64, "gfx90a"), None, None, None),  # MI210 or a die of MI250
    ("", amd(80, 192, "gfx942"), None, None, None),  # MI308X, which has no row
    ("", amd(304, 192, "gfx1100"), None, None, None),
    ("AMD Instinct MI455X", amd(304, 192, "gfx942"), None, None, None),  # a name that says something is not overruled
]


@pytest.mark.parametrize(("given", "properties", "name", "short", "cores"), GENERIC)
def test_a_generic_name_of_amd_is_replaced_by_the_one_board_that_fits_and_this_is_said(
    given, properties, name, short, cores, tools, capsys
):
    torch = fake_torch("rocm", (given,) * 8, properties)
    info = detect.gpu_info("amd", 8, torch)
    assert (info["device_name"], info["gpu_cores"]) == (name or given or None, cores)
    assert detect.visible_device("amd", torch) == short
    printed = capsys.readouterr().err
    said = f"named {given!r}; taken for {name} by {properties.gcnArchName}, {properties.multi_processor_count} compute"
    assert (f"note: device: {said}" in printed) == ("taken for" in printed) == (name is not None)
    assert name is None or info["reasons"]["device_name"].startswith(said)
    assert store.problems(example_result(gpu_info=info)) == [], "the reason beside a known name is allowed"
