"""The scripts for Slurm, in every container runtime, checked word by word without a cluster."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.launching import SHORT
from train.cluster import follow as slurm_queue
from train.cluster import script as slurm_script
from train.cluster.follow import QueueEntry, SlurmError, SlurmJob
from train.job.job import Job
from train.job.outcome import Attempt
from train.job.processes import StopRequest
from train.runner import plan
from train.runner.state import RUNNING, JobState
from utils.errors import ConfigError
from utils.settings.config import ROOT, load
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


def script_of(*settings: str, platform: str = "nvd", is_requeued: bool = False) -> str:
    matrix = plan.make(platform, [*NODES, "OUTPUT_DIR=/results", "DATA_DIR=/data", *settings])
    return slurm_script.render(matrix, matrix.jobs[0], is_requeued=is_requeued)


@pytest.fixture(autouse=True)
def _no_gpus_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "visible_gpus", lambda platform: 0)


def options(script: str) -> list[str]:
    return [shlex.split(line)[1] for line in script.splitlines() if line.startswith("#SBATCH ")]


def step(script: str) -> list[str]:
    """The words of `srun`, with the shell's variables unexpanded."""
    return shlex.split(script[script.index("exec srun") :].replace("\\\n", " "))[1:]


def test_slurm_is_asked_for_what_the_settings_say() -> None:
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
        "--output=/results/logs/nodes2_train_nvd_mega_llama_run1_slurm%j.log",
        "--open-mode=append",
        "--no-requeue",
        "--exclusive",
        "--mail-type=END,FAIL",
    ]


def test_gpus_can_be_asked_for_as_gres_or_not_at_all_and_a_requeue_is_asked_for() -> None:
    assert "--gres=gpu:8" in options(script_of("SLURM_GPUS=gres"))
    assert not [option for option in options(script_of("SLURM_GPUS=none")) if "gpu" in option.split("=")[0]]
    assert not [option for option in options(script_of(platform="cpu")) if "gpu" in option]
    assert "--requeue" in options(script_of(is_requeued=True))


@pytest.mark.parametrize("runtime", [NATIVE, APPTAINER, ("RUNTIME=podman",), ("RUNTIME=auto",)], ids=" ".join)
def test_every_node_starts_one_launcher_that_finds_its_own_runtime(runtime: tuple[str, ...]) -> None:
    words = step(script_of(*runtime, "SEED=7"))
    assert words[0] == "srun" and {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1"} <= set(words)
    assert not [word for word in words if word.startswith("--container")]
    task = words[words.index("node") + 1 :]
    assert task[:6] == [str(ROOT / "shell" / "inside" / "slurm_task.sh"), "nvd", "mega", "llama", "--run", "1"]
    assert {runtime[0], "LAUNCHER=torchrun", "SEED=7", "NNODES=2", "OUTPUT_DIR=/results", "DATA_DIR=/data"} <= set(task)
    assert task[-2:] == ["MASTER_ADDR=$MASTER_ADDR", "MASTER_PORT=$MASTER_PORT"]
    assert words[words.index("node") - 2 : words.index("node")] == ["-c", 'exec "$@" "NODE_RANK=$SLURM_NODEID"']


def test_login_node_without_a_gpu_plans_for_nodes_that_have_them(tmp_path: Path) -> None:
    where = (f"OUTPUT_DIR={tmp_path}/new", f"DATA_DIR={tmp_path}/data", "PLATFORM=nvd", "RUNTIME=apptainer")
    done = subprocess.run(
        [ROOT / "shell" / "run_slurm.sh", "--dry-run", *NODES[1:], *where], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "--gpus-per-node=8" in done.stdout
    assert "of an unknown amount (Slurm selects the nodes)" in done.stderr


@pytest.mark.parametrize("runtime", [ENROOT, ("RUNTIME=auto", IMAGE)], ids=" ".join)
def test_pyxis_gets_the_image_and_the_same_paths_with_the_checkout_read_only(runtime: tuple[str, ...]) -> None:
    words = step(script_of(*runtime))
    (mounts,) = (word for word in words if word.startswith("--container-mounts="))
    folders = mounts.removeprefix("--container-mounts=").split(",")
    assert {f"{ROOT}:{ROOT}:ro", "/results:/results", "/data:/data"} <= set(folders)
    assert "--container-image=/images/tprimat.sqsh" in words and f"--container-workdir={ROOT}" in words
    task = words[words.index("node") + 1 :]
    assert task[0] == str(ROOT / "shell" / "inside" / "job.sh") and "RUNTIME=native" in task


def test_folder_inside_the_checkout_is_mounted_over_it() -> None:
    words = step(script_of(*ENROOT, "OUTPUT_DIR=output"))
    (mounts,) = (word for word in words if word.startswith("--container-mounts="))
    output = ROOT / "output"
    assert mounts.index(f"{ROOT}:{ROOT}:ro") < mounts.index(f"{output}:{output}")


def test_image_that_is_missing_and_a_path_that_cannot_be_mounted_are_said() -> None:
    with pytest.raises(ConfigError, match="SLURM_IMAGE=: RUNTIME=enroot needs an image"):
        script_of("RUNTIME=enroot")
    with pytest.raises(ConfigError, match="cannot mount a path with a colon or a comma"):
        script_of(*ENROOT, "DATA_DIR=/data/a,b")


def test_nodes_meet_on_a_port_of_their_job_unless_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))" in script_of()
    assert "MASTER_PORT=1234" in script_of("MASTER_PORT=1234").splitlines()
    monkeypatch.setenv("MASTER_PORT", "4321")
    assert "MASTER_PORT=4321" in script_of().splitlines()


def test_settings_of_the_environment_reach_the_nodes_and_secrets_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED", "9")
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 34)
    assert "SEED=9" in step(script_of()) and "hf_x" not in script_of()


def test_every_resolved_setting_is_in_the_script() -> None:
    """A settings file that is edited while a job waits in the queue changes nothing in the job."""
    words = step(script_of())
    keys = {word.split("=")[0] for word in words[words.index("node") + 1 :] if "=" in word}
    assert keys == set(KEYS) - {"FRAMEWORK", "MODEL", "NODE_RANK"}


@pytest.mark.parametrize("settings", [NATIVE, ENROOT, APPTAINER, ("COOLDOWN_SECONDS=5", *SITE)], ids=" ".join)
def test_script_is_clean(settings: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(script_of(*settings))
    shellcheck = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([shellcheck, "--severity=style", path], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a command of Slurm on PATH that does what a test says."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def put(name: str, script: str) -> None:
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    return put


def test_no_secret_goes_with_a_job_and_its_number_is_read(stand_in, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 34)
    stand_in(
        "sbatch", f'env > {tmp_path}/seen; cat >> {tmp_path}/seen; echo "$@" >> {tmp_path}/seen; echo "17;cluster"'
    )
    assert slurm_queue.submit("the script", after="16") == "17"
    seen = (tmp_path / "seen").read_text()
    assert "the script" in seen and "--dependency=afterany:16" in seen and "hf_x" not in seen


def test_slurm_gets_known_variables_only(stand_in, tmp_path, monkeypatch) -> None:
    """It stores the environment of a job, and srun hands all of it on."""
    token = "hf_" + "x" * 34
    secret = {"MY_NOTE": token, "NCCL_FOO": token, "CONTAINER_ARGS": f"--env X={token}", "UCX_PW": "open-sesame"}
    secret |= {"HTTPS_PROXY": "http://ann:open-sesame@proxy.example", "WANDB_API_KEY": "open-sesame"}
    given = {"NCCL_SOCKET_IFNAME": "ib0", "TPRIMAT_SIF_DIR": "/images", "SBATCH_QOS": "high", "CUDA_HOME": "/opt/cuda"}
    for name, value in {**secret, **given}.items():
        monkeypatch.setenv(name, value)
    stand_in("sbatch", f"env > {tmp_path}/seen; echo 17")
    slurm_queue.submit("the script")
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines() if "=" in line)
    assert seen.items() >= {**given, "PATH": os.environ["PATH"]}.items()
    assert not secret.keys() & seen.keys()
    (warning,) = slurm_script.environment().warnings("the jobs")
    assert "not passed to the jobs" in warning and warning.endswith(": CONTAINER_ARGS, NCCL_FOO, UCX_PW")


def test_state_of_a_job_that_slurm_has_forgotten_is_gone(stand_in) -> None:
    stand_in("squeue", "echo '3|RUNNING|None|n[1-2]'; echo '4|PENDING|Priority|'")
    seen = slurm_queue.entries(["3", "4", "5"])
    assert (seen["3"].state, seen["3"].nodes) == ("RUNNING", "n[1-2]")
    assert (seen["4"].reason, seen["5"].state, seen["5"].is_ended) == ("Priority", "GONE", True)
    stand_in("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert slurm_queue.entries(["5"])["5"].state == "GONE"


def test_what_slurm_says_against_it_is_in_the_message(stand_in, monkeypatch, tmp_path) -> None:
    stand_in("sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    with pytest.raises(SlurmError, match="sbatch: exit code 1: sbatch: error: invalid partition specified: x"):
        slurm_queue.submit("")
    monkeypatch.setenv("PATH", str(tmp_path / "missing"))
    with pytest.raises(SlurmError, match="squeue: not on PATH; run this where Slurm's commands are"):
        slurm_queue.entries(["1"])


def test_job_whose_output_folder_is_gone_has_failed_with_the_reason_and_nothing_is_made_anew(tmp_path: Path) -> None:
    job = Job(load("cpu", arguments=[f"OUTPUT_DIR={tmp_path}/gone"], environ={}), "hf", "llama")
    state = JobState(1, job, state=RUNNING)
    attempt = Attempt(job, "1" * 64, "a command", "2026-11-22T00:00:00+00:00")
    slurm_queue._end(SlurmJob("7", state, attempt, None, QueueEntry("COMPLETED")), StopRequest())
    assert state.state == "failed" and state.reason is not None
    gone = f"OUTPUT_DIR={tmp_path}/gone was deleted or renamed while the job ran"
    assert state.reason == f"no result could be written: {gone}"
    assert not (tmp_path / "gone").exists()


def test_run_train_hands_over_to_slurm(tmp_path: Path) -> None:
    """LAUNCHER=slurm is enough; a dry run submits nothing."""
    done = subprocess.run(
        [ROOT / "shell" / "run_train.sh", "--dry-run", *SHORT, "LAUNCHER=slurm", "NNODES=3", "RUNTIME=native", "RUNS=1"]
        + [f"OUTPUT_DIR={tmp_path}/new", "MODEL=llama", "FRAMEWORK=hf", "PLATFORM=cpu", "GBS=24"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --nodes=3" in done.stdout and done.stdout.count("#!/usr/bin/env bash") == 1
    assert not (tmp_path / "new").exists()
