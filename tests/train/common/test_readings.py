"""A reader of what decides nothing about the work may fail: the result is ok, with null, the reason and a warning.

Real trainings of hf and mega with an error in one reader after another; the readers of the launcher, with a stand-in
for its ranks. An error in the loop of the steps, in a read-back setting or in the data ends a job as ever.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT

from tests.support.launching import Launcher, case, train
from train.energy import section
from train.machine import conditions
from utils.hardware import detect
from utils.provenance import origin
from utils.readings import attempt
from utils.results import schema

SHORT = ("TRAIN_ITERS=4", "GBS=2", "MBS=1", "SL=64", "WARMUP_ITERS=1")
PROFILED = ("TRAIN_ITERS=8", "PROFILING=true", "PROFILE_STEP_START=2", "PROFILE_STEP_END=2")
PLANTED = "BrokenReaderError: planted in "
NAMES_OF_KERNELS = tuple(
    ("resolved_config", key) for key in ("attention_backend", "attention_library", "float32_matmul_precision")
)
PEAKS = tuple(
    ("memory_metrics", f"{kind}_memory_{what}_gb") for kind, what in (("peak", "allocated"), ("peak", "reserved"))
)
READERS = {
    "train.common.kernels:read": NAMES_OF_KERNELS,
    "train.common.kernels:_float32_products": NAMES_OF_KERNELS[2:],
    "train.common.kernels:loaded_cudnn": (),
    "train.job.recorder:CpuDevice.peak_allocated_gb": PEAKS,
    "train.job.recorder:CpuDevice.peak_reserved_gb": PEAKS,
    "utils.provenance.origin:describe": tuple(("provenance", key) for key in ("git_commit", "framework_versions")),
    "utils.provenance.origin:versions": (("provenance", "framework_versions"),),
    "train.common.trainer:print_start": (),
    "train.common.trainer:print_end": (),
    "utils.results.raw_samples:lines": (),
    "train.common.trainer:gather_files": (),
    "train.common.trainer:write_profile": (),
    "train.profiling.tools:TorchRecording.stop_tool": (),
    "train.common.trainer:leave": (),
}
"""Places of readers and, where they fill keys of the result, these keys."""
SILENT = ("train.common.trainer:leave",)
"""Called when the result is written; the log has the warning."""
OF_PROFILE = ("gather_files", "write_profile", "stop_tool")
LOOP = "train.common.loading:LabelledSamples.__getitem__"
"""A place in the loop: a sample of a step cannot be read."""


@pytest.fixture(scope="module")
def ran(prefix, tmp_path_factory):
    cases = {}
    for place in (*READERS, LOOP):
        more = PROFILED if place.endswith(OF_PROFILE) else ()
        cases[place] = case("llama", *SHORT, *more, plants=(("reader_fails", place),))
    return train("hf", cases, tmp_path_factory.mktemp("readers"), prefix)


@pytest.mark.parametrize("place", READERS)
def test_a_reader_that_fails_costs_no_measurement(ran, place):
    result = ran[place].ok
    assert schema.problems(result) == []
    assert len(result["loss_values"]) == len(result["step_times"]) == (7 if place.endswith(OF_PROFILE) else 4)
    for name, key in READERS[place]:
        assert result[name][key] is None and PLANTED in result[name]["reasons"][key]
    said = ran[place].printed if place in SILENT else "\n".join(result["warnings"])
    assert PLANTED + place.rpartition(".")[2].rpartition(":")[2] in said and "second line" not in said


def test_an_error_in_the_loop_ends_the_job_as_failed(ran):
    assert set(ran[LOOP].codes) != {0}
    (result,) = ran[LOOP].results
    assert result["status"] == "failed" and "planted in __getitem__" in result["reason"]


@pytest.mark.parametrize("name", ["merge_ranks", "section"])
@pytest.mark.full("two trainings of mega with experts, about 15 s")
def test_tokens_of_experts_that_cannot_be_counted_are_null(name, prefix, tmp_path):
    place = f"train.job.recorder:ExpertTokens.{name}"
    cases = {place: case("qwen3moe", *SHORT, plants=(("reader_fails", place),))}
    result = train("mega", cases, tmp_path, prefix)[place].ok
    assert result["experts"]["tokens"] is None and PLANTED in result["experts"]["reasons"]["tokens"]
    assert any(line.startswith("experts: ") for line in result["warnings"])


# The readers of the launcher


def raising(*arguments, **keywords):
    raise RuntimeError("planted")


ENERGY, CONDITIONS = ("energy_metrics", "joules"), ("conditions", "busy_before_percent")
OF_LAUNCHER = {
    "energy": (section, "of_job", ENERGY),
    "samples of energy": (section, "read_samples", ENERGY),
    "conditions": (conditions, "take_snapshot", CONDITIONS),
    "section of the conditions": (conditions, "section", CONDITIONS),
    "files of the job": ("train.launch", "note_trees", None),
    "provenance": (origin, "versions", None),
}


@pytest.mark.parametrize("name", OF_LAUNCHER)
def test_a_reader_of_the_launcher_that_fails_costs_no_measurement(name, tmp_path, monkeypatch):
    owner, function, place = OF_LAUNCHER[name]
    monkeypatch.setattr(sys.modules[owner] if isinstance(owner, str) else owner, function, raising)
    ranks = """
step(6)
from train.energy.section import unknown
from train.job.recorder import clock
result(energy_metrics=unknown("not yet") | {"step_clock": clock() | {"ends": [float(n) for n in range(10)]}})
"""
    ended = Launcher(tmp_path, monkeypatch).run(ranks=ranks)
    assert (ended.code, ended.result["status"]) == (0, "ok"), ended.err
    said = "\n".join([*ended.result["warnings"], ended.err])
    if place is not None:
        assert ended.result[place[0]][place[1]] is None
        assert ended.result[place[0]]["reasons"][place[1]]
    assert "planted" in said or name == "provenance"


def test_an_interrupt_is_no_failed_reading():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(interrupted)
    assert attempt(lambda: 3) == (3, "") and attempt(raising) == (None, "RuntimeError: planted")


@pytest.mark.parametrize("name", ["_identified", "_nvidia_driver_version"])
def test_names_and_versions_of_a_gpu_that_cannot_be_read_are_null_with_the_reason(name, monkeypatch):
    from tests.utils.hardware.test_devices import fake_torch, gpu

    monkeypatch.setattr(detect, name, raising)
    info = detect.gpu_info("nvd", 1, fake_torch("cuda", ("NVIDIA H200",), gpu(16896, 150_110_000_000)))
    key = {"_identified": "gpu_cores", "_nvidia_driver_version": "driver_version"}[name]
    assert info[key] is None and info["reasons"][key] == "RuntimeError: planted" and info["total_memory_gb"]


# Two libraries of cuDNN in one process


def test_two_versions_of_cudnn_in_one_process_are_both_named(tmp_path):
    places = []
    for version in (91900, 91400):
        folder = tmp_path / str(version)
        folder.mkdir()
        library = folder / "libcudnn.so.9"
        (folder / "v.c").write_text(f"unsigned long cudnnGetVersion(void) {{ return {version}; }}")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, folder / "v.c"], check=True)
        places.append(str(library))
    code = (
        "import ctypes, sys; from types import SimpleNamespace; from train.common import kernels, trainer\n"
        "loaded = [ctypes.CDLL(path) for path in sys.argv[1:]]\n"
        "report = SimpleNamespace(warnings=[], resolved={'attention_backend': 'torch_sdpa', 'reasons': {},\n"
        " 'layer_implementation': 'x', 'precision': 'bf16'}, reading=lambda what, read: read())\n"
        "trainer.read_kernels(report); print(report.warnings)"
    )
    for given, is_warned in ((places, True), (places[:1], False)):
        ran = subprocess.run([sys.executable, "-c", code, *given], cwd=ROOT, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert ("91900" in ran.stdout and "91400" in ran.stdout) is is_warned
        assert all(str(Path(path).parent) in ran.stdout for path in given) is is_warned
