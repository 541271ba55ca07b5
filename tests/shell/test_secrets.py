"""secrets.env and the environment of a container: secrets reach what needs them, and nothing shows them."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.setups import ALL, LIMIT_SECONDS, ROOT, TOKEN, Machine, Sandbox
from utils import redact
from utils.provenance.origin import READERS

SHOW = 'load_secrets; printf "[%s]" "${HF_TOKEN-unset}"; env | grep -c "^HF_TOKEN=" || true'


@pytest.fixture
def checkout(tmp_path: Path) -> Sandbox:
    libraries = ("environment", "passed")
    return Sandbox(tmp_path, *(f"shell/lib/{name}.sh" for name in libraries), libraries=libraries)


def write(checkout: Sandbox, text: str, mode: int = 0o600) -> Path:
    path = checkout.root / "secrets.env"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("text", "given", "shown"),
    [
        (f"# mine\n\nHF_TOKEN={TOKEN}", {}, f"[{TOKEN}]1\n"),
        (f"HF_TOKEN={TOKEN}\n", {"HF_TOKEN": "hf_given"}, "[hf_given]1\n"),
        (f"HF_TOKEN={TOKEN}\n", {"HF_TOKEN": ""}, "[]1\n"),
        (None, {}, "[unset]0\n"),
        ("HF_TOKEN=\n", {}, "[unset]0\n"),
        ((ROOT / "secrets.env.example").read_text(), {}, "[unset]0\n"),
    ],
)
def test_the_value_comes_out_exported_and_the_environment_comes_first_even_empty(checkout, text, given, shown):
    if text is not None:
        write(checkout, text)
    ran = checkout.sourced(SHOW, **given)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, shown, "")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o666])
def test_a_file_that_others_can_read_is_one_warning_with_the_command(checkout, mode):
    path = write(checkout, f"HF_TOKEN={TOKEN}\n", mode).rename(checkout.root / "token.env")
    (checkout.root / "secrets.env").symlink_to(path)
    ran = checkout.sourced(SHOW)
    assert ran.stdout == f"[{TOKEN}]1\n" and ran.stderr.count("\n") == 1
    assert ran.stderr.startswith(f"warning: secrets.env: mode {mode:o} lets others read it: chmod 600 ")
    subprocess.run(["bash", "-c", ran.stderr.partition(" it: ")[2]], check=True)
    assert path.stat().st_mode & 0o777 == 0o600, "the command in the warning does what it says"
    assert checkout.sourced(SHOW).stderr == ""


BAD = {
    "no assignment": f"{TOKEN}\n",
    "export": f"export HF_TOKEN={TOKEN}\n",
    "quotes": f'HF_TOKEN="{TOKEN}"\n',
    "spaces": f"HF_TOKEN= {TOKEN}\n",
    "comment behind": f"HF_TOKEN={TOKEN} # mine\n",
    "line ends of Windows": f"HF_TOKEN={TOKEN}\r\n",
    "a variable": f"HF_TOKEN=$X{TOKEN}\n",
    "unknown key": f"HF_TOKENS={TOKEN}\n",
    "a setting": "MBS=2\n",
    "twice": f"HF_TOKEN={TOKEN}\nHF_TOKEN={TOKEN}\n",
}


@pytest.mark.parametrize("what", [*BAD, "a folder"])
def test_what_is_outside_the_grammar_ends_with_2_and_is_not_repeated(checkout, what):
    if what == "a folder":
        (checkout.root / "secrets.env").mkdir()
    else:
        write(checkout, "# first line\n" + BAD[what])
    ran = checkout.sourced(SHOW)
    place = {"twice": "secrets.env:3: ", "a folder": "secrets.env: "}.get(what, "secrets.env:2: ")
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert ran.stderr.startswith(f"error: {place}") and TOKEN[5:20] not in ran.stderr


def test_git_ignores_the_file():
    ran = subprocess.run(["git", "-C", ROOT, "check-ignore", "-q", "secrets.env"], timeout=600)
    assert ran.returncode in (0, 128), "128: no git checkout"


SCRIPTS = sorted(path for pattern in ("shell/*.sh", "evaluate/*.sh", "tprimat") for path in ROOT.glob(pattern))
CALLS: dict[str, tuple[list[str], dict[str, str]]] = {  # arguments and environment
    "alone": ([TOKEN], {}),
    "a key": ([f"{TOKEN}=1"], {}),
    "a value": ([f"MODEL={TOKEN}"], {}),
    "an option": ([f"--{TOKEN}"], {}),
    "a platform": ([f"PLATFORM={TOKEN}"], {}),
    "a second word": (["x", TOKEN], {}),
    **{f"{name} of the environment": (["--dry-run"], {name: TOKEN}) for name in ("PLATFORM", "RUNTIME")},
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_script_repeats_a_secret_that_it_refuses(script: Path) -> None:
    """Nothing is started: the refusal is the first thing that a script does."""
    for what, (arguments, changes) in CALLS.items():
        if (changes and not script.name.startswith("run_")) or (what == "a value" and script.name == "platform.sh"):
            continue  # which takes no such word, and ignores other settings
        environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PLATFORM": "cpu", **changes}
        ran = subprocess.run([script, *arguments], env=environ, capture_output=True, text=True, timeout=600)
        assert (ran.returncode, ran.stderr.count("\n"), ran.stdout) == (2, 1, ""), (what, ran)
        assert TOKEN[:20] not in ran.stderr and ran.stderr.startswith("error: "), (what, ran)


WITH_BASH = [path for path in SCRIPTS if len(path.read_text(encoding="utf8").splitlines()) > 2]
"""All but those that start another one in two lines, which sh can read."""


@pytest.mark.parametrize("script", WITH_BASH, ids=lambda path: path.name)
def test_a_script_that_sh_reads_says_that_it_needs_bash(script: Path) -> None:
    """The twin is every other test, which starts it with bash."""
    ran = subprocess.run(["dash", script], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1) and "needs bash" in ran.stderr, ran


# What a container gets of the caller's environment: settings and what changes speed, secrets unseen, and no more.

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
    (machine.root / "secrets.env").write_text(f"HF_TOKEN={TOKEN}\n")
    (machine.root / "secrets.env").chmod(0o600)
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
    "LABEL": TOKEN,  # a setting, which the suite inside refuses
}


def test_values_that_may_be_secret_go_through_the_private_file_only(machine):
    plain = {"NCCL_DEBUG": "INFO", "TOKENIZERS_PARALLELISM": "false", "no_proxy": "localhost", "MY_NUMBER": "7"}
    plain["TPRIMAT_ENV_NAMES"] = "MY_NOTE,MY_NUMBER"  # the launcher inside reads it too
    unknown = {"MY_OTHER": "1", "WANDB_API_KEY": "a" * 40, "PIP_INDEX_URL": "https://ann:open-sesame@index.example"}
    container = machine.container("run_train.sh", **plain, **HIDDEN, **unknown)
    assert private_of(container) == HIDDEN
    assert container["environment"].items() >= plain.items()
    assert not (HIDDEN.keys() | unknown.keys()) & container["environment"].keys()


def test_the_private_file_becomes_the_environment_of_the_command(machine):
    lent = machine.sysroot / "run" / "tprimat" / "environment"
    lent.parent.mkdir(parents=True)
    lent.write_text("A=b c=d\0HF_TOKEN=two\nlines\0")
    done = machine.run("inside/start.sh", "bash", "-c", 'printf "%s|%s" "$A" "$HF_TOKEN"; exit 7')
    assert (done.returncode, done.stdout) == (7, "b c=d|two\nlines")


@every_engine
def test_a_trace_of_bash_shows_no_secret(machine, engine):
    (machine.root / "secrets.env").write_text(f"HF_TOKEN={TOKEN}\n")
    done = machine.execute(machine.root, "bash", "-x", "shell/run_train.sh", RUNTIME=engine)
    assert done.returncode == 0 and len(machine.started) == 1, done.stderr
    assert "load_secrets" in done.stderr and "pass_environment" in done.stderr, "the trace goes on behind it"
    assert TOKEN[:20] not in done.stdout + done.stderr


WITH_A_SECRET = [
    ("run_train.sh", {"CONTAINER_ARGS": f"--label {TOKEN}"}, "CONTAINER_ARGS"),
    ("run_train.sh", {"CONTAINER_ARGS": "--env X=http://ann:open-sesame@proxy.example"}, "CONTAINER_ARGS"),
    ("run_train.sh", {"DATA_DIR": f"/tmp/{TOKEN}/x"}, "DATA_DIR"),
    ("run_train.sh", {"DATASET": "s3://ann:open-sesame@store.example/text"}, "DATASET"),
    (f"run_train.sh DATASET_REPO=ann/{TOKEN}", {}, "DATASET_REPO"),
    (f"run_train.sh LABEL={TOKEN}", {}, "LABEL"),
    (f"run_train.sh LABEL={TOKEN.replace('_', '%5F')}", {}, "LABEL"),
    (f"run_train.sh CONTAINER_ARGS=--label={TOKEN}", {}, "CONTAINER_ARGS"),
    (f"entry.sh -- echo {TOKEN}", {}, "a word of the container's command"),
]


@pytest.mark.parametrize(("command", "changes", "named"), WITH_A_SECRET)
def test_a_secret_in_a_command_line_is_refused_without_being_repeated(command, changes, named, machine):
    machine.add_tool("mkdir", "exit 0")  # as if the folder could be made
    done = machine.run(*command.split(), PLATFORM="cpu", RUNTIME="docker", **changes)
    assert (done.returncode, machine.started) == (2, [])
    assert done.stderr == f"error: {named}: looks like a secret, which a command line would show; see docs/secrets.md\n"


def test_bash_refuses_and_hides_each_shape_that_the_redaction_knows(machine):
    tail = "Ab1" * 12
    shapes = ["hf_", "api_org_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "nvapi-"]
    secrets = [*(shape + tail for shape in shapes), "AKIA" + "A1" * 8, "ASIA" + "A1" * 8, "https://ann:word@host/"]
    assert [text for text in secrets if redact.text(text, {}) == text] == []
    ask = 'for X in $ALL; do export X; _may_be_secret X && [[ $X =~ $SECRET_TEXT ]] || echo "$X"; done'
    harmless = "/data/hf_llama_7b_runs_of_2026"
    assert machine.sourced(ask, ALL=" ".join([*secrets, harmless])).stdout.split() == [harmless]


SPEED = [
    "NCCL_DEBUG",
    "NVTE_FUSED_ATTN",
    "HSA_ENABLE_SDMA",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "UCX_TLS",
    "TE_X",
    "GPU_MAX_HW_QUEUES",
    "NVIDIA_TF32_OVERRIDE",
]


def test_settings_and_what_changes_speed_reach_the_container_and_nothing_else(machine):
    keys = re.findall(r"^([A-Z]\w*)=", (ROOT / "config.env").read_text(), re.MULTILINE)
    places = {"OUTPUT_DIR", "DATA_DIR", "DATASET", "TOKENIZER", "RUNTIME"}
    passed = dict.fromkeys(set(keys) - places, "x,y") | {"LAUNCHER": "torchrun", "NNODES": "1", "METHOD": "equal"}
    assert len(passed) > 60
    passed |= dict.fromkeys(("HF_ENDPOINT", "HF_HUB_OFFLINE", "HTTPS_PROXY", *SPEED), "a b,c=1")
    here = dict.fromkeys(
        ("CUDA_HOME", "TRITON_CACHE_DIR", "PYTHONPATH", "SSH_AUTH_SOCK", "AWS_SECRET_ACCESS_KEY"), "/x"
    )
    environment = machine.container("run_train.sh", **passed, **here)["environment"]
    assert environment.items() >= passed.items() and not here.keys() & environment.keys()


def test_every_prefix_of_speed_variables_that_python_knows_is_known_to_bash(machine):
    names, others = [f"{prefix}_X" for prefix in READERS], ["LD_PRELOAD", "ONCCL_X", "CUDAX_Y"]
    assert len(names) > 30
    ask = 'for name in "$@"; do is_passed "$name" || echo "$name"; done'
    assert machine.sourced(ask, *names, *others).stdout.split() == others
