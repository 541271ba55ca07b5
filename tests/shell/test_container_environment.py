"""What a container gets of the caller's environment: settings and what changes speed, secrets unseen, and no more."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.engine_cases import ALL, TOKEN, Machine
from tests.support.setups import ROOT
from utils import redact
from utils.provenance.origin import READERS

LIMIT_SECONDS = 60
CODE = "/workspace/code"
every_engine = pytest.mark.parametrize("engine", ALL.split())


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "m")


def private_of(container):
    """Return the variables of the private file of a container."""
    assignments = [one for _, _, text in container["private"] for one in text.split("\0") if one]
    return dict(assignment.split("=", 1) for assignment in assignments)


@every_engine
@pytest.mark.parametrize("script", ["run_train.sh", "run_data.sh", "run_wrap.sh", "entry.sh"])
def test_a_secret_reaches_the_container_and_no_engine_shows_it(script, engine, machine):
    (machine.checkout / "secrets.env").write_text(f"HF_TOKEN={TOKEN}\n")
    (machine.checkout / "secrets.env").chmod(0o600)
    container = machine.container(script, engine=engine)
    if engine == "apptainer":  # it has no `inspect`, and its variables are those of a process of the caller
        assert container["environment"]["HF_TOKEN"] == TOKEN
    else:
        assert private_of(container) == {"HF_TOKEN": TOKEN}
        assert TOKEN not in str(container["environment"]) and container["command"][0] == "shell/inside/start.sh"
    assert TOKEN not in str(container["argv"])
    assert container.targets()[f"{CODE}/secrets.env"][0] == "/dev/null"
    dry = machine.run(script, "--dry-run", "PLATFORM=cpu", f"RUNTIME={engine}")
    assert "HF_TOKEN" in dry.stdout + dry.stderr and TOKEN not in dry.stdout + dry.stderr
    assert "tprimat/environment" not in dry.stdout


@pytest.mark.parametrize("script", ["run_train.sh", "entry.sh"])
def test_the_private_file_is_the_callers_own_and_gone_after_the_container(script, machine):
    ((path, modes, _),) = machine.container(script, HF_TOKEN=TOKEN)["private"]
    assert modes == ["0o40700", "0o100644"], "only the caller opens the folder, any user inside the file"
    deadline = time.monotonic() + LIMIT_SECONDS
    while Path(path).parent.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.1)


HIDDEN = {
    "HTTPS_PROXY": "http://ann:open-sesame@proxy.example:3128",
    "http_proxy": "http://ann%3Aopen-sesame%40proxy.example",
    "HF_ENDPOINT": "https://ann@hub.example/",
    "NCCL_FOO": TOKEN,
    "NCCL_PW": "sesame",
    "MY_NOTE": TOKEN,
}


def test_values_that_may_be_secret_go_through_the_private_file_only(machine):
    plain = {"NCCL_DEBUG": "INFO", "TOKENIZERS_PARALLELISM": "false", "no_proxy": "localhost", "MY_NUMBER": "7"}
    unknown = {"MY_OTHER": "1", "WANDB_API_KEY": "a" * 40, "PIP_INDEX_URL": "https://ann:open-sesame@index.example"}
    names = "MY_NOTE,MY_NUMBER"
    container = machine.container("run_train.sh", **plain, **HIDDEN, **unknown, TPRIMAT_ENV_NAMES=names)
    assert private_of(container) == HIDDEN
    environment = container["environment"]
    assert environment.items() >= (plain | {"TPRIMAT_ENV_NAMES": names}).items(), "the launcher inside reads it too"
    assert not (HIDDEN.keys() | unknown.keys()) & environment.keys()


def test_the_private_file_becomes_the_environment_of_the_command(machine):
    lent = machine.sysroot / "run" / "tprimat" / "environment"
    lent.parent.mkdir(parents=True)
    lent.write_text("A=b c=d\0HF_TOKEN=two\nlines\0")
    done = machine.run("inside/start.sh", "bash", "-c", 'printf "%s|%s" "$A" "$HF_TOKEN"; exit 7')
    assert (done.returncode, done.stdout) == (7, "b c=d|two\nlines")


@every_engine
def test_a_trace_of_bash_shows_no_secret(machine, engine):
    command = ["bash", "-x", machine.checkout / "shell" / "run_train.sh", "PLATFORM=cpu", f"RUNTIME={engine}"]
    environment = machine.environment | {"HF_TOKEN": TOKEN}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    assert done.returncode == 0 and len(machine.started) == 1, done.stderr
    assert TOKEN not in done.stdout + done.stderr


WITH_A_SECRET = [
    ("run_train.sh", {"CONTAINER_ARGS": f"--label {TOKEN}"}, "CONTAINER_ARGS"),
    ("run_train.sh", {"CONTAINER_ARGS": "--env X=http://ann:open-sesame@proxy.example"}, "CONTAINER_ARGS"),
    ("run_train.sh", {"DATA_DIR": f"/tmp/{TOKEN}/x"}, "DATA_DIR"),
    ("run_train.sh", {"DATASET": "s3://ann:open-sesame@store.example/text"}, "DATASET"),
    (f"run_train.sh DATASET_REPO=ann/{TOKEN}", {}, "DATASET_REPO"),
    (f"run_train.sh LABEL={TOKEN}", {}, "LABEL"),
    (f"run_train.sh CONTAINER_ARGS=--label={TOKEN}", {}, "CONTAINER_ARGS"),
    (f"entry.sh -- echo {TOKEN}", {}, "a word of the container's command"),
]


@pytest.mark.parametrize(("command", "changes", "named"), WITH_A_SECRET)
def test_a_secret_in_a_command_line_is_refused_without_being_repeated(command, changes, named, machine):
    machine.add_tool("mkdir", "exit 0")  # as if the folder could be made
    done = machine.run(*command.split(), PLATFORM="cpu", RUNTIME="docker", **changes)
    assert (done.returncode, machine.started) == (2, [])
    assert done.stderr == f"error: {named}: looks like a secret, which a command line would show; see docs/secrets.md\n"


@pytest.mark.parametrize("changes", [{"DATASET_REPO": f"ann/{TOKEN}"}, {"LABEL": TOKEN}])
def test_a_secret_in_a_setting_of_the_environment_is_left_to_the_suite_inside_which_refuses_it(changes, machine):
    container = machine.container("run_train.sh", **changes)
    assert TOKEN not in str(container["argv"]) + str(container["environment"])


def test_bash_refuses_and_hides_each_shape_that_the_redaction_knows(machine):
    tail = "Ab1" * 12
    shapes = ["hf_", "api_org_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "nvapi-"]
    secrets = [*(shape + tail for shape in shapes), "AKIA" + "A1" * 8, "ASIA" + "A1" * 8, "https://ann:word@host/"]
    known = [text for text in secrets if redact.text(text, {}) != text]
    assert len(known) > 10
    ask = 'for X in "$@"; do export X; _may_be_secret X && [[ $X =~ $SECRET_TEXT ]] || echo "$X"; done'
    assert machine.sourced(ask, *secrets).stdout == ""
    assert machine.sourced('refuse_secret OUTPUT_DIR "$1"', "/data/hf_llama_7b_runs_of_2026").returncode == 0


def test_settings_and_what_changes_speed_reach_the_container_and_nothing_else(machine):
    keys = re.findall(r"^([A-Z]\w*)=", (ROOT / "config.env").read_text(), re.MULTILINE)
    places = {"OUTPUT_DIR", "DATA_DIR", "DATASET", "TOKENIZER", "RUNTIME"}
    settings = dict.fromkeys(set(keys) - places, "x,y") | {"LAUNCHER": "torchrun", "NNODES": "1", "METHOD": "equal"}
    speed = {
        *("NCCL_DEBUG", "NVTE_FUSED_ATTN", "HSA_ENABLE_SDMA", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES"),
        *("HIP_VISIBLE_DEVICES", "OMP_NUM_THREADS", "UCX_TLS", "TE_X", "GPU_MAX_HW_QUEUES", "NVIDIA_TF32_OVERRIDE"),
    }
    hub = {"HF_ENDPOINT", "HF_HUB_OFFLINE", "HTTPS_PROXY", "no_proxy"}
    passed = settings | dict.fromkeys({*speed, *hub}, "a b,c=1")
    here = dict.fromkeys(
        ("CUDA_HOME", "TRITON_CACHE_DIR", "PYTHONPATH", "SSH_AUTH_SOCK", "AWS_SECRET_ACCESS_KEY"), "/x"
    )
    environment = machine.container("run_train.sh", **passed, **here)["environment"]
    assert len(settings) > 60 and environment.items() >= passed.items()
    assert not here.keys() & environment.keys()


def test_every_prefix_of_speed_variables_that_python_knows_is_known_to_bash(machine):
    names, others = [f"{prefix}_X" for prefix in READERS], ["LD_PRELOAD", "ONCCL_X", "CUDAX_Y"]
    assert len(names) > 30
    ask = 'for name in "$@"; do is_passed "$name" || echo "$name"; done'
    assert machine.sourced(ask, *names, *others).stdout.split() == others
