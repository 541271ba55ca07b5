"""The commands that start containers: every engine on every platform, run by stand-ins that reject what engines reject.

The checkout is in a folder with spaces and a comma in its name.
"""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.support.engine_cases import TOKEN, Machine, options_of, user
from utils import redact
from utils.provenance.variables import READERS, SPEED_VARIABLES
from utils.settings.keys import KEYS

CODE = "/workspace/code"
ENGINES = ("docker", "podman", "apptainer")
PLATFORMS = ("amd", "nvd", "cpu")
every_engine = pytest.mark.parametrize("engine", ENGINES)
every_platform = pytest.mark.parametrize("platform", PLATFORMS)


@pytest.fixture
def machine(tmp_path):
    made = Machine(tmp_path / "m")
    for platform in PLATFORMS:
        made.add_images(platform)
    every = [f"{prefix}tprimat:{platform}" for platform in PLATFORMS for prefix in ("", "localhost/")]
    made.environment["STANDIN_IMAGES"] = " ".join(every)
    return made


def run(machine, script, *arguments, engine="docker", platform="cpu", code=0, **changes):
    """Run a script and return the one container that it started."""
    before = len(machine.started)
    done = machine.run(script, f"PLATFORM={platform}", *arguments, RUNTIME=engine, **changes)
    assert done.returncode == code, done.stderr
    (container,) = machine.started[before:]
    return container


def targets(container):
    return {mount["target"]: (mount["source"], "ro" if "ro" in mount else "rw") for mount in container["mounts"]}


GPU = {
    ("docker", "amd"): {
        "--device": ["/dev/kfd", "/dev/dri"],
        "--group-add": ["video", "render", "44", "109"],
        "--security-opt": ["seccomp=unconfined"],
        "--cap-add": ["SYS_PTRACE"],
        "--ipc": ["host"],
        "--ulimit": ["memlock=-1", "stack=67108864"],
    },
    ("docker", "nvd"): {
        "--gpus": ["all"],
        "--ipc": ["host"],
        "--ulimit": ["memlock=-1", "stack=67108864"],
    },
    ("podman", "nvd"): {
        "--device": ["nvidia.com/gpu=all"],
        "--ipc": ["host"],
        "--ulimit": ["memlock=-1", "stack=67108864"],
    },
    ("docker", "cpu"): {"--shm-size": ["1g"]},
    ("podman", "cpu"): {"--shm-size": ["1g"]},
    ("apptainer", "amd"): {"--rocm": ["true"]},
    ("apptainer", "nvd"): {"--nv": ["true"]},
    ("apptainer", "cpu"): {},
}
GPU["podman", "amd"] = GPU["docker", "amd"]
RIGHTS = (
    *(
        "--device",
        "--group-add",
        "--security-opt",
        "--cap-add",
        "--ipc",
        "--ulimit",
        "--gpus",
        "--shm-size",
        "--network",
    ),
    *("--nv", "--rocm", "--privileged", "--bind"),
)


@every_platform
@every_engine
@pytest.mark.parametrize(
    ("script", "inside"), [("run_train.sh", ["shell/train.sh", "--compare"]), ("run_data.sh", ["shell/run_data.sh"])]
)
def test_a_job_gets_its_gpus_and_no_right_more(script, inside, engine, platform, machine):
    if (engine, platform) == ("podman", "amd") and os.geteuid() != 0:
        pytest.skip("as root only; without root see test_podman_without_root")
    container = run(machine, script, "MODEL=llama", "RUNS=2", engine=engine, platform=platform)
    rights = {name: options_of(container, name) for name in RIGHTS if options_of(container, name)}
    assert rights == GPU[engine, platform]
    assert container["command"] == [*inside, "MODEL=llama", "RUNS=2"]
    assert container["environment"]["PLATFORM"] == platform
    assert (container["environment"]["RUNTIME"], container["environment"]["LAUNCHER"]) == ("native", "torchrun")


@every_engine
def test_infiniband_is_given_only_where_it_is(engine, machine):
    (machine.sysroot / "dev" / "infiniband").mkdir()
    assert (
        "/dev/infiniband" in options_of(run(machine, "run_train.sh", engine=engine, platform="nvd"), "--device")
    ) == (
        engine != "apptainer"  # which has all of /dev
    )
    assert "/dev/infiniband" not in options_of(run(machine, "run_train.sh", engine=engine, platform="cpu"), "--device")


def test_the_groups_of_the_devices_are_given_by_name_and_by_number_once(machine):
    node = machine.sysroot / "dev" / "dri"
    node.mkdir()
    (node / "renderD128").touch()
    (machine.sysroot / "dev" / "kfd").touch()
    gid = (node / "renderD128").stat().st_gid
    groups = options_of(run(machine, "run_train.sh", platform="amd"), "--group-add")
    assert groups == ["video", "render", *(str(number) for number in sorted({gid, 44, 109}))]
    machine.add_tool("getent", "exit 2")
    assert options_of(run(machine, "run_train.sh", platform="amd"), "--group-add") == ["video", "render", str(gid)]


@every_engine
def test_the_caller_owns_what_is_written(engine, machine):
    container = run(machine, "run_train.sh", engine=engine)
    if engine == "docker":
        assert options_of(container, "--user") == [user()]
    elif engine == "podman" and os.geteuid() != 0:
        assert options_of(container, "--userns") == ["keep-id"]
    elif engine == "podman":
        assert options_of(container, "--user") == ["0:0"]


def test_in_a_docker_without_root_its_root_is_the_caller(machine):
    container = run(machine, "run_train.sh", STANDIN_FAULTS="docker:rootless")
    assert options_of(container, "--user") == ["0:0"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_podman_without_root_keeps_user_and_groups_and_raises_no_limit():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        made = Machine(Path(folder) / "m", "")
        made.add_tool("podman", 'if [[ $* == *train.sh* ]]; then printf "%s\\n" "$@" >"$STANDIN_OUT"; fi')
        made.add_tool("limited", 'ulimit -l 64; exec "$@"')
        subprocess.run(["chown", "-R", "65534:65534", folder], check=True)
        done = subprocess.run(
            [made.bin / "limited", made.checkout / "shell" / "run_train.sh", "PLATFORM=amd", "RUNTIME=podman"],
            env=made.environment,
            capture_output=True,
            text=True,
            user=65534,
            group=65534,
            extra_groups=[],
        )
        assert done.returncode == 0, done.stderr
        words = made.out.read_text().splitlines()
    pairs = set(itertools.pairwise(words))
    assert ("--userns", "keep-id") in pairs and "--user" not in words
    assert [value for option, value in pairs if option == "--group-add"] == ["keep-groups"]
    assert ("--ulimit", "memlock=-1") not in pairs and ("--device", "/dev/kfd") in pairs
    assert "warning: runtime: the limit memlock is 64 KiB here" in done.stderr


@every_engine
def test_the_code_is_read_only_and_only_output_data_and_cache_can_be_written(engine, machine):
    container = run(machine, "run_train.sh", engine=engine)
    seen = targets(container)
    assert seen == {
        CODE: (str(machine.checkout), "ro"),
        f"{CODE}/output": (str(machine.checkout / "output"), "rw"),
        str(machine.folder / "prepared"): (str(machine.folder / "prepared"), "rw"),
        str(machine.home / ".cache/huggingface"): (str(machine.home / ".cache/huggingface"), "rw"),
    }
    environment = container["environment"]
    assert environment["OUTPUT_DIR"] == f"{CODE}/output"
    assert environment["DATA_DIR"] == str(machine.folder / "prepared")
    assert environment["HF_HOME"] == str(machine.home / ".cache/huggingface")
    where = options_of(container, "--pwd" if engine == "apptainer" else "--workdir")
    assert where == [CODE]
    if engine == "apptainer":
        assert options_of(container, "--home") == [f"{machine.folder}/home inside:/workspace/home"]
    else:
        assert environment["HOME"] == "/workspace/home"
        assert options_of(container, "--hostname") == [os.uname().nodename], "a result is of this machine"


@every_engine
def test_data_and_tokenizers_of_the_user_are_there_to_be_read(engine, machine):
    given = machine.folder / "given"
    for name in ("plain/part", "other", "links", "hub/blobs", "tokenizer"):
        (given / name).mkdir(parents=True)
    (given / "plain/text.bin").touch()
    (given / "hub/blobs/1").touch()
    (given / "links/a.jsonl").symlink_to(given / "hub/blobs/1")
    (machine.checkout / "mine").mkdir()

    def data(value, *arguments):
        container = run(machine, "run_train.sh", f"DATASET={value}", *arguments, engine=engine)
        found = {target: mode for target, (source, mode) in targets(container).items() if str(given) in source}
        assert not any(word.startswith(("DATASET=", "TOKENIZER=")) for word in container["command"])
        return found, container["environment"]

    assert data(f"{given}/plain/text") == ({f"{given}/plain": "ro"}, data(f"{given}/plain/text")[1])
    assert data(f"{given}/other")[0] == {f"{given}/other": "ro"}
    assert data(f"{given}/pl*/p?rt/*.jsonl")[0] == {str(given): "ro"}
    assert data(f"{given}/links/a.jsonl")[0] == {f"{given}/links": "ro", f"{given}/hub/blobs": "ro"}
    mounts, environment = data(f"{given}/../given/other", f"TOKENIZER={given}/tokenizer")
    assert mounts == {f"{given}/other": "ro", f"{given}/tokenizer": "ro"}
    assert (environment["DATASET"], environment["TOKENIZER"]) == (f"{given}/other", f"{given}/tokenizer")
    assert data("mine/x.jsonl")[1]["DATASET"] == f"{CODE}/mine/x.jsonl", "what is in the checkout is there already"
    assert data("~/x.jsonl")[1]["DATASET"] == f"{machine.home}/x.jsonl"


def test_a_data_set_or_tokenizer_by_name_is_handed_on_as_it_is(machine):
    container = run(machine, "run_data.sh", "DATASET=c4", "TOKENIZER=owner/name")
    assert container["command"][1:] == ["DATASET=c4", "TOKENIZER=owner/name"]
    assert "DATASET" not in container["environment"]


def private_of(container):
    """Return the variables of the private file of a container."""
    return {
        name: value
        for _, _, text in container["private"]
        for name, _, value in (assignment.partition("=") for assignment in text.split("\0") if assignment)
    }


@every_engine
def test_a_secret_reaches_the_container_and_no_engine_shows_it(engine, machine):
    (machine.checkout / "secrets.env").write_text(f"HF_TOKEN={TOKEN}\n")
    (machine.checkout / "secrets.env").chmod(0o600)
    for script in ("run_train.sh", "run_data.sh", "run_wrap.sh", "entry.sh"):
        container = run(machine, script, engine=engine)
        if engine == "apptainer":  # it has no `inspect`, and its variables are those of a process of the caller
            assert container["environment"]["HF_TOKEN"] == TOKEN
        else:
            assert private_of(container) == {"HF_TOKEN": TOKEN}
            assert TOKEN not in str(container["environment"]) and container["command"][0] == "shell/inside/private.sh"
        assert TOKEN not in str(container["argv"])
        assert targets(container)[f"{CODE}/secrets.env"][0] == "/dev/null"
    dry = machine.run("run_train.sh", "--dry-run", "PLATFORM=cpu", f"RUNTIME={engine}", HF_TOKEN=TOKEN)
    assert dry.returncode == 0 and "HF_TOKEN" in dry.stdout + dry.stderr and TOKEN not in dry.stdout + dry.stderr
    assert "tprimat/environment" not in dry.stdout


@pytest.mark.parametrize("script", ["run_train.sh", "entry.sh"])
def test_the_private_file_is_the_callers_own_and_gone_after_the_container(script, machine):
    ((path, modes, _),) = run(machine, script, HF_TOKEN=TOKEN)["private"]
    assert modes == ["0o40700", "0o100644"], "only the caller opens the folder, any user inside the file"
    deadline = time.monotonic() + 30
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
    container = run(machine, "run_train.sh", **plain, **HIDDEN, **unknown, TPRIMAT_ENV_NAMES="MY_NOTE,MY_NUMBER")
    assert private_of(container) == HIDDEN
    assert container["environment"].items() >= plain.items()
    assert not (HIDDEN.keys() | unknown.keys()) & container["environment"].keys()
    assert container["environment"]["TPRIMAT_ENV_NAMES"] == "MY_NOTE,MY_NUMBER", "the launcher inside reads it too"


def test_the_private_file_becomes_the_environment_of_the_command(machine):
    lent = machine.sysroot / "run" / "tprimat" / "environment"
    lent.parent.mkdir(parents=True)
    lent.write_text("A=b c=d\0HF_TOKEN=two\nlines\0")
    done = machine.run("inside/private.sh", "bash", "-c", 'printf "%s|%s" "$A" "$HF_TOKEN"; exit 7')
    assert (done.returncode, done.stdout) == (7, "b c=d|two\nlines")


@pytest.mark.parametrize(
    "argument",
    [
        f"CONTAINER_ARGS=--label {TOKEN}",
        "CONTAINER_ARGS=--env X=http://ann:open-sesame@proxy.example",
        f"DATASET_REPO=ann/{TOKEN}",
        f"LABEL={TOKEN}",
    ],
)
@pytest.mark.parametrize("is_argument", [True, False])
def test_a_secret_in_a_command_line_is_refused_without_being_repeated(argument, is_argument, machine):
    name, _, value = argument.partition("=")
    given, changes = ([argument], {}) if is_argument else ([], {name: value})
    if not is_argument and name != "CONTAINER_ARGS":
        container = run(machine, "run_train.sh", **changes)  # the suite inside refuses it
        assert TOKEN not in str(container["argv"]) + str(container["environment"])
        return
    done = machine.run("run_train.sh", "PLATFORM=cpu", *given, RUNTIME="docker", **changes)
    assert done.returncode == 2 and not machine.started
    assert done.stderr == f"error: {name}: looks like a secret, which a command line would show; see docs/secrets.md\n"


@pytest.mark.parametrize(
    ("words", "changes", "named"),
    [
        (["entry.sh", "--", "echo", TOKEN], {}, "a word of the container's command"),
        (["run_train.sh"], {"DATA_DIR": f"/tmp/{TOKEN}/x"}, "DATA_DIR"),
        (["run_train.sh"], {"DATASET": "s3://ann:open-sesame@store.example/text"}, "DATASET"),
    ],
)
def test_no_word_of_a_containers_command_is_a_secret(words, changes, named, machine):
    machine.add_tool("mkdir", "exit 0")  # as if the folder could be made
    done = machine.run(*words, PLATFORM="cpu", RUNTIME="docker", **changes)
    assert done.returncode == 2 and not machine.started
    assert done.stderr == f"error: {named}: looks like a secret, which a command line would show; see docs/secrets.md\n"


def test_a_path_that_only_begins_like_a_token_is_not_refused(machine):
    assert machine.sourced('refuse_secret OUTPUT_DIR "$1"', "/data/hf_llama_7b_runs_of_2026").returncode == 0


def test_bash_refuses_and_hides_each_shape_that_the_redaction_knows(machine):
    tail = "Ab1" * 12
    shapes = ["hf_", "api_org_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "nvapi-"]
    secrets = [*(shape + tail for shape in shapes), "AKIA" + "A1" * 8, "ASIA" + "A1" * 8, "https://ann:word@host/"]
    known = [text for text in secrets if redact.text(text, {}) != text]
    assert len(known) > 10
    ask = 'for X in "$@"; do export X; _may_be_secret X && [[ $X =~ $SECRET_TEXT ]] || echo "$X"; done'
    assert machine.sourced(ask, *secrets).stdout == ""


def test_settings_and_what_changes_speed_reach_the_container_and_nothing_else(machine):
    settings = {key: "x,y" for key in KEYS if key not in ("OUTPUT_DIR", "DATA_DIR", "DATASET", "TOKENIZER", "RUNTIME")}
    settings |= {"LAUNCHER": "torchrun", "NNODES": "1", "METHOD": "equal"}
    speed = {
        *("NCCL_DEBUG", "NVTE_FUSED_ATTN", "HSA_ENABLE_SDMA", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES"),
        *("HIP_VISIBLE_DEVICES", "OMP_NUM_THREADS", "UCX_TLS", "TE_X", "GPU_MAX_HW_QUEUES", "NVIDIA_TF32_OVERRIDE"),
    }
    assert all(SPEED_VARIABLES.match(name) for name in speed)
    hub = {"HF_ENDPOINT", "HF_HUB_OFFLINE", "HTTPS_PROXY", "no_proxy"}
    here = {"CUDA_HOME", "TRITON_CACHE_DIR", "LD_PRELOAD", "PYTHONPATH", "SSH_AUTH_SOCK", "AWS_SECRET_ACCESS_KEY"}
    values = dict.fromkeys({*speed, *hub}, "a b,c=1")
    container = run(machine, "run_train.sh", **settings, **values, **dict.fromkeys(here - {"LD_PRELOAD"}, "/elsewhere"))
    environment = container["environment"]
    assert {name: environment.get(name) for name in (*settings, *values)} == {**settings, **values}
    assert not here & environment.keys()


def test_every_pattern_of_speed_variables_is_known_to_bash_too(machine):
    names = [f"{prefix}_X" for prefix in READERS]
    assert len(names) > 30 and all(SPEED_VARIABLES.match(name) for name in names)
    ask = 'for name in "$@"; do is_passed "$name" || echo "$name"; done'
    assert machine.sourced(ask, *names, "LD_PRELOAD", "ONCCL_X", "CUDAX_Y").stdout.split() == [
        *("LD_PRELOAD", "ONCCL_X", "CUDAX_Y")
    ]


@every_engine
def test_the_image_and_the_commit_are_told(engine, machine):
    environment = run(machine, "run_train.sh", engine=engine, platform="nvd")["environment"]
    assert environment["TPRIMAT_IMAGE"].endswith(("tprimat:nvd", "/tprimat_nvd.sif"))
    assert environment["TPRIMAT_IMAGE_DIGEST"].startswith("sha256:") and len(environment["TPRIMAT_IMAGE_DIGEST"]) == 71
    assert "TPRIMAT_GIT_COMMIT" not in environment, "the copy is no repository"
    git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(machine.checkout)]
    for command in (["init", "-q"], ["add", "config.env"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    environment = run(machine, "run_train.sh", engine=engine)["environment"]
    assert (environment["TPRIMAT_GIT_COMMIT"], environment["TPRIMAT_GIT_DIRTY"]) == (head, "false")
    (machine.checkout / "config.env").write_text((machine.checkout / "config.env").read_text() + "\n")
    assert run(machine, "run_train.sh", engine=engine)["environment"]["TPRIMAT_GIT_DIRTY"] == "true"


@pytest.mark.parametrize(
    ("changes", "network"),
    [
        ({}, []),
        ({"HF_ENDPOINT": "https://hub.example"}, []),
        ({"HF_ENDPOINT": "http://127.0.0.1:8080"}, ["host"]),
        ({"https_proxy": "http://me:pw@localhost:3128"}, ["host"]),
        ({"https_proxy": "http://proxy.example:3128"}, []),
        ({"NNODES": "2"}, ["host"]),
    ],
)
def test_the_network_of_the_machine_is_shared_only_where_it_is_needed(changes, network, machine):
    assert options_of(run(machine, "run_train.sh", **changes), "--network") == network


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_wrap_and_purge_have_neither_gpu_nor_network(engine, machine):
    for script, command in (("run_wrap.sh", "shell/wrap.sh"), ("run_purge.sh", "shell/purge.sh")):
        container = run(machine, script, engine=engine, platform="nvd")
        rights = {name: options_of(container, name) for name in RIGHTS if options_of(container, name)}
        assert rights == {"--network": ["none"]}
        assert container["command"] == [command]


def test_purge_may_write_where_the_folders_stand_that_it_removes(machine):
    assert targets(run(machine, "run_purge.sh")) == {CODE: (str(machine.checkout), "rw")}
    outside = machine.folder / "results"
    outside.mkdir()
    container = run(machine, "run_purge.sh", "--with-data", f"OUTPUT_DIR={outside}")
    assert targets(container) == {str(machine.folder): (str(machine.folder), "rw"), CODE: (str(machine.checkout), "ro")}
    assert container["command"] == ["shell/purge.sh", "--with-data"]


@pytest.mark.parametrize("what", ["home", "link"])
def test_purge_judges_on_this_side_what_the_container_cannot_see(what, machine):
    folder = machine.folder / "link"
    folder.symlink_to(machine.checkout)
    asked = machine.home if what == "home" else folder / "output"
    done = machine.run("run_purge.sh", f"OUTPUT_DIR={asked}", PLATFORM="cpu", RUNTIME="docker")
    assert done.returncode == 2 and done.stderr.startswith("error: OUTPUT_DIR=") and not machine.started


@pytest.mark.parametrize("script", ["run_train.sh", "run_data.sh", "run_wrap.sh", "run_purge.sh", "entry.sh"])
@every_engine
def test_a_dry_run_prints_the_command_that_would_be_run_and_makes_nothing(script, engine, machine):
    machine.environment["STANDIN_IMAGES"] = ""
    (machine.checkout / "tprimat_cpu.sif").unlink()
    data = machine.folder / "not yet"
    done = machine.run(script, "--dry-run", "PLATFORM=cpu", f"RUNTIME={engine}", DATA_DIR=str(data))
    assert done.returncode == 0 and "note: cannot be started here: " in done.stderr
    assert not machine.started and not data.exists()
    machine.add_images("cpu")
    data.mkdir()
    (machine.home / ".cache" / "huggingface").mkdir(parents=True)
    words = shlex.split(done.stdout)
    subprocess.run(["bash", "-c", done.stdout], env=machine.environment, check=True)
    (container,) = machine.started
    assert container["argv"] == words[words.index(engine) + 1 :]
    real = run(machine, script, engine=engine, DATA_DIR=str(data))

    def options(of):  # a name is of one run, and the id of the image is not known before it is there
        return [x for x in of["options"] if x[0] != "--name" and "TPRIMAT_IMAGE_DIGEST" not in x[1]]

    assert options(container) == options(real)
    assert container["command"] == real["command"]


def test_a_dry_run_of_the_training_shows_the_plan_too_where_the_image_is(machine):
    done = machine.run("run_train.sh", "--dry-run", "PLATFORM=cpu", "RUNTIME=docker", STANDIN_JOB="echo the plan")
    assert done.returncode == 0
    command, plan = done.stdout.splitlines()
    assert command.startswith("docker run ") and command.endswith("shell/train.sh --compare") and plan == "the plan"
    (container,) = machine.started
    assert container["command"] == ["shell/train.sh", "--compare", "--dry-run"]
    assert str(machine.folder / "prepared") not in targets(container), "a folder that is missing is not made for a plan"


@every_engine
def test_extra_arguments_stand_before_the_image_in_words_of_a_shell(engine, machine):
    extra = {"docker": '--memory 64g --label "a=b  c"', "podman": r"--memory 64g --label a=b\ \ c", "apptainer": "--nv"}
    container = run(machine, "run_train.sh", "MODEL=llama", f"CONTAINER_ARGS={extra[engine]}", engine=engine)
    assert container["command"] == ["shell/train.sh", "--compare", "MODEL=llama"]
    if engine != "apptainer":
        assert options_of(container, "--memory") == ["64g"] and options_of(container, "--label") == ["a=b  c"]
    else:
        assert options_of(container, "--nv") == ["true"]
    done = machine.run("run_train.sh", "PLATFORM=cpu", RUNTIME=engine, CONTAINER_ARGS="--label 'a")
    assert done.returncode == 2 and done.stderr.startswith("error: CONTAINER_ARGS=--label 'a: has an unmatched quote")
    done = machine.run("run_train.sh", "PLATFORM=cpu", RUNTIME="docker", CONTAINER_ARGS="$(touch /tmp/x) --label a")
    assert "unknown flag" in done.stderr or "no such image" in done.stderr


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_shared_memory_is_the_machines_or_of_a_size_never_both(engine, machine):
    container = run(machine, "run_train.sh", "CONTAINER_SHM_SIZE=64g", engine=engine, platform="nvd")
    assert options_of(container, "--shm-size") == ["64g"] and not options_of(container, "--ipc")


def test_selinux_is_told_to_leave_the_files_their_labels(machine):
    enforce = machine.sysroot / "sys" / "fs" / "selinux" / "enforce"
    enforce.parent.mkdir(parents=True)
    enforce.write_text("1")
    assert options_of(run(machine, "run_train.sh"), "--security-opt") == ["label=disable"]
    enforce.write_text("0")
    assert not options_of(run(machine, "run_train.sh"), "--security-opt")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("DATA_DIR={}/a:b", "with a colon"),
        ("OUTPUT_DIR=/usr/results", "would hide"),
        ("DATA_DIR=/proc/x", "would hide"),
    ],
)
@every_engine
def test_a_path_that_cannot_be_mounted_is_refused_in_one_line(setting, said, engine, machine):
    machine.add_tool("mkdir", "exit 0")  # as if they could be made
    done = machine.run("run_train.sh", "PLATFORM=cpu", setting.format(machine.folder), RUNTIME=engine)
    assert done.returncode == 2 and not machine.started
    assert done.stderr.startswith(f"error: {setting.split('=')[0]}: ") and said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_folder_that_cannot_be_made_is_named(machine):
    done = machine.run("run_train.sh", "PLATFORM=cpu", "DATA_DIR=/proc/nowhere", RUNTIME="docker")
    assert done.returncode == 2
    assert done.stderr == (
        "error: DATA_DIR=/proc/nowhere: cannot be created; name a folder of yours, e.g. DATA_DIR=output\n"
    )


def test_a_private_home_of_apptainer_is_the_callers_own(machine):
    (machine.folder / "home inside").symlink_to(machine.home)
    done = machine.run("run_train.sh", "PLATFORM=cpu", RUNTIME="apptainer")
    assert done.returncode == 2 and done.stderr.startswith("error: TPRIMAT_HOME=") and not machine.started


def test_a_command_of_entry_is_run_as_it_is(machine):
    container = run(machine, "entry.sh", "MODEL=qwen", "--", "bash", "-c", "echo a  b; --help", "X=1")
    assert container["command"] == ["bash", "-c", "echo a  b; --help", "X=1"]
    assert container["environment"]["MODEL"] == "qwen"
    assert run(machine, "entry.sh")["command"] == ["bash"]
    done = machine.run("entry.sh", "train/x.sh", PLATFORM="cpu", RUNTIME="docker")
    assert done.returncode == 2 and "wanted KEY=VALUE, or -- before a command" in done.stderr
    done = machine.run("entry.sh", "MODLE=qwen", PLATFORM="cpu", RUNTIME="docker")
    assert done.returncode == 2 and done.stderr.startswith("error: entry: MODLE=qwen: neither a setting")
    assert run(machine, "entry.sh", "NCCL_DEBUG=INFO")["environment"]["NCCL_DEBUG"] == "INFO"


@pytest.mark.parametrize(("launcher", "script"), [("slurm", "run_slurm.sh"), ("torchrun", "train.sh")])
def test_slurm_and_the_machine_itself_get_all_but_what_is_for_the_container(launcher, script, machine):
    handed = machine.checkout / "shell" / script
    handed.write_text('#!/usr/bin/env bash\nprintf "%s|" "$PLATFORM" "$CONTAINER_ARGS" "$@"\n')
    handed.chmod(0o755)
    asked = [f"LAUNCHER={launcher}", "--dry-run", "PLATFORM=amd", "NNODES=4", "CONTAINER_ARGS=--cpus 2"]
    done = machine.run("run_train.sh", *asked, RUNTIME="native")
    compare = "--compare|" if script == "train.sh" else ""
    assert (done.returncode, done.stdout) == (0, f"amd|--cpus 2|{compare}--dry-run|LAUNCHER={launcher}|NNODES=4|")


@pytest.mark.parametrize("script", ["run_data.sh", "run_wrap.sh", "entry.sh"])
def test_a_dry_run_without_a_container_prints_what_would_be_started_here(script, machine):
    done = machine.run(script, "--dry-run", "PLATFORM=cpu", "RUNTIME=native", "CONTAINER_ARGS=--cpus 2")
    assert done.returncode == 0 and "CONTAINER" not in done.stdout and not machine.started
    first = shlex.split(done.stdout)[0]
    checkout = machine.checkout
    wanted = {
        "run_data.sh": checkout / ".venv/bin/python",
        "run_wrap.sh": checkout / "shell/wrap.sh",
        "entry.sh": "bash",
    }
    assert first == str(wanted[script])
