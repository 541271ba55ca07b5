"""Which platform a process runs on, and the gpu_info section, with fake torch modules for both vendors."""

from __future__ import annotations

import json
import platform as python_platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.example import example_result
from utils.hardware import __main__ as command
from utils.hardware import detect as hardware
from utils.hardware.detect import HardwareError, detect_platform, gpu_info
from utils.results import store
from utils.results.schema import problems as check

H100 = SimpleNamespace(total_memory=85_000_000_000, multi_processor_count=132, major=9, minor=0)
MI300X = SimpleNamespace(total_memory=192 * 2**30, multi_processor_count=304, major=9, minor=4)
GB300 = SimpleNamespace(total_memory=284_208 * 2**20, multi_processor_count=152, major=10, minor=3)
L40S = SimpleNamespace(total_memory=46_068 * 2**20, multi_processor_count=142, major=8, minor=9)
MI250 = SimpleNamespace(total_memory=64 * 2**30, multi_processor_count=104, major=9, minor=0)


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
        xpu=SimpleNamespace(is_available=lambda: accelerator == "xpu"),
        accelerator=SimpleNamespace(
            is_available=lambda: bool(names) or accelerator is not None,
            current_accelerator=lambda: SimpleNamespace(type=accelerator or "cuda"),
        ),
    )


VENDORS = [
    ("nvd", "cuda", "NVIDIA H100 80GB HBM3", H100, "12.8", 16896),
    ("amd", "rocm", "AMD Instinct MI300X", MI300X, "7.0.51831", 19456),
    ("nvd", "cuda", "NVIDIA GB300", GB300, "12.8", 19456),
    ("nvd", "cuda", "NVIDIA L40S", L40S, "12.8", 18176),
    ("amd", "rocm", "AMD Instinct MI250X / MI250", MI250, "7.0.51831", 6656),
]
vendors = pytest.mark.parametrize(("platform", "build", "name", "properties", "version", "cores"), VENDORS)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Return a folder that is all of PATH, and a way to put fake tools in it."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def add(name: str, script: str) -> None:
        tool = tmp_path / name
        tool.write_text(f"#!{sys.executable}\n{script}\n")
        tool.chmod(0o755)

    return add


@vendors
def test_platform_is_the_vendor_of_the_gpu_that_torch_sees(platform, build, name, properties, version, cores):
    torch = fake_torch(build, (name,), properties)
    assert detect_platform({}, torch) == platform
    assert detect_platform({"PLATFORM": ""}, torch) == platform
    assert detect_platform({"PLATFORM": platform}, torch) == platform
    assert detect_platform({"PLATFORM": "cpu"}, torch) == "cpu"


@pytest.mark.parametrize(
    ("platform", "build", "name", "properties", "short"),
    [
        ("nvd", "cuda", "NVIDIA GB300", GB300, "GB300"),
        ("amd", "rocm", "AMD Instinct MI250X / MI250", MI250, "MI250"),
        ("nvd", "cuda", "NVIDIA H100 PCIe", SimpleNamespace(**{**vars(H100), "multi_processor_count": 114}), None),
        ("nvd", "cuda", "NVIDIA H100 80GB HBM3", SimpleNamespace(**{**vars(H100), "multi_processor_count": 60}), None),
        ("nvd", "cuda", "Some GPU", H100, None),
    ],
)
def test_a_gpu_has_a_short_name_if_it_is_the_whole_board_that_the_name_means(platform, build, name, properties, short):
    torch = fake_torch(build, (name,) * 8, properties)
    assert hardware.visible_device(platform, torch) == short
    assert hardware.visible_device("cpu", torch) is None
    assert hardware.visible_device(platform, fake_torch(build)) is None


@pytest.mark.parametrize("build", ["cpu", "cuda", "rocm"])
def test_a_build_without_a_visible_gpu_is_cpu(build):
    assert detect_platform({}, fake_torch(build)) == "cpu"


@vendors
def test_an_override_that_torch_contradicts_is_an_error(platform, build, name, properties, version, cores):
    other = {"nvd": "amd", "amd": "nvd"}[platform]
    for torch in (fake_torch(build, (name,)), fake_torch("cpu")):
        with pytest.raises(HardwareError, match=f"got {other}, but this torch computes on"):
            detect_platform({"PLATFORM": other}, torch)
    with pytest.raises(HardwareError, match="computes on cpu"):
        detect_platform({"PLATFORM": platform}, fake_torch(build))


@pytest.mark.parametrize("value", ["nvidia", "AMD", "gpu", " cpu"])
def test_an_unknown_override_is_an_error_that_names_what_is_allowed(value):
    with pytest.raises(HardwareError, match="wanted amd, nvd, cpu"):
        detect_platform({"PLATFORM": value}, fake_torch("cpu"))


@pytest.mark.parametrize("kind", ["xpu", "hpu", "npu", "mps"])
def test_an_accelerator_of_another_kind_is_an_error_and_never_cpu(kind):
    torch = fake_torch("cpu", accelerator=kind)
    with pytest.raises(HardwareError, match=kind):
        detect_platform({}, torch)
    assert detect_platform({"PLATFORM": "cpu"}, torch) == "cpu"


def test_an_xpu_is_seen_by_a_torch_that_is_older_than_torch_accelerator():
    torch = fake_torch("cpu", accelerator="xpu")
    del torch.accelerator
    with pytest.raises(HardwareError, match="xpu"):
        detect_platform({}, torch)


def test_without_torch_the_platform_is_an_error_with_the_name_of_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(HardwareError, match="torch: cannot be imported"):
        detect_platform({})


def test_importing_this_module_does_not_import_torch():
    code = "import sys, utils.hardware.detect; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_gpu_info_of_this_machine_is_a_valid_section():
    info = gpu_info("cpu", 4)
    assert store.problems(example_result(gpu_info=info)) == []
    assert info["device_count"] == 4 and info["software_stack"] == "cpu"
    assert set(info["reasons"]) >= {"gpu_cores", "software_version", "driver_version"}
    memory_kib = int(Path("/proc/meminfo").read_text(encoding="utf8").split()[1])  # its first line is MemTotal
    assert info["total_memory_gb"] == pytest.approx(memory_kib * 1024 / 1e9, abs=0.01)


def test_the_cpu_is_named_by_the_kernel_and_else_by_python_and_else_null_with_a_reason(tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9654: 96-Core\n")
    assert hardware._cpu_name(cpuinfo) == "AMD EPYC 9654: 96-Core"
    cpuinfo.write_text("processor\t: 0\nCPU part\t: 0xd4f\n")
    monkeypatch.setattr(python_platform, "processor", lambda: "aarch64")
    assert hardware._cpu_name(cpuinfo) == "aarch64"
    monkeypatch.setattr(hardware, "_cpu_name", lambda: "")
    info = gpu_info("cpu", 1, fake_torch("cpu"))
    assert info["device_name"] is None and "processor" in info["reasons"]["device_name"]


@vendors
def test_gpu_info_of_both_vendors_is_a_valid_section(platform, build, name, properties, version, cores, tools):
    tools("nvidia-smi", "print('570.86.10'); print('570.86.10')")
    tools("rocm-smi", """print('{"system": {"Driver version": "6.14.14"}}')""")
    info = gpu_info(platform, 8, fake_torch(build, (name,) * 2, properties))
    assert store.problems(example_result(gpu_info=info)) == []
    assert info["device_name"] == name and info["device_count"] == 8
    assert info["gpu_cores"] == cores and info["software_version"] == version
    assert info["total_memory_gb"] == pytest.approx(properties.total_memory / 1e9, abs=5e-4)
    assert info["software_stack"] == build and info["pytorch_version"] == "2.13.0"
    if not Path("/sys/module/amdgpu/version").exists():
        assert info["driver_version"] == {"nvd": "570.86.10", "amd": "6.14.14"}[platform]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (None, "not installed"),
        ("raise SystemExit(9)", "failed"),
        ("print('')", "wanted"),
        ("print('570.86.10'); print('580.1')", "wanted one version"),
    ],
)
def test_a_driver_version_that_cannot_be_read_is_null_with_the_reason(script, reason, tools, tmp_path):
    for tool, read in (
        ("nvidia-smi", hardware._nvidia_driver_version),
        ("rocm-smi", lambda: hardware._amd_driver_version(tmp_path / "missing")),
    ):
        if script is not None:
            tools(tool, script)
        answer = read()
        assert isinstance(answer, hardware._Unknown)
        assert tool in answer.reason and (reason in answer.reason or tool == "rocm-smi")


def test_the_packaged_amd_driver_says_its_own_version(tmp_path):
    (tmp_path / "version").write_text("6.10.5\n")
    assert hardware._amd_driver_version(tmp_path / "version") == "6.10.5"


@pytest.mark.parametrize(
    ("platform", "build", "name", "properties"),
    [
        ("nvd", "cuda", "NVIDIA H20", H100),
        ("nvd", "cuda", "NVIDIA H100 80GB HBM3", SimpleNamespace(**(vars(H100) | {"multi_processor_count": 60}))),
        ("nvd", "cuda", "NVIDIA GeForce RTX 4090", SimpleNamespace(**(vars(H100) | {"major": 8, "minor": 9}))),
        ("amd", "rocm", "AMD Instinct MI300X", SimpleNamespace(**(vars(MI300X) | {"multi_processor_count": 38}))),
    ],
)
def test_the_cores_of_an_unknown_device_or_of_a_part_of_one_are_null_with_a_reason(platform, build, name, properties):
    info = gpu_info(platform, 1, fake_torch(build, (name,), properties))
    assert info["gpu_cores"] is None and name in info["reasons"]["gpu_cores"]


def test_a_die_of_an_mi250x_has_half_the_cores_of_the_board():
    properties = SimpleNamespace(total_memory=64 * 2**30, multi_processor_count=110, major=9, minor=0)
    assert gpu_info("amd", 2, fake_torch("rocm", ("AMD Instinct MI250X",), properties))["gpu_cores"] == 7040


@pytest.mark.parametrize("names", [(), ("NVIDIA H100 PCIe", "NVIDIA H100 NVL")])
def test_no_gpu_and_gpus_that_differ_are_errors(names):
    with pytest.raises(HardwareError, match="wanted GPUs of one kind"):
        gpu_info("nvd", 2, fake_torch("cuda", names, H100))


def test_the_command_line_prints_the_section_and_the_table_and_refuses_bad_input(capsys, monkeypatch):
    monkeypatch.setenv("PLATFORM", "cpu")
    assert command.main([]) == 0
    assert json.loads(capsys.readouterr().out)["software_stack"] == "cpu"
    assert command.main(["--table"]) == 0
    assert {"name", "sources", "dense_bf16_tflops"} <= set(json.loads(capsys.readouterr().out)[0])
    monkeypatch.setenv("PLATFORM", "nvidia")
    assert command.main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: PLATFORM: got 'nvidia', wanted amd, nvd, cpu")


def amd(units: int, gigabytes: int, architecture: str) -> SimpleNamespace:
    found = SimpleNamespace(total_memory=gigabytes * 2**30, multi_processor_count=units, major=9, minor=4)
    return SimpleNamespace(**vars(found), gcnArchName=architecture)


GENERIC = [
    ("", amd(304, 192, "gfx942:sramecc+:xnack-"), "AMD Instinct MI300X", "MI300X", 19456),
    ("AMD Radeon Graphics", amd(304, 256, "gfx942"), "AMD Instinct MI325X", "MI325X", 19456),
    ("AMD Instinct", amd(228, 128, "gfx942"), "AMD Instinct MI300A", "MI300A", 14592),
    ("AMD Radeon Graphics", amd(110, 64, "gfx90a"), "AMD Instinct MI250X", "MI250X", 7040),
]


@pytest.mark.parametrize(("given", "properties", "name", "short", "cores"), GENERIC)
def test_a_generic_name_of_amd_is_replaced_by_the_one_board_that_fits_and_this_is_said(
    given, properties, name, short, cores, tools, capsys
):
    torch = fake_torch("rocm", (given,) * 8, properties)
    info = gpu_info("amd", 8, torch)
    assert (info["device_name"], info["gpu_cores"]) == (name, cores)
    said = f"named {given!r}; taken for {name} by {properties.gcnArchName}, {properties.multi_processor_count} compute"
    assert info["reasons"]["device_name"].startswith(said)
    assert capsys.readouterr().err.startswith(f"note: device: {said}")
    assert hardware.visible_device("amd", torch) == short
    result = example_result(gpu_info=info)
    assert check(result) == [], "the reason beside a known name is allowed"


@pytest.mark.parametrize(
    ("given", "properties"),
    [
        ("AMD Radeon Graphics", amd(256, 288, "gfx950")),  # MI350X or MI355X
        ("AMD Radeon Graphics", amd(104, 64, "gfx90a")),  # MI210 or a die of MI250
        ("", amd(80, 192, "gfx942")),  # MI308X, which has no row
        ("", amd(38, 24, "gfx942")),  # a partition of an MI300X
        ("", amd(304, 192, "gfx1100")),
        ("AMD Instinct MI455X", amd(304, 192, "gfx942")),  # a name that says something is not overruled
    ],
)
def test_a_generic_name_that_fits_no_board_or_two_stays_unknown(given, properties, tools, capsys):
    torch = fake_torch("rocm", (given,), properties)
    info = gpu_info("amd", 1, torch)
    assert info["device_name"] == (given or None) and info["gpu_cores"] is None
    assert hardware.visible_device("amd", torch) is None and "taken for" not in capsys.readouterr().err
