"""The scripts for Slurm in every container runtime, word by word without a cluster; jobs on a real cluster."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import slurm_cluster
from benches import Bench
from checkout import ROOT

from example import example_result
from tests.support.launching import SHORT, results, run as train_one
from tests.support.matrices import RunningMatrix
from train import slurm
from utils.settings.keys import KEYS

NODES = ("LAUNCHER=slurm", "NNODES=2", "GPUS_PER_NODE=8", "MODEL=llama", "FRAMEWORK=mega", "RUNS=1")
SITE = (
    "SLURM_ACCOUNT=mine",
    "SLURM_PARTITION=gpu",
    "SLURM_TIME=1-00:00:00",
    "SLURM_EXTRA=--exclusive,--mail-type=END,FAIL",
)
IMAGE = "SLURM_IMAGE=/images/tprimat.sqsh"
NATIVE, ENROOT, APPTAINER = ("RUNTIME=native",), ("RUNTIME=enroot", IMAGE), ("RUNTIME=apptainer",)


@pytest.fixture
def script_of(monkeypatch, capsys, tmp_path):
    """Returns a function that runs `train.slurm --dry-run` on a login node; returns the script, or a wanted error."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)

    def script(*settings: str, platform: str = "nvd", wanted_code: int = 0) -> str:
        where = (f"OUTPUT_DIR={tmp_path}/results", f"DATA_DIR={tmp_path}/data", "DATASET=synth")
        command = ["slurm", "--platform", platform, "--dry-run", *NODES, *where, *settings]
        monkeypatch.setattr("sys.argv", command)
        code, (said, error) = slurm.main(), capsys.readouterr()
        assert code == wanted_code, error
        return error if code else said

    return script


def options(script: str) -> list[str]:
    return [shlex.split(line)[1] for line in script.splitlines() if line.startswith("#SBATCH ")]


def step(script: str) -> list[str]:
    """The words of `srun`, with the shell's variables unexpanded."""
    return shlex.split(script[script.index("exec srun") :].replace("\\\n", " "))[1:]


def test_slurm_is_asked_for_what_the_settings_say(script_of, tmp_path) -> None:
    asked = options(script_of(*SITE))
    assert asked[0].startswith("--job-name=tprimat-train_nvd_mega_llama_run1-")
    assert asked[1:] == [
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
        "--time=1-00:00:00",
        "--account=mine",
        "--partition=gpu",
        f"--chdir={ROOT}",
        f"--output={tmp_path}/results/logs/nodes2_train_nvd_mega_llama_run1_slurm%j.log",
        "--open-mode=append",
        "--no-requeue",
        "--exclusive",
        "--mail-type=END,FAIL",
    ]


@pytest.mark.parametrize(
    ("platform", "setting", "wanted"),
    [
        ("nvd", "SLURM_GPUS=gres", ["--gres=gpu:8"]),
        ("nvd", "SLURM_GPUS=none", []),
        ("cpu", "--requeue", ["--requeue"]),
    ],
)
def test_gpus_can_be_asked_for_as_gres_or_not_at_all_and_a_requeue_is_asked_for(
    script_of, platform, setting, wanted
) -> None:
    found = options(script_of(setting, platform=platform))
    assert [option for option in found if re.match("--(gpu|gres|requeue)", option)] == wanted


@pytest.mark.parametrize("runtime", [NATIVE, APPTAINER, ("RUNTIME=podman",), ("RUNTIME=auto",)], ids=" ".join)
def test_every_node_starts_one_launcher_that_finds_its_own_runtime(script_of, runtime, tmp_path) -> None:
    words = step(script_of(*runtime, "SEED=7"))
    assert words[0] == "srun" and {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1"} <= set(words)
    assert not [word for word in words if word.startswith("--container")]
    task = words[words.index("node") + 1 :]
    started = [str(ROOT / "shell" / "inside" / "job.sh"), "--on-node", "nvd", "mega", "llama", "--run", "1"]
    assert task[: len(started)] == started
    assert {runtime[0], "LAUNCHER=torchrun", "SEED=7", "NNODES=2", f"OUTPUT_DIR={tmp_path}/results"} <= set(task)
    assert task[-2:] == ["MASTER_ADDR=$MASTER_ADDR", "MASTER_PORT=$MASTER_PORT"]
    assert words[words.index("node") - 2 : words.index("node")] == ["-c", 'exec "$@" "NODE_RANK=$SLURM_NODEID"']


@pytest.mark.parametrize(
    ("script", "settings", "said"),
    [
        # a login node has no GPU, and LAUNCHER=slurm is enough
        ("run_slurm.sh", ("PLATFORM=nvd", "RUNTIME=apptainer"), ("--gpus-per-node=8", "(Slurm selects the nodes)")),
        ("run_train.sh", ("PLATFORM=cpu", "RUNTIME=native", "LAUNCHER=slurm"), ("#SBATCH --nodes=2", "srun")),
    ],
)
def test_a_dry_run_of_a_script_prints_the_job_for_the_nodes_and_submits_nothing(
    script, settings, said, tmp_path
) -> None:
    where = (f"OUTPUT_DIR={tmp_path}/new", f"DATA_DIR={tmp_path}/data", "DATASET=synth")
    command = [ROOT / "shell" / script, "--dry-run", *NODES[1:], *where, *settings]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(words in done.stdout + done.stderr for words in said)
    assert done.stdout.count("#!/usr/bin/env bash") == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize("runtime", [ENROOT, ("RUNTIME=auto", IMAGE)], ids=" ".join)
def test_pyxis_gets_the_image_and_the_same_paths_with_the_checkout_read_only(script_of, runtime, tmp_path) -> None:
    words = step(script_of(*runtime, "OUTPUT_DIR=output"))
    (mounts,) = (word for word in words if word.startswith("--container-mounts="))
    folders = mounts.removeprefix("--container-mounts=").split(",")
    checkout, output = f"{ROOT}:{ROOT}:ro", f"{ROOT}/output:{ROOT}/output"
    assert folders.index(checkout) < folders.index(output), "a folder inside the checkout is mounted over it"
    assert f"{tmp_path}/data:{tmp_path}/data" in folders
    assert "--container-image=/images/tprimat.sqsh" in words and f"--container-workdir={ROOT}" in words
    task = words[words.index("node") + 1 :]
    assert task[0] == str(ROOT / "shell" / "inside" / "job.sh") and "RUNTIME=native" in task


def test_image_that_is_missing_and_a_path_that_cannot_be_mounted_are_said(script_of) -> None:
    assert "SLURM_IMAGE=: RUNTIME=enroot needs an image" in script_of("RUNTIME=enroot", wanted_code=2)
    assert "cannot mount a path with a colon or a comma" in script_of(*ENROOT, "DATA_DIR=/data/a,b", wanted_code=2)


def test_nodes_meet_on_a_port_of_their_job_unless_one_is_named(script_of, monkeypatch) -> None:
    assert "MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))" in script_of()
    assert "MASTER_PORT=1234" in script_of("MASTER_PORT=1234").splitlines()
    monkeypatch.setenv("MASTER_PORT", "4321")
    assert "MASTER_PORT=4321" in script_of().splitlines()


def test_settings_of_the_environment_reach_the_nodes_and_secrets_do_not(script_of, monkeypatch) -> None:
    monkeypatch.setenv("SEED", "9")
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 34)
    assert "SEED=9" in step(script_of()) and "hf_x" not in script_of()


def test_every_resolved_setting_is_in_the_script(script_of) -> None:
    """A settings file that is edited while a job waits in the queue changes nothing in the job."""
    words = step(script_of())
    keys = {word.split("=")[0] for word in words[words.index("node") + 1 :] if "=" in word}
    assert keys == set(KEYS) - {"FRAMEWORK", "MODEL", "NODE_RANK"}


@pytest.mark.parametrize("settings", [NATIVE, ENROOT, APPTAINER, ("COOLDOWN_SECONDS=5", *SITE)], ids=" ".join)
def test_script_is_clean(script_of, settings, tmp_path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(script_of(*settings))
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, "--severity=style", path], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that runs the matrix on stand-ins of Slurm's commands; `seen` has what sbatch got."""
    bench = Bench(tmp_path, monkeypatch, [1000.0] * 3, [1000.0] * 3)
    bench.has_slurm = False
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("TPRIMAT_MACHINE", "")
    bench.seen = tmp_path / "seen"

    def run(*options: str, **scripts: str) -> tuple[int, str, str]:
        see = f'env >> {bench.seen}; cat >> {bench.seen}; echo "$@" >> {bench.seen}; echo "17;cluster"'
        for name, script in ({"sbatch": see, "squeue": "", "sinfo": "", "scancel": ""} | scripts).items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        return bench.submit("FRAMEWORK=mega", "RUNS=1", *options)

    run.bench = bench
    return run


def test_slurm_gets_known_variables_only_and_jobs_wait_for_one_another(cluster, monkeypatch) -> None:
    """It stores the environment of a job, and srun hands all of it on."""
    token = "hf_" + "x" * 34
    secret = {"MY_NOTE": token, "NCCL_FOO": token, "CONTAINER_ARGS": f"--env X={token}", "UCX_PW": "open-sesame"}
    secret |= {"HTTPS_PROXY": "http://ann:open-sesame@proxy.example", "WANDB_API_KEY": "open-sesame", "HF_TOKEN": token}
    given = {"NCCL_SOCKET_IFNAME": "ib0", "TPRIMAT_SIF_DIR": "/images", "SBATCH_QOS": "high", "CUDA_HOME": "/opt/cuda"}
    for name, value in {**secret, **given}.items():
        monkeypatch.setenv(name, value)
    code, said, error = cluster("--no-wait", "RUNS=2")
    assert code == 0 and said.count("submitted as Slurm job 17") == 2, error
    text = cluster.bench.seen.read_text()
    assert "exec srun" in text and "--parsable --dependency=afterany:17\n" in text and "hf_x" not in text
    seen = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert seen.items() >= {**given, "PATH": os.environ["PATH"]}.items()
    assert not secret.keys() & seen.keys()
    (warning,) = (line for line in error.splitlines() if "not passed to the jobs" in line)
    assert warning.endswith(": CONTAINER_ARGS, NCCL_FOO, UCX_PW")


def test_what_slurm_says_against_it_is_in_the_message(cluster, monkeypatch, tmp_path) -> None:
    code, _, error = cluster(sbatch="echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    assert code == 1 and "sbatch: exit code 1: sbatch: error: invalid partition specified: x" in error
    monkeypatch.setenv("PATH", str(tmp_path / "missing"))
    code, _, error = cluster()
    assert code == 1 and "squeue: not on PATH; run this where Slurm's commands are" in error


LATE = "Slurm job 17: TIMEOUT (TimeLimit) on n1; node n1 is down* (gone)"
ENDS = {
    "forgotten": ("", None, "failed", r"^Slurm job 17: Slurm does not know it any more and left no result"),
    "unknown": (
        "echo 'squeue: error: Invalid job id specified' >&2; exit 1",
        None,
        "failed",
        "does not know it any more",
    ),
    "no result": ("echo '17|COMPLETED|None|n1'", None, "failed", "left no result here: OUTPUT_DIR=.* must be the same"),
    "too late": ("echo '17|TIMEOUT|TimeLimit|n1'", None, "timeout", f"^{re.escape(LATE)} and left no result"),
    "too late, and its launcher wrote of it": (
        *("echo '17|TIMEOUT|TimeLimit|n1'", {"status": "failed", "reason": "by SIGTERM"}, "timeout"),
        f"^{re.escape(LATE)}; its launcher says: by SIGTERM$",
    ),
    "too late, after its last step": ("echo '17|TIMEOUT|TimeLimit|n1'", {}, "ok", None),
    "failed by itself": ("echo '17|FAILED|NonZeroExitCode|n1'", {"status": "failed", "reason": "a"}, "failed", "^a$"),
}


@pytest.mark.parametrize("end", ENDS)
def test_end_of_a_slurm_job_is_in_its_result(end, cluster, tmp_path) -> None:
    answer, written, status, reason = ENDS[end]
    path = cluster.bench.output / "train_cpu_mega_llama_run1.json"
    if written is not None:
        (tmp_path / "written.json").write_text(json.dumps(example_result(**written)))
        answer = f"cp {tmp_path}/written.json {path}; {answer}"
    answer = f'case "$*" in *--me*) ;; *) {answer or ":"};; esac'
    code, said, error = cluster(squeue=answer, sinfo="echo 'n1|down*|gone'")
    result = json.loads(path.read_text())
    assert (result["status"], code == 0) == (status, status == "ok"), said + error
    assert reason is None or re.search(reason, result["reason"], re.DOTALL), result["reason"]


# The matrix on a real cluster of two nodes in this machine: trained, followed, resumed, cancelled.

FULL = pytest.mark.full("a real Slurm cluster of two nodes, about 150 s")
ONE_JOB = (*SHORT, "FRAMEWORK=mega", "NNODES=2", "RUNTIME=native", "SLURM_TIME=00:10:00")


@pytest.fixture
def submit(slurm, prefix, tmp_path, monkeypatch):
    """Starts submissions of one job with a rank on each node, into one OUTPUT_DIR; no job is left at the end."""
    started: list[RunningMatrix] = []
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm[name])

    def starter(*options: str, fault: str = "") -> RunningMatrix:
        more = {"script": "run_slurm.sh", "fault": fault}
        started.append(RunningMatrix(tmp_path / "output", prefix, *ONE_JOB, *options, **more))
        return started[-1]

    yield starter
    for submission in started:
        submission.end_all()
    if left := queue():
        subprocess.run(["scancel", *left], check=True)


def queue(field: str = "%i") -> list[str]:
    return subprocess.check_output(["squeue", "-h", "-o", field], text=True).split()


def result_of(submission: RunningMatrix) -> dict[str, Any]:
    (result,) = results(submission.output).values()
    return result


@FULL
def test_two_nodes_give_one_valid_result_with_the_curve_of_one_node_and_are_not_trained_again(
    submit, prefix, tmp_path
) -> None:
    submission = submit()
    assert submission.wait() == 0, submission.said
    two = result_of(submission)
    assert two["status"] == "ok" and two["label"] == "nodes2"
    assert two["training_config"]["num_gpus"] == two["resolved_config"]["num_gpus"] == 2
    assert two["training_config"]["dp"] == 2 and len(two["provenance"]["hosts"]) == 2
    assert "MASTER_ADDR=127.0.0.1" in two["provenance"]["command"], "the address that Slurm knows the node by"
    one = train_one("mega", "llama", tmp_path / "one", prefix)
    # float32 sums of the same 8 sequences in another order; the tolerance of two ranks on one node (test_launch.py)
    assert two["loss_values"] == pytest.approx(one["loss_values"], rel=1e-5)
    assert two["fingerprint"]["token_stream_sha256"] == one["fingerprint"]["token_stream_sha256"]
    again = submit()
    assert again.wait() == 0
    assert "has an ok result already" in again.said and "submitted as" not in again.said


@FULL
def test_node_that_is_lost_makes_a_failed_result_that_names_it(submit, slurm) -> None:
    submission = submit(fault="mega:1:3:sleep_for_ever")
    submission.wait_for_step("mega", 3)
    os.kill(slurm_cluster.node_process(slurm, "n2"), signal.SIGKILL)
    assert submission.wait() == 1, submission.said
    result = result_of(submission)
    assert result["status"] == "failed"
    assert "NODE_FAIL (NodeDown) on n[1-2]; node n2 is down" in result["reason"], result["reason"]
    assert "after step 3 of 6" in result["reason"] and "NODE_FAIL" in submission.said
    assert queue() == []


@FULL
def test_job_whose_node_is_lost_is_started_again_by_slurm_and_followed_to_its_result(submit, slurm) -> None:
    with slurm_cluster.node_back(slurm, "n2"):
        submission = submit("--requeue", fault="mega:1:3:sleep_unless_restarted")
        submission.wait_for_step("mega", 3)
        os.kill(slurm_cluster.node_process(slurm, "n2"), signal.SIGKILL)
        submission.wait_for(lambda: queue("%T") == ["PENDING"])
        with slurm_cluster.node_back(slurm, "n2"):
            (job,) = queue()
            # Slurm itself would wait two minutes, in which the first start of the step on the lost node ends
            submission.wait_for(lambda: not slurm_cluster.has_step_processes(job))
            subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], check=True)
            assert submission.wait() == 0, submission.said
            assert (result_of(submission)["status"], result_of(submission)["attempt"]) == ("ok", 2)


@FULL
def test_interrupt_cancels_the_job_that_an_earlier_command_has_submitted(submit, slurm) -> None:
    with slurm_cluster.node_back(slurm, "n2"):
        first = submit("--no-wait", fault="mega:1:3:sleep_for_ever")
        assert first.wait() == 0, first.said
        (job,) = queue()
        submission = submit()
        submission.wait_for_step("mega", 3)
        submission.wait_for(lambda: "step 3/6" in submission.said)
        assert f"is in the queue already, as Slurm job {job}" in submission.said
        submission.process.send_signal(signal.SIGINT)
        assert submission.wait() == 128 + signal.SIGINT, submission.said
        result = result_of(submission)
        assert result["status"] == "failed" and "cancelled here after SIGINT" in result["reason"]
        assert "run the same command again to continue" in submission.said
