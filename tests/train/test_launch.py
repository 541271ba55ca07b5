"""A job leaves one result beside the earlier ones; it is skipped if it is the same, and refused if it is impossible.

A job of two nodes without Slurm: two launchers that meet in OUTPUT_DIR, and one result for every end.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys

import pytest
from toydata import write_toy_data

from evaluate.inputs.discover import find
from example import example_result
from tests.support.launching import Launcher, free_port, launch, run
from utils.housekeeping.inventory import OUTPUT_LAYOUT
from utils.results import store


def only_result(folder):
    (path,) = find([folder])
    return path


@pytest.mark.full("two real trainings of hf, about 30 s")
def test_a_finished_job_is_skipped_and_another_seed_trains_another_curve_and_keeps_the_earlier_attempt(
    prefix, tmp_path
):
    run("hf", "llama", tmp_path, prefix)
    before = only_result(tmp_path).read_bytes()
    assert "has an ok result" in launch("hf", "llama", tmp_path, prefix).stdout
    assert only_result(tmp_path).read_bytes() == before
    assert launch("hf", "llama", tmp_path, prefix, "SEED=43").returncode == 0
    assert json.loads(only_result(tmp_path).read_text())["attempt"] == 2
    (kept,) = (tmp_path / store.SUPERSEDED).iterdir()
    assert kept.read_bytes() == before
    other, first = (store.read(path) for path in (only_result(tmp_path), kept))
    assert other["loss_values"] != first["loss_values"]
    for key in ("initial_weights_sha256", "token_stream_sha256"):
        assert other["fingerprint"][key] != first["fingerprint"][key]
    # recorded among the variables that change speed, where two runs must not differ by the job's own folder
    assert len({one["provenance"]["environment"]["TORCHINDUCTOR_CACHE_DIR"] for one in (other, first)}) == 1


@pytest.mark.full("a real training of mega, about 10 s")
def test_the_variables_of_amds_image_stop_no_job_of_megatron_core_and_stand_in_the_result(
    prefix, tmp_path, monkeypatch
):
    """megatron-core 0.16.1 asserts that NVTE_FLASH_ATTN is 1 or unset for the attention backend `auto`."""
    given = {"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "1", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    for name, value in {**given, "NVTE_CK_USES_BWD_V3": "1"}.items():
        monkeypatch.setenv(name, value)
    ran = launch("mega", "llama", tmp_path, prefix)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "NVTE_FLASH_ATTN=0 is not passed to mega" in ran.stderr
    provenance = store.read(only_result(tmp_path))["provenance"]
    assert provenance["environment_removed"] == given
    assert provenance["environment"]["NVTE_CK_USES_BWD_V3"] == "1"
    assert provenance["environment"]["NVTE_FLASH_ATTN"] == "1", "megatron-core's own"
    assert "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE" not in provenance["environment"]


@pytest.mark.full("a real training of each framework, about 20 s")
@pytest.mark.parametrize(("framework", "model"), [("mega", "qwen3moe"), ("hf", "llama")])
def test_loss_that_is_not_a_number_ends_as_nan_with_the_steps_so_far(framework, model, prefix, tmp_path):
    ran = launch(framework, model, tmp_path, prefix, "LR=1e30", "CLIP_GRAD=1e30", "MIN_LR=1e30", "WARMUP_ITERS=0")
    result = store.read(only_result(tmp_path))
    assert ran.returncode not in (0, 2)
    assert result["status"] == "nan" and "step" in result["reason"]
    assert 1 <= len(result["steps"]) < 6
    assert result["loss_values"][-1] is None or result["grad_norms"][-1] is None


BAD_INPUT = {
    "unknown key": (["NONSENSE=1"], "unknown key NONSENSE=1"),
    "micro batch of 0": (["MBS=0"], "MBS=0"),
    "global batch that does not divide": (["GBS=7"], "GBS=7"),
    "gradient accumulation that disagrees": (["GA=9"], "GA=9"),
    "data set that is not there": (["DATASET={missing}/text"], "{missing}/text"),
    "text that is not there": (["DATASET={missing}/text.jsonl"], "{missing}/text.jsonl"),
    "hub data set, not fetched yet": (["DATASET=c4"], "c4_llama_"),
    "hf with tensor parallelism": (["TP=2", "CPU_RANKS=2"], "TP=2"),
    "output folder that cannot be written": (["OUTPUT_DIR=/proc/nowhere"], "OUTPUT_DIR=/proc/nowhere"),
    "data set read over and over": (["TRAIN_ITERS=4000"], "epochs"),
    "unknown model": (["--model=gpt"], "llama, qwen, mistral"),
}


@pytest.fixture
def job(tmp_path, monkeypatch):
    return Launcher(tmp_path, monkeypatch)


@pytest.mark.parametrize("fault", BAD_INPUT)
def test_bad_input_ends_with_2_and_one_line_and_writes_nothing(fault, job, tmp_path):
    settings, named = BAD_INPUT[fault]
    job.run(ranks="result()")
    before = {path: path.read_bytes() for path in job.output.rglob("*") if path.is_file()}
    asked = [setting.format(missing=tmp_path) for setting in settings]
    ended = job.run(*asked, ranks="print('started')", framework="hf")
    assert (ended.code, ended.out) == (2, "")
    assert {path: path.read_bytes() for path in job.output.rglob("*") if path.is_file()} == before
    (line,) = ended.err.splitlines()
    assert line.startswith("error: ") and named.format(missing=tmp_path) in line


# A job is the same job, and is skipped, only if settings, data, code and machine are the same.

RANKS = ("CPU_RANKS=2", "PRECISION=fp32")
REFUSED = "error: STRICT=1: environment: "


@pytest.fixture
def done(tmp_path, monkeypatch):
    """A job with an ok result; another job is refused before anything starts, as its environment holds a secret."""
    made = Launcher(tmp_path, monkeypatch)
    identity = made.run(*RANKS).result["identity_sha256"]
    (path,) = made.output.glob("*.json")
    path.write_text(json.dumps(example_result(identity_sha256=identity)))
    monkeypatch.setenv("NCCL_PW", "x")
    return made


def is_same(done, *settings, **options):
    ended = done.run(*RANKS, "STRICT=1", *settings, **options)
    assert ended.err.startswith(REFUSED) if ended.code else "has an ok result" in ended.out, ended
    return ended.code == 0


def test_what_does_not_change_the_work_is_the_same_job(done, tmp_path):
    shutil.copytree(done.output, tmp_path / "elsewhere")
    shutil.copytree(done.output, done.output / "night")
    for setting in ("RUNS=5", "COOLDOWN_SECONDS=5", "FIT=ignore", "LABEL=night", f"OUTPUT_DIR={tmp_path}/elsewhere"):
        assert is_same(done, setting), setting
    assert is_same(done, f"DATA_DIR={tmp_path}/other"), "the same data"
    assert not is_same(done, "FORCE=1")


OTHERS = """
TRAIN_ITERS=7 GBS=16 MBS=1 SL=64 CPU_RANKS=1 TP=2 PP=2 PRECISION=bf16 SEED=43 LR=2e-3 MIN_LR=1e-5 WARMUP_ITERS=1
WEIGHT_DECAY=0.2 BETA1=0.8 BETA2=0.9 ADAM_EPS=1e-7 CLIP_GRAD=0.5 INIT=native INIT_STD=0.03 SAMPLES=90 ALLOW_REPEAT=true
RECOMPUTE=full OPTIMIZER_STATE=bf16 LAYERS=local
"""


def test_another_setting_is_another_job(done):
    assert [setting for setting in OTHERS.split() if is_same(done, setting)] == []


def test_other_framework_model_run_data_or_machine_is_another_job(done, monkeypatch):
    (path,) = done.output.glob("*.json")
    for name in ("hf_llama_run1", "mega_qwen_run1", "mega_llama_run2"):
        result = json.loads(path.read_text()) | dict(zip(("framework", "model"), name.split("_")[:2], strict=True))
        path.with_name(f"train_cpu_{name}.json").write_text(json.dumps(result | {"run": int(name[-1])}))
    assert not is_same(done, framework="hf") and not is_same(done, model="qwen") and not is_same(done, "--run=2")
    assert is_same(done)
    with monkeypatch.context() as patch:
        patch.setattr(platform, "node", lambda: "another-machine")
        assert not is_same(done)
    write_toy_data(done.prefix, documents=100, seed=1)
    assert not is_same(done)


def test_other_code_is_another_job(done, checkout):
    def said():
        command = [sys.executable, "-m", "train.launch", *done.command(*RANKS, "STRICT=1")]
        ran = subprocess.run(
            command, cwd=checkout, capture_output=True, text=True, env={"NCCL_PW": "x", "PATH": "/usr/bin"}
        )
        return ran.stdout + ran.stderr

    assert "has an ok result" in said()
    with (checkout / "train" / "launch.py").open("a") as file:
        file.write("# changed\n")
    assert said().startswith(REFUSED)


# Jobs of two nodes

NODE = "node = int('NODE_RANK=1' in sys.argv)\n"
MEETING = ("NNODES=2", "MASTER_ADDR=127.0.0.1")


@pytest.fixture
def two(job):
    """Returns a function that runs the launchers of both nodes to their ends; exit code and output of each."""

    def run(ranks, *settings, of_second=()):
        where = (*MEETING, f"MASTER_PORT={free_port()}", "CPU_RANKS=1", "LABEL=two", *settings)
        started = [
            job.start(*where, "NODE_RANK=1", *of_second, ranks=NODE + ranks),
            job.start(*where, ranks=NODE + ranks),
        ]
        said = [process.communicate(timeout=600)[0] for process in started]
        return [(process.returncode, text) for process, text in zip(started, said, strict=True)][::-1]

    return run


def test_nodes_agree_on_the_attempt_whatever_an_earlier_job_has_left_and_show_one_anothers_steps(job, two):
    place = job.output / "logs" / ".two_train_cpu_mega_llama_run1.nodes"
    place.mkdir(parents=True)
    (place / "node1.json").write_text(json.dumps({"nonce": "old", "beat": 3, "host": "x", "identity": "same"}))
    old = {"attempt": 2, "session": "old", "hosts": ["a", "b"], "nonces": {"1": "old"}, "error": None}
    (place / "start.json").write_text(json.dumps(old))
    layout = OUTPUT_LAYOUT.layout_of("logs").layout_of(place.name)
    names = ("start.json", "node1.json", "ended12.json")
    assert [layout.kind_of(name) for name in names] == ["temporary"] * 3, "purge knows what a killed meeting leaves"
    for number in range(1, 4):
        (job.output / "logs" / f"two_train_cpu_mega_llama_run1_attempt{number}.log").touch()
    pieces = """
if node == 1:
    (log,) = output.glob("logs/*_node1.log")
    for piece in ("[CPU] Step 4/6 | 0.1", "74 s | avg 0.174 s | loss 8.3360 | 0.4 GB\\n"):
        with log.open("a") as file:
            file.write(piece)
        time.sleep(0.6)
while not any("0.4 GB" in log.read_text() for log in output.glob("logs/*_node1.log")):
    time.sleep(0.05)
print("hosts", os.environ["TPRIMAT_HOSTS"], attempt)
"""
    first, second = two(pieces + "if node == 0: result()")
    assert [first[0], second[0]] == [0, 0], first[1] + second[1]
    assert store.read(only_result(job.output))["attempt"] == 4 and not place.exists()
    hosts = re.search(r"hosts (\S+),(\S+) 4", first[1])
    assert hosts and hosts[0] in second[1], "both know all hosts and the attempt"
    assert first[1].count("Step 4/6") == 1, "a line that came in two pieces is one step"


def test_node_with_other_settings_is_not_let_in_and_both_say_so(job, two):
    ended = two("time.sleep(0.5)\nif node == 0: result()", of_second=("SEED=43",))
    assert [code for code, _ in ended] == [1, 1]
    for said in (*(text for _, text in ended), store.read(only_result(job.output))["reason"]):
        assert re.search(r"node 1 \(.*\): not the settings, data or code of node 0", said)


def test_node_that_does_not_come_is_named_with_what_to_do(job):
    alone = ("NNODES=2", "MASTER_ADDR=n0", "START_TIMEOUT_SECONDS=0.1")
    first = job.run(*alone)
    assert first.code == 1 and not list(first.output.glob("logs/.*"))
    assert re.match(r"node 1 of 2 did not come within 0\.1 s .* NODE_RANK; OUTPUT_DIR=", first.result["reason"])
    second = job.run(*alone, "NODE_RANK=1")
    assert second.code == 1 and re.search(r"node 0 \(n0\) did not answer within 0\.1 s", second.err)


KILLED = "[0]:\n  rank      : 1 (local_rank: 0)\n  exitcode  : -9 (pid: 7)\n"
REPORT = f"print('E1121 10:11:26.1 1 api.py:1] failed (exitcode: -9)\\n' + {KILLED!r}); "
ENDS = {
    "a rank of another node is killed": (
        *("print('a' if node == 0 else 'b')\nif node == 1: " + REPORT + "\nsys.exit(1)", "failed"),
        r"^rank 1 was ended by SIGKILL",
    ),
    "another node fails": (
        *("print('a' if node == 0 else 'b')\nsys.exit(1 + 2 * node)", "failed"),
        r"^node 1 \(.*\) ended with exit code 3; the trainer ended with exit code 1 .*\na\nnode 1: b$",
    ),
    "another node hangs": (
        *("if node == 0: time.sleep(1); sys.exit(1)\nstep(3); time.sleep(60)", "timeout"),
        r"^node 1 \(.*\): nothing was finished in the \d s after step 3 of 6",
    ),
    "another node is interrupted after the result": (
        *("if node == 0: result(); sys.exit(0)\ntime.sleep(1); os.kill(os.getppid(), 15); time.sleep(60)", "failed"),
        r"^the result was complete, then node 1 \(.*\) was interrupted by SIGTERM$",
    ),
    "another node says nothing any more": (
        *(
            "if node == 0: result(status='failed', reason='no connection'); sys.exit(1)\nos.kill(os.getppid(), 9)",
            "failed",
        ),
        r"^no connection\nnode 1 \(.*\) did not say how it ended",
    ),
    "another node has left a complete job": (
        "if node == 0: result(); sys.exit(0)\nos.kill(os.getppid(), 9)",
        "ok",
        None,
    ),
}
SLOW = [pytest.mark.full("node 0 waits 20 s for a report, about 25 s")]


@pytest.mark.parametrize("end", [pytest.param(end, marks=SLOW if list(ENDS).index(end) > 3 else []) for end in ENDS])
def test_end_of_another_node_is_in_the_result(end, job, two):
    ranks, status, reason = ENDS[end]
    (code, said), _ = two(ranks, "STEP_TIMEOUT_SECONDS=2")
    result = store.read(only_result(job.output))
    assert (result["status"], code == 0) == (status, status == "ok"), said
    assert reason is None or re.search(reason, result["reason"], re.DOTALL), result["reason"]


def test_machine_in_the_identity_is_the_address_of_the_nodes_or_what_slurm_names(job, monkeypatch):
    def identity(address):
        alone = ("NNODES=2", f"MASTER_ADDR={address}", "START_TIMEOUT_SECONDS=0.1", "FORCE=1")
        return job.run(*alone).result["identity_sha256"]

    assert identity("n0") != identity("n9")
    monkeypatch.setenv("TPRIMAT_MACHINE", "2 nodes of Slurm, partition x")
    assert identity("n0") == identity("n9")
