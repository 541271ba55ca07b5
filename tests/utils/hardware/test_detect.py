"""Which platform a process runs on, and the gpu_info section, with fake torch modules for both vendors."""

from __future__ import annotations

import json
import platform as python_platform
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.example import example_result
from utils.hardware import __main__, detect
from utils.results import store


def gpu(cores: int, memory_bytes: int, major: int = 9, minor: int = 0, **more: str) -> SimpleNamespace:
    return SimpleNamespace(total_memory=memory_bytes, multi_processor_count=cores, major=major, minor=minor, **more)


H100 = gpu(132, 85_000_000_000)
MI300X = gpu(304, 192 * 2**30, 9, 4)
GB300 = gpu(152, 284_208 * 2**20, 10, 3)
L40S = gpu(142, 46_068 * 2**20, 8, 9)
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
    ("nvd", "NVIDIA L40S", L40S, 18176, "L40S"),
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
    memory_kib = int(Path("/proc/meminfo").read_text(encoding="utf8").split()[1])  # its first line is MemTotal
    assert info["total_memory_gb"] == pytest.approx(memory_kib * 1024 / 1e9, abs=0.01)


def test_the_cpu_is_named_by_the_kernel_and_else_by_python_and_else_null_with_a_reason(tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9654: 96-Core\n")
    assert detect._cpu_name(cpuinfo) == "AMD EPYC 9654: 96-Core"
    cpuinfo.write_text("processor\t: 0\nCPU part\t: 0xd4f\n")
    monkeypatch.setattr(python_platform, "processor", lambda: "aarch64")
    assert detect._cpu_name(cpuinfo) == "aarch64"
    monkeypatch.setattr(detect, "_cpu_name", lambda: "")
    info = detect.gpu_info("cpu", 1, fake_torch("cpu"))
    assert info["device_name"] is None and "processor" in info["reasons"]["device_name"]


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
        if platform == "amd" and Path("/sys/module/amdgpu/version").exists():
            continue
        if script is not None:
            tools(tool, script)
        info = detect.gpu_info(platform, 1, fake_torch(BUILDS[platform], ("A GPU",), properties))
        said = info["reasons"]["driver_version"]
        assert info["driver_version"] is None and tool in said and (reason in said or tool == "rocm-smi")


def test_the_packaged_amd_driver_says_its_own_version(tmp_path):
    (tmp_path / "version").write_text("6.10.5\n")
    assert detect._amd_driver_version(tmp_path / "version") == "6.10.5"


@pytest.mark.parametrize("names", [(), ("NVIDIA H100 PCIe", "NVIDIA H100 NVL")])
def test_no_gpu_and_gpus_that_differ_are_errors(names):
    with pytest.raises(detect.HardwareError, match="wanted GPUs of one kind"):
        detect.gpu_info("nvd", 2, fake_torch("cuda", names, H100))


def test_the_command_line_prints_the_section_and_the_table_and_refuses_bad_input(capsys, monkeypatch):
    monkeypatch.setenv("PLATFORM", "cpu")
    assert __main__.main([]) == 0
    assert json.loads(capsys.readouterr().out)["software_stack"] == "cpu"
    assert __main__.main(["--table"]) == 0
    assert {"name", "sources", "dense_bf16_tflops"} <= set(json.loads(capsys.readouterr().out)[0])
    monkeypatch.setenv("PLATFORM", "nvidia")
    assert __main__.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: PLATFORM: got 'nvidia', wanted amd, nvd, cpu")


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
    ("", amd(38, 24, "gfx942"), None, None, None),  # a partition of an MI300X
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
    if name is None:
        assert "taken for" not in printed
        return
    said = f"named {given!r}; taken for {name} by {properties.gcnArchName}, {properties.multi_processor_count} compute"
    assert info["reasons"]["device_name"].startswith(said)
    assert printed.startswith(f"note: device: {said}")
    assert store.problems(example_result(gpu_info=info)) == [], "the reason beside a known name is allowed"
