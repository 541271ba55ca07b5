"""shell/platform.sh on fake device trees and driver tools: it prints the vendor or an instruction, never a guess. And
`setting KEY` in bash: the value of utils.configure from every layer.
"""

from __future__ import annotations

import pytest

from tests.support.setups import Sandbox, add_program
from utils.settings import config, keys

NODE = "sys/class/kfd/kfd/topology/nodes/{}/properties"
CPU_NODE, GPU_NODE = "cpu_cores_count 64\nsimd_count 0\n", "cpu_cores_count 0\nsimd_count 1216\n"

SMI_LISTS = "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'"
SMI_BROKEN = "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18"
SMI_EMPTY = "echo 'No devices found.'"
ROCM_LISTS = r"printf 'GPU[0]\t\t: Device Name: \t\tAMD Instinct MI300X\n'"
ROCM_BROKEN = "echo 'ERROR: Driver not initialized (amdgpu not found in modules)'; exit 2"
AMD_LISTS = r"printf 'GPU: 0\n    BDF: 0000:05:00.0\n'"
XPU_LISTS = "echo '| 0 | Device Name: Intel(R) Data Center GPU Max 1550 |'"


@pytest.fixture
def machine(tmp_path):
    """Return a runner of the script that sees only the given files and tools."""
    box = Sandbox(tmp_path, "shell/platform.sh", "shell/lib/environment.sh")
    box.environment |= {"TPRIMAT_SYSROOT": str(tmp_path / "sysroot"), "PLATFORM": ""}

    def run(files=(), tools=(), environ=(), arguments=()):
        for name, script in dict(tools).items():
            box.add_tool(name, script)
        for name, text in dict(files).items():
            add_program(tmp_path / "sysroot" / name, text)
        return box.run("platform.sh", *arguments, **dict(environ))

    return run


VENDORS = [
    ("nvd", {}, {"nvidia-smi": SMI_LISTS}),
    ("nvd", {"dev/nvidia0": ""}, {"nvidia-smi": SMI_LISTS}),
    ("amd", {"dev/kfd": "", NODE.format(0): CPU_NODE, NODE.format(1): GPU_NODE}, {}),
    ("amd", {"dev/kfd": "", NODE.format(1): GPU_NODE}, {"rocm-smi": ROCM_BROKEN}),
    ("amd", {"dev/kfd": ""}, {"rocm-smi": ROCM_LISTS}),
    ("amd", {"dev/kfd": ""}, {"amd-smi": '[ "$1" = list ] && ' + AMD_LISTS}),
]
NO_ACCELERATOR = [
    ({}, {}),
    ({"dev/dri/card0": "", "dev/dri/renderD128": ""}, {"xpu-smi": "exit 1"}),  # integrated graphics
    ({}, {"nvidia-smi": SMI_BROKEN, "rocm-smi": ROCM_BROKEN}),
    ({"dev/nvidiactl": "", "dev/nvidia-uvm": ""}, {"nvidia-smi": SMI_EMPTY}),
    ({"dev/kfd": "", NODE.format(0): CPU_NODE}, {"rocm-smi": ROCM_BROKEN}),
    ({NODE.format(0): CPU_NODE}, {"amd-smi": "exit 1"}),
]


TAKEN = [  # what is printed, and what the machine has
    *((platform, {"files": files, "tools": tools}) for platform, files, tools in VENDORS),
    *(("cpu", {"files": files, "tools": tools}) for files, tools in NO_ACCELERATOR),
    # from the environment or the arguments
    *((one, {"files": {"dev/davinci0": ""}, "environ": {"PLATFORM": one}}) for one in ("amd", "nvd", "cpu")),
    ("amd", {"environ": {"PLATFORM": "bad"}, "arguments": ["PLATFORM=amd"]}),
    ("cpu", {"environ": {"PLATFORM": "cpu"}, "arguments": ["MODEL=llama"]}),  # a setting does not change it
    ("nvd", {"tools": {"nvidia-smi": SMI_LISTS}, "environ": {"PLATFORM": ""}}),  # an empty one is no override
]


@pytest.mark.parametrize(("platform", "given"), TAKEN)
def test_a_gpu_that_its_driver_knows_is_the_vendors_platform_and_without_one_it_is_cpu(platform, given, machine):
    done = machine(**given)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{platform}\n", "")


OTHER, NEITHER = {"dev/accel/accel0": ""}, ("neither AMD nor NVIDIA", "PLATFORM=cpu")
BOTH = {"dev/nvidia0": "", "dev/kfd": "", NODE.format(1): GPU_NODE}


UNANSWERED = [  # a device that its driver does not answer for is not guessed away
    ("nvd", {"dev/nvidia0": ""}, {}),
    ("nvd", {"dev/nvidia3": ""}, {"nvidia-smi": SMI_BROKEN}),
    ("nvd", {"dev/nvidia0": ""}, {"nvidia-smi": SMI_EMPTY}),
    ("nvd", {"proc/driver/nvidia/gpus/0000:01:00.0/information": ""}, {}),
    ("amd", {"dev/kfd": ""}, {}),
    ("amd", {"dev/kfd": ""}, {"rocm-smi": ROCM_BROKEN, "amd-smi": "exit 1"}),
    ("amd", {"dev/kfd": "", NODE.format(0): CPU_NODE, NODE.format(1) + "/unreadable": ""}, {}),
    ("amd", {}, {"rocm-smi": ROCM_LISTS}),
]
REFUSED = [  # what the machine has, and words of the error
    *(
        ({"files": files, "tools": tools}, (f"PLATFORM={platform}", "PLATFORM=cpu"))
        for platform, files, tools in UNANSWERED
    ),
    # both vendors, or an accelerator of another kind
    *(
        ({"files": files, "tools": tools}, said)
        for files, tools, said in (
            (BOTH, {"nvidia-smi": SMI_LISTS}, ("PLATFORM=amd", "PLATFORM=nvd")),
            (OTHER, {"nvidia-smi": SMI_LISTS}, ("PLATFORM=nvd",)),
            (OTHER, {}, NEITHER),
            ({"dev/habanalabs0": ""}, {}, NEITHER),
            ({"dev/davinci0": ""}, {}, NEITHER),
            ({"dev/neuron0": ""}, {}, NEITHER),
            ({"dev/dri/card0": ""}, {"xpu-smi": XPU_LISTS}, NEITHER),
        )
    ),
    *(
        ({"environ": {"PLATFORM": value}}, (f"PLATFORM={value}", "wanted amd, nvd or cpu"))
        for value in ("nvidia", "AMD", "gpu", "cpu ")
    ),
    ({"arguments": ["--gpu"]}, ("'--gpu'",)),
]


@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_what_cannot_be_told_or_was_named_wrongly_is_an_error(given, said, machine):
    done = machine(**given)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: platform: got ") and [text for text in said if text not in done.stderr] == []


# `setting KEY` in bash returns the same value as utils.configure, for every key and from every layer.

READ_ALL = r'for key in $KEYS; do printf "%s=" "$key"; setting "$key" "$@" | tr "\r" "!"; done'
"""tr makes a \\r visible, which Python would take for a part of the line's end."""
ENVIRONMENT = {"LABEL": "", "MBS": "4", "DATASET": "/a/b*.jsonl", "RUNTIME": "podman"}
FULL = pytest.mark.full("all settings in bash and Python from one source alone, about 12 s")
ARGUMENTS = ["GBS=32", "MODEL=qwen", "GBS=128", "TARGET_LOSS=", "OUTPUT_DIR=~/x=y,z"]


@pytest.fixture
def box(tmp_path):
    """Return a checkout with settings that contain each unusual line that the grammar allows."""
    made = Sandbox(tmp_path, "shell", "config*.env")
    overlay = made.root / "config.cpu.env"
    unusual = b"\r\n  \r\n#SL=1\r\nSEED=7"  # without a last newline
    overlay.write_bytes(overlay.read_bytes().replace(b"\n", b"\r\n") + unusual)
    return made


@pytest.mark.parametrize(
    ("environment", "arguments"),
    [
        pytest.param({}, [], id="files"),
        pytest.param(ENVIRONMENT, [], id="environment", marks=FULL),
        pytest.param({}, ARGUMENTS, id="arguments", marks=FULL),
        pytest.param({"GBS": "256", **ENVIRONMENT}, ["--dry-run", *ARGUMENTS], id="all"),
    ],
)
@pytest.mark.parametrize(
    ("platform", "method"),
    [("cpu", "equal"), ("amd", "equal"), ("amd", "best"), ("nvd", "best"), ("nvd", "both"), ("amd", "of the file")],
)
def test_bash_reads_what_python_reads(platform, method, environment, arguments, box):
    if method == "of the file":
        text = (box.root / "config.env").read_text()
        (box.root / "config.env").write_text(text.replace("METHOD=equal", "METHOD=best"))
    asked = arguments if method == "of the file" else [*arguments, f"METHOD={method}"]
    settings = [argument for argument in asked if not argument.startswith("--")]
    python = config.values_of(platform, settings, environment, box.root)
    done = box.sourced(READ_ALL, *asked, PLATFORM=platform, KEYS=" ".join(keys.KEYS), **environment)
    found = dict(line.split("=", 1) for line in done.stdout.removesuffix("\n").split("\n"))
    assert found == {key: python[key].text for key in keys.KEYS}


def test_a_key_that_stands_nowhere_is_an_error(box):
    done = box.sourced("setting NONSENSE; echo reached")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: config.env: NONSENSE is missing; add the line NONSENSE=...\n"
