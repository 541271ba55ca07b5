"""The conditions of a job: what disturbs it is said before it and recorded in its result; STRICT=1 refuses the job.

Ranks get variables of known names and no secret, and the result names what they got.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from smi_machine import H100, amd_process, mi300x_metric, mi300x_static

from train import matrix
from utils.results import store
from utils.results.schema import OPTIONAL_SECTIONS

KEYS = set(OPTIONAL_SECTIONS["conditions"])


def install(host, platform, gpu, metric=None):
    """Install one GPU that is as it should be but for these changes."""
    if platform == "nvd":
        host.nvidia(H100 | gpu)
    if platform == "amd":
        host.amd([mi300x_static() | gpu], [mi300x_metric() | (metric or {})])


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


NUMA = {"proc/sys/kernel/numa_balancing": "1\n", "sys/devices/system/node/node0/meminfo": ""}
TWO_NODES = NUMA | {"sys/devices/system/node/node1/meminfo": ""}
GOVERNOR = {"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n"}
SWAP = {"proc/meminfo": "MemTotal: 16000000 kB\nSwapTotal: 9000000 kB\nSwapFree: 4000000 kB\n"}
INFINIBAND = {"dev/infiniband/uverbs0": ""}
LEVEL, LIMIT = "AMDSMI_DEV_PERF_LEVEL_", {"clocks.applications.graphics": "1200"}
CAP_600 = {"limit": {"max_power": {"value": 750, "unit": "W"}, "socket_power": {"value": 600, "unit": "W"}}}
USE = {"gfx_activity": {"value": 97, "unit": "%"}}
HANDICAPS = [
    *((platform, {}, {}, None) for platform in ("cpu", "nvd", "amd")),
    ("nvd", {"memory.used": "29802"}, {}, "gpu 0: 31.2 GB are in use before the job"),
    ("amd", {}, {"usage": USE}, "gpu 0: is 97 % busy before the job"),
    (
        "nvd",
        {"enforced.power.limit": "500.00"},
        {},
        "gpu 0: power cap 500 W, below the default of 700 W; as root: nvidia",
    ),
    ("nvd", {"enforced.power.limit": "699.00"}, {}, None),
    ("nvd", {"enforced.power.limit": "750.00"}, {}, None),
    ("amd", CAP_600, {}, "gpu 0: power cap 600 W of 750 W at most, and the default is unknown; as root: rocm-smi"),
    ("nvd", LIMIT, {}, "gpu 0: clock limited to 1200 MHz, default 1980 MHz"),
    ("amd", {}, {"perf_level": f"{LEVEL}LOW"}, "gpu 0: performance level low, usual: auto"),
    ("amd", {}, {"perf_level": f"{LEVEL}UNKNOWN"}, None),
    (
        "nvd",
        {"clocks_event_reasons.active": "0x0000000000000044"},
        {},
        "gpu 0: is slowed down before the job (hw_thermal",
    ),
    ("nvd", {"clocks_event_reasons.active": "0x0000000000000005"}, {}, None),
    ("nvd", {"persistence_mode": "Disabled"}, {}, "gpu 0: persistence mode is off"),
    ("nvd", {"compute_mode": "Exclusive_Process"}, {}, "gpu 0: compute mode Exclusive_Process, usual: Default"),
    ("nvd", {"mig.mode.current": "Enabled"}, {}, "gpu 0: MIG is on"),
    ("cpu", {}, TWO_NODES, "machine: NUMA balancing is on; as root: sysctl kernel.numa_balancing=0"),
    ("nvd", {}, TWO_NODES, "machine: NUMA balancing is on"),
    ("cpu", {}, NUMA, None),
    ("nvd", {}, GOVERNOR, "machine: the cores' governor is powersave"),
    ("amd", {}, SWAP, "machine: 5.1 GB are swapped out"),  # 5,000,000 KiB
    ("cpu", {}, GOVERNOR | SWAP, None),
    ("nvd", {}, {resource.RLIMIT_NOFILE: 1024}, "machine: a process may open 1024 files"),
    ("cpu", {}, {resource.RLIMIT_NOFILE: 1024}, None),
    ("nvd", {}, INFINIBAND | {resource.RLIMIT_MEMLOCK: 8_000_000}, "machine: a process may lock 0.008 GB"),
    ("nvd", {}, {resource.RLIMIT_MEMLOCK: 8_000_000}, None),
]
"""Platform, changes of its GPU, of AMD's metric or of the machine's files and limits, beginning of the one warning."""


@pytest.mark.parametrize(("platform", "gpu", "more", "said"), HANDICAPS)
def test_each_handicap_is_one_line_that_strict_refuses(platform, gpu, more, said, host, job, limits):
    limits.update({name: limit for name, limit in more.items() if isinstance(name, int)})
    write(host.root, {name: text for name, text in more.items() if "/" in str(name)})
    install(host, platform, gpu, {name: value for name, value in more.items() if name in ("usage", "perf_level")})
    ended = job.run("STRICT=1", platform=platform, framework="hf")
    if said is None:
        assert ended.code == 1 and ended.result["warnings"] == []
    else:
        assert ended.code == 2 and ended.err.startswith(f"error: STRICT=1: {said}"), ended.err
        assert len(re.findall(r"(?:gpu( \d)?|machine): ", ended.err)) == 1 and ended.err.count("\n") == 1
        assert list(job.output.rglob("train_*")) == [], "nothing was started"


def test_small_shared_memory_and_busy_cores_are_warned_of(host, job, monkeypatch):
    statvfs, stat = os.statvfs, host.root / "proc/stat"
    write(host.root, {"proc/stat": "cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1 1 1 1\n", "dev/shm/x": ""})
    small = SimpleNamespace(f_blocks=16_384, f_frsize=4096, f_bavail=1)
    monkeypatch.setattr(os, "statvfs", lambda path: small if str(path).endswith("dev/shm") else statvfs(path))
    monkeypatch.setattr(time, "sleep", lambda seconds: stat.write_text("cpu  130 0 110 750 110 0 0 0 60 0\n"))
    install(host, "amd", {})
    said = job.run("STRICT=1", platform="amd", framework="hf").err
    # 40 of 100 ticks: user and system; idle and iowait are not work, guests are in user already
    assert "machine: 40 % of the cores' time went to other work" in said
    assert "machine: /dev/shm has 0.07 GB; start the container with --ipc=host" in said


def test_gpus_that_nobody_answers_for_are_a_warning_with_the_reason_and_nulls(host, job):
    host.nvidia(broken="NVIDIA-SMI has failed", code=9)
    ended = job.run(platform="nvd", framework="hf")
    assert "warning: gpu: the conditions are unknown: nvidia-smi: ended with exit code 9" in ended.err
    section = is_valid(ended)
    assert section["gpu_count"] is None and "exit code 9" in section["reasons"]["power_cap_watts"]


def is_valid(ended):
    section = ended.result["conditions"]
    assert set(section) == KEYS | {"reasons"}
    assert all(section["reasons"].get(key) for key in KEYS if section[key] is None)
    return section


def test_quiet_machine_has_its_conditions_and_no_warning(host, job):
    write(host.root, GOVERNOR | SWAP | TWO_NODES | {"proc/sys/kernel/numa_balancing": "0\n"})
    write(host.root, {"sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n"})
    ended = job.run(ranks="print('belongs to', os.environ['TPRIMAT_JOB'].split(':')[3])")
    section = is_valid(ended)
    assert "warning" not in ended.err and ended.result["warnings"] == []
    assert "belongs to train_cpu_mega_llama_run1" in ended.result["reason"]
    assert {section["reasons"][name] for name in ("power_cap_watts", "throttled_percent", "gpu_tool")} == {"no GPU"}
    assert (section["numa_balancing"], section["numa_nodes"]) == (False, 2)
    assert (section["cpu_governor"], section["swap_used_gb"]) == ("performance or powersave", 5.12)
    assert section["reasons"]["shared_memory_gb"] == "there is no /dev/shm"
    assert (section["open_files_limit"], section["locked_memory_gb"]) == (65536, None)


def test_of_two_gpus_the_worse_one_is_recorded_and_what_slows_a_job_is_said_after_it(host, job):
    second = H100 | {"index": "1", "uuid": "GPU-2", "enforced.power.limit": "500.00", "temperature.gpu": "64"}
    busy = {"gpu_uuid": H100["uuid"], "pid": "4000000", "used_memory": "30000", "process_name": "/opt/x/python"}
    ours = {"gpu_uuid": H100["uuid"], "pid": str(os.getppid()), "used_memory": "500", "process_name": "python"}
    host.nvidia(H100, second, processes=[busy, ours])
    hot = "machine['gpus'][0]['clocks_event_reasons.active'] = '0x0000000000000040'; "
    hot += "machine['gpus'][1]['clocks_event_reasons_counters.hw_thermal_slowdown'] = '100000'"
    answers = (
        f"path = Path({str(host.answers / 'nvidia.json')!r}); import json; machine = json.loads(path.read_text())\n"
    )
    ended = job.run(ranks=answers + hot + "\npath.write_text(json.dumps(machine))", platform="nvd", framework="hf")
    section = is_valid(ended)
    assert (section["gpu_tool"], section["gpu_count"], section["driver_version"]) == ("nvidia-smi", 2, "550.54.15")
    assert (section["power_cap_watts"], section["default_power_cap_watts"]) == (500.0, 700.0)
    assert (section["temperature_before_celsius"], section["max_sm_clock_mhz"]) == (64.0, 1980.0)
    assert section["throttle_before"] == ["gpu_idle"]
    assert section["throttle_after"] == ["gpu_idle", "hw_thermal_slowdown"]
    assert section["throttled_percent"]["hw_thermal_slowdown"] > 0, "0.1 s, on the second GPU"
    assert section["other_processes"] == 1, "who started the job is none"
    warnings = ended.result["warnings"]
    assert [line.split(";")[0].split(" %")[0] for line in warnings[:3]] == [
        "gpu: process 4000000 (python) holds 31.5 GB of GPU 0",  # 30,000 MiB
        "gpu 1: power cap 500 W, below the default of 700 W",
        "gpu: power caps differ, 500 to 700 W",
    ]
    assert re.match(r"gpu: slowed down for \d+ % of the job \(hw_thermal_slowdown\); look at the cooling", warnings[3])
    assert [line.removeprefix("warning: ") for line in ended.err.splitlines() if "warning: gpu" in line] == warnings[:3]


def test_only_gpus_and_processes_of_the_job_count(host, job, monkeypatch):
    held = [{"gpu": index, "process_list": [amd_process(4_000_000 + index, 10**9)]} for index in range(2)]
    host.amd([mi300x_static(0, cap=600), mi300x_static(1)], [mi300x_metric(0), mi300x_metric(1)], held)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "1")
    section = is_valid(job.run(platform="amd", framework="hf"))
    assert (section["gpu_count"], section["power_cap_watts"], section["other_processes"]) == (1, 750.0, 1)
    assert "power1_cap_default" in section["reasons"]["default_power_cap_watts"]


@pytest.mark.parametrize(("later", "share"), [(585613 + 500, 25.0), (585613 - 1, None)])
def test_share_of_time_of_amd_comes_from_its_samples_unless_the_driver_was_loaded_anew(later, share, host, job):
    def metric(all_samples, ppt):
        return [mi300x_metric() | {"throttle": {"accumulation_counter": all_samples, "ppt_accumulated": ppt}}]

    host.amd([mi300x_static()], metric(3808991, 585613))
    answer = json.dumps(metric(3808991 + 2000, later))
    path = str(host.answers / "amd_metric.json")
    ended = job.run(ranks=f"Path({path!r}).write_text({answer!r})", platform="amd", framework="hf")
    found = is_valid(ended)["throttled_percent"]
    assert found == (None if share is None else {"ppt": share}), "500 of 2,000 samples"


def test_result_that_cannot_be_written_again_keeps_its_numbers(host, job, monkeypatch):
    monkeypatch.setattr(store, "write", Mock(side_effect=OSError(28, "No space left on device")))
    ended = job.run(ranks="result()")
    assert ended.code == 0 and ended.result["status"] == "ok" and "conditions" not in ended.result
    for lost in ("energy", "conditions"):
        assert re.search(f"the {lost} of the job (is|are) not in it: \\[Errno 28\\] No space left", ended.err)


def test_strict_refuses_a_whole_matrix_before_its_data_are_made(host, tmp_path, monkeypatch, capsys):
    write(host.root, TWO_NODES)
    where = [f"OUTPUT_DIR={tmp_path / 'output'}", f"DATA_DIR={tmp_path / 'made'}", "DATASET=synth", "FRAMEWORK=hf"]
    command = ["matrix", "--platform", "cpu", *where, "MODEL=llama", "TRAIN_ITERS=4", "WARMUP_ITERS=1", "STRICT=1"]
    monkeypatch.setattr(sys, "argv", command)
    assert matrix.main() == 2
    assert "error: STRICT=1: machine: NUMA balancing is on" in capsys.readouterr().err
    assert not (tmp_path / "made").exists() and list(tmp_path.rglob("train_*")) == []


# Variables of the ranks

ENV_NAMES = "TPRIMAT_ENV_NAMES"
TOKEN = "hf_" + "".join(chr(ord("a") + (5 * place) % 26) for place in range(34))
WORD = "open" + "-sesame-" * 2
PLANTED = {
    "HF_TOKEN": TOKEN,
    "WANDB_API_KEY": WORD,
    "PIP_INDEX_URL": f"https://ann:{WORD}@index.example/simple",
    "HTTPS_PROXY": f"http://ann:{WORD}@proxy.example:3128",
    "CONTAINER_ARGS": f"--env X={TOKEN}",
    "MY_NOTE": TOKEN,
    "NCCL_FOO": TOKEN,
    "UCX_PROXY": f"http://ann:{WORD}@proxy.example:3128",
    "NCCL_PW": WORD,
    "MY_OWN": TOKEN,
}
WITHHELD = ["MY_OWN", "NCCL_FOO", "NCCL_PW", "UCX_PROXY"]
"""Those of a name that is passed, so that only their value, or what the name means, keeps them out."""
CHOSEN = {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "1", "PYTORCH_CUDA_ALLOC_CONF": "backend:native", "MY_NUMBER": "7"}


@pytest.fixture
def ranks_get(job, monkeypatch):
    """Returns a function that starts stand-in ranks with more variables; it returns what they got, and their end."""

    def run(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        ended = job.run(framework="hf", ranks="import json; print('got', json.dumps(dict(os.environ)))")
        got = [line.removeprefix("got ") for line in ended.out.splitlines() if line.startswith("got ")]
        return json.loads(got[0]) if got else {}, ended

    return run


def test_ranks_get_what_is_known_or_asked_for_and_no_secret_which_is_written_nowhere(ranks_get):
    seen, ended = ranks_get(PLANTED | CHOSEN | {ENV_NAMES: "MY_OWN,MY_NUMBER"})
    assert not seen.keys() & PLANTED.keys()
    assert not [name for name, value in seen.items() if TOKEN in value or WORD in value]
    assert {name: seen.get(name) for name in CHOSEN} == CHOSEN
    result = ended.result
    passed = result["provenance"]["environment_passed"]
    assert {*CHOSEN, "PATH", "TPRIMAT_SETTINGS"} <= set(passed) <= seen.keys() and passed == sorted(passed)
    assert result["provenance"]["environment_withheld"] == WITHHELD
    (warning,) = (line for line in result["warnings"] if line.startswith("environment: "))
    assert warning.endswith(": " + ", ".join(WITHHELD)) and f"warning: {warning}\n" in ended.err
    texts = [path.read_text() for path in ended.output.rglob("*") if path.is_file()]
    assert not [text for text in [ended.out, ended.err, *texts] if TOKEN in text or WORD in text]


@pytest.mark.parametrize("bad", [f"A={TOKEN}", "A B", "A,$B"])
def test_list_of_names_that_holds_something_else_is_refused_without_repeating_it(bad, ranks_get):
    _, ended = ranks_get({ENV_NAMES: bad})
    assert ended.code == 2 and f"{ENV_NAMES}: wanted names of variables" in ended.err
    assert TOKEN not in ended.err


SECRET_NAMES = ("NCCL_PW", "NCCL_API_KEY", "SLURM_JWT", "HIP_ACCESS_KEY", "OMPI_DB_PWD", "UCX_SECRET")
HONEST = {
    **dict.fromkeys(("TOKENIZERS_PARALLELISM", "NCCL_IB_PKEY", "TRITON_KEYED_CACHE", "PRIMUS_PATH"), "X"),
    # of AMD's benchmark
    **dict.fromkeys(("HSA_NO_SCRATCH_RECLAIM", "NVTE_CK_USES_BWD_V3", "GPU_MAX_HW_QUEUES", "NCCL_NVLS_ENABLE"), "1"),
    **dict.fromkeys(("PRIMUS_TURBO_ATTN_V3_ATOMIC_FP32", "NVTE_CK_IS_V3_ATOMIC_FP32"), "1"),
    "TPRIMAT_GIT_COMMIT": "3bceea6f" * 5,
    "TPRIMAT_IMAGE": "localhost/tprimat:nvd",
    "TPRIMAT_IMAGE_DIGEST": "sha256:" + "0123456789abcdef" * 4,
    "NVIDIA_PATHS": "/opt/rocm/lib:/usr/lib/x86_64-linux-gnu",
    "CUDA_VISIBLE_DEVICES": "GPU-5c1a8f3e-2f0e-4c39-9b41-0d5f6a7b8c9d,GPU-6c1a8f3e-2f0e-4c39-9b41-0d5f6a7b8c9d",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512",
    "SLURM_JOB_NODELIST": "n[1-2],gpu-017.cluster.example",
}
"""Names and values that only look similar to those of secrets."""


def test_name_that_means_a_secret_is_withheld_under_any_prefix_and_a_similar_one_is_passed(ranks_get):
    hidden = f"NCCL_{TOKEN}"
    asked = ",".join(SECRET_NAMES[:3])
    seen, ended = ranks_get(dict.fromkeys(SECRET_NAMES, "x") | HONEST | {hidden: "1", ENV_NAMES: asked})
    assert not seen.keys() & {*SECRET_NAMES, hidden}, "also those that were asked for by name"
    assert TOKEN not in ended.out + ended.err and "environment: not passed to the ranks" in ended.err
    assert {name: seen.get(name) for name in HONEST} == HONEST
