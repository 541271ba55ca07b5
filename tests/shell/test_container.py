"""The commands that start containers: every engine on every platform, run by stand-ins that reject what engines reject.

The checkout is in a folder with spaces and a comma in its name.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.support.setups import ALL, Container, Machine, add_program

CODE = "/workspace/code"
every_engine = pytest.mark.parametrize("engine", ALL.split())
every_platform = pytest.mark.parametrize("platform", ["amd", "nvd", "cpu"])
docker_and_podman = pytest.mark.parametrize("engine", ["docker", "podman"])


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "m")


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
RIGHTS = [
    "--device",
    "--group-add",
    "--security-opt",
    "--cap-add",
    "--ipc",
    "--ulimit",
    "--gpus",
    "--shm-size",
    "--network",
    "--nv",
    "--rocm",
    "--privileged",
    "--bind",
]


def rights(container: Container) -> dict[str, list[str]]:
    return {name: container.options(name) for name in RIGHTS if container.options(name)}


@every_platform
@every_engine
@pytest.mark.parametrize(
    ("script", "inside"), [("run_train.sh", ["shell/run_train.sh", "--here"]), ("run_data.sh", ["shell/run_data.sh"])]
)
def test_a_job_gets_its_gpus_and_no_right_more(script, inside, engine, platform, machine):
    if (engine, platform) == ("podman", "amd") and os.geteuid() != 0:
        pytest.skip("as root only; without root see test_podman_without_root")
    container = machine.container(script, "MODEL=llama", "RUNS=2", engine=engine, platform=platform)
    assert rights(container) == GPU[engine, platform]
    assert container["command"] == [*inside, "MODEL=llama", "RUNS=2"]
    told = {"PLATFORM": platform, "RUNTIME": "native", "LAUNCHER": "torchrun"}
    assert container["environment"].items() >= told.items()


@every_engine
def test_infiniband_is_given_only_where_it_is(engine, machine):
    (machine.sysroot / "dev" / "infiniband").mkdir()
    for platform, is_given in (("nvd", engine != "apptainer"), ("cpu", False)):  # apptainer has all of /dev
        devices = machine.container("run_train.sh", engine=engine, platform=platform).options("--device")
        assert ("/dev/infiniband" in devices) == is_given


@pytest.mark.parametrize("named", [{44, 109}, set()])
def test_the_groups_of_the_devices_are_given_by_name_and_by_number_once(named, machine):
    node = machine.sysroot / "dev" / "dri" / "renderD128"
    node.parent.mkdir()
    node.touch()
    (machine.sysroot / "dev" / "kfd").touch()
    if not named:
        machine.add_tool("getent", "exit 2")
    groups = machine.container("run_train.sh", platform="amd").options("--group-add")
    assert groups == ["video", "render", *(str(number) for number in sorted({node.stat().st_gid} | named))]


@pytest.mark.parametrize(("engine", "faults"), [("docker", ""), ("docker", "docker:rootless"), ("podman", "")])
def test_the_caller_owns_what_is_written(engine, faults, machine):
    """Root in a docker without root is the caller."""
    container = machine.container("run_train.sh", engine=engine, STANDIN_FAULTS=faults)
    of_caller = f"{os.getuid()}:{os.getgid()}" if (engine, faults) == ("docker", "") else "0:0"
    if engine == "podman" and os.geteuid() != 0:
        assert container.options("--userns") == ["keep-id"]
    else:
        assert container.options("--user") == [of_caller]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_podman_without_root_keeps_user_and_groups_and_raises_no_limit():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        made = Machine(Path(folder) / "m", "", images="")
        made.add_tool("podman", 'if [[ $* == *train.sh* ]]; then printf "%s\\n" "$@" >"$STANDIN_OUT"; fi')
        made.add_tool("limited", 'ulimit -l 64; exec "$@"')
        subprocess.run(["chown", "-R", "65534:65534", folder], check=True)
        done = subprocess.run(
            [made.bin / "limited", made.root / "shell" / "run_train.sh", "PLATFORM=amd", "RUNTIME=podman"],
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
    container = machine.container("run_train.sh", engine=engine)
    output, data, cache = machine.root / "output", machine.folder / "prepared", machine.home / ".cache/huggingface"
    assert container.targets() == {
        CODE: (str(machine.root), "ro"),
        f"{CODE}/output": (str(output), "rw"),
        str(data): (str(data), "rw"),
        str(cache): (str(cache), "rw"),
    }
    told = {"OUTPUT_DIR": f"{CODE}/output", "DATA_DIR": str(data), "HF_HOME": str(cache)}
    assert container["environment"].items() >= told.items()
    assert container.options("--pwd" if engine == "apptainer" else "--workdir") == [CODE]
    if engine == "apptainer":
        assert container.options("--home") == [f"{machine.folder}/home inside:/workspace/home"]
    else:
        assert container["environment"]["HOME"] == "/workspace/home"
        assert container.options("--hostname") == [os.uname().nodename], "a result is of this machine"


DATA = [
    # DATASET, the folders of a user that are mounted for it, DATASET inside
    ("{given}/plain/text", ["plain"], "{given}/plain/text"),
    ("{given}/other", ["other"], "{given}/other"),
    ("{given}/pl*/p?rt/*.jsonl", [""], "{given}/pl*/p?rt/*.jsonl"),
    ("{given}/links/a.jsonl", ["links", "hub/blobs"], "{given}/links/a.jsonl"),
    ("{given}/../given/other", ["other"], "{given}/other"),
    ("mine/x.jsonl", [], f"{CODE}/mine/x.jsonl"),  # what is in the checkout is there already
    ("~/x.jsonl", [], "{home}/x.jsonl"),
]


@every_engine
@pytest.mark.parametrize(("dataset", "mounted", "inside"), DATA)
def test_data_and_tokenizers_of_the_user_are_there_to_be_read(engine, dataset, mounted, inside, machine):
    given, tokenizer = machine.folder / "given", machine.folder / "tokenizer"
    for folder in (given / "plain/part", given / "other", given / "links", given / "hub/blobs", tokenizer):
        folder.mkdir(parents=True)
    (given / "plain/text.bin").touch()
    (given / "hub/blobs/1").touch()
    (given / "links/a.jsonl").symlink_to(given / "hub/blobs/1")
    (machine.root / "mine").mkdir()
    asked = (f"DATASET={dataset.format(given=given)}", f"TOKENIZER={tokenizer}")
    container = machine.container("run_train.sh", *asked, engine=engine)
    of_user = {target: mode for target, (source, mode) in container.targets().items() if str(given) in source}
    assert of_user == {str(given / name): "ro" for name in mounted}
    assert container.targets()[str(tokenizer)] == (str(tokenizer), "ro")
    assert container["environment"]["DATASET"] == inside.format(given=given, home=machine.home)
    assert container["environment"]["TOKENIZER"] == str(tokenizer)
    assert not any(word.startswith(("DATASET=", "TOKENIZER=")) for word in container["command"])


def test_a_data_set_or_tokenizer_by_name_is_handed_on_as_it_is(machine):
    container = machine.container("run_data.sh", "DATASET=c4", "TOKENIZER=owner/name")
    assert container["command"][1:] == ["DATASET=c4", "TOKENIZER=owner/name"]
    assert "DATASET" not in container["environment"]


@every_engine
def test_the_image_and_the_commit_are_told(engine, machine):
    environment = machine.container("run_train.sh", engine=engine, platform="nvd")["environment"]
    assert environment["TPRIMAT_IMAGE"].endswith(("tprimat:nvd", "/tprimat_nvd.sif"))
    assert environment["TPRIMAT_IMAGE_DIGEST"].startswith("sha256:") and len(environment["TPRIMAT_IMAGE_DIGEST"]) == 71
    assert "TPRIMAT_GIT_COMMIT" not in environment, "the copy is no repository"
    commit = "git init -q; git add config.env; git -c user.name=n -c user.email=e commit -qm x; git rev-parse HEAD"
    head = machine.execute(machine.root, "bash", "-c", commit).stdout.strip()
    for is_dirty in ("false", "true"):
        environment = machine.container("run_train.sh", engine=engine)["environment"]
        assert (environment["TPRIMAT_GIT_COMMIT"], environment["TPRIMAT_GIT_DIRTY"]) == (head, is_dirty)
        (machine.root / "config.env").write_text((machine.root / "config.env").read_text() + "\n")


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
    assert machine.container("run_train.sh", **changes).options("--network") == network


@docker_and_podman
@pytest.mark.parametrize("script", ["run_wrap.sh", "run_purge.sh"])
def test_wrap_and_purge_have_neither_gpu_nor_network(script, engine, machine):
    container = machine.container(script, engine=engine, platform="nvd")
    assert (rights(container), container["command"]) == ({"--network": ["none"]}, [f"shell/{script}", "--here"])


def test_purge_may_write_where_the_folders_stand_that_it_removes(machine):
    assert machine.container("run_purge.sh").targets() == {CODE: (str(machine.root), "rw")}
    outside, above = machine.folder / "results", str(machine.folder)
    outside.mkdir()
    container = machine.container("run_purge.sh", "--with-data", f"OUTPUT_DIR={outside}")
    assert container.targets() == {above: (above, "rw"), CODE: (str(machine.root), "ro")}
    assert container["command"] == ["shell/run_purge.sh", "--here", "--with-data"]


@pytest.mark.parametrize("script", ["run_train.sh", "run_data.sh", "run_wrap.sh", "run_purge.sh", "entry.sh"])
@every_engine
def test_a_dry_run_prints_the_command_that_would_be_run_and_makes_nothing(script, engine, machine):
    machine.environment["STANDIN_IMAGES"] = ""
    (machine.root / "tprimat_cpu.sif").unlink()
    data = machine.folder / "not yet"
    done = machine.run(script, "--dry-run", f"RUNTIME={engine}", DATA_DIR=str(data))
    assert done.returncode == 0 and "note: cannot be started here: " in done.stderr
    assert not machine.started and not data.exists()
    machine.add_images("cpu")
    data.mkdir()
    (machine.home / ".cache" / "huggingface").mkdir(parents=True)
    machine.execute(machine.folder, "bash", "-c", done.stdout)
    real, words = machine.container(script, engine=engine, DATA_DIR=str(data)), shlex.split(done.stdout)
    printed = machine.started[0]
    assert printed["argv"] == words[words.index(engine) + 1 :] and printed["command"] == real["command"]
    # a name is of one run, and the id of the image is not known before it is there
    same, wanted = ([x for x in of["options"] if x[0] != "--name" and "_DIGEST" not in x[1]] for of in (printed, real))
    assert same == wanted


def test_a_dry_run_of_the_training_shows_the_plan_too_where_the_image_is(machine):
    done = machine.run("run_train.sh", "--dry-run", "PLATFORM=cpu", "RUNTIME=docker", STANDIN_JOB="echo the plan")
    command, plan = done.stdout.splitlines()
    assert command.startswith("docker run ") and command.endswith("shell/run_train.sh --here") and plan == "the plan"
    (container,) = machine.started
    assert container["command"] == ["shell/run_train.sh", "--here", "--dry-run"]
    assert str(machine.folder / "prepared") not in container.targets(), "no missing folder is made for a plan"


EXTRA = {
    "docker": ('--memory 64g --label "a=b  c;$(ls)"', {"--memory": ["64g"], "--label": ["a=b  c;$(ls)"]}),
    "podman": (r"--memory 64g --label a=b\ \ c", {"--memory": ["64g"], "--label": ["a=b  c"]}),
    "apptainer": ("--nv", {"--nv": ["true"]}),
}


@every_engine
def test_extra_arguments_stand_before_the_image_in_words_of_a_shell(engine, machine):
    extra, wanted = EXTRA[engine]
    container = machine.container("run_train.sh", "MODEL=llama", f"CONTAINER_ARGS={extra}", engine=engine)
    assert container["command"] == ["shell/run_train.sh", "--here", "MODEL=llama"]
    assert {name: container.options(name) for name in wanted} == wanted
    done = machine.run("run_train.sh", "PLATFORM=cpu", RUNTIME=engine, CONTAINER_ARGS="--label 'a")
    assert done.returncode == 2 and done.stderr.startswith("error: CONTAINER_ARGS=--label 'a: has an unmatched quote")


@docker_and_podman
def test_shared_memory_is_the_machines_or_of_a_size_never_both(engine, machine):
    container = machine.container("run_train.sh", "CONTAINER_SHM_SIZE=64g", engine=engine, platform="nvd")
    assert container.options("--shm-size") == ["64g"] and not container.options("--ipc")


@pytest.mark.parametrize(("enforces", "options"), [("1", ["label=disable"]), ("0", [])])
def test_selinux_is_told_to_leave_the_files_their_labels(enforces, options, machine):
    enforce = machine.sysroot / "sys" / "fs" / "selinux" / "enforce"
    enforce.parent.mkdir(parents=True)
    enforce.write_text(enforces)
    assert machine.container("run_train.sh").options("--security-opt") == options


REFUSED = [
    ("run_train.sh", {"DATA_DIR": "/proc/nowhere"}, "DATA_DIR=/proc/nowhere: cannot be created; "),
    ("run_train.sh DATA_DIR=/tmp/a:b", {}, "DATA_DIR: .*with a colon"),
    ("run_train.sh OUTPUT_DIR=/usr/results", {}, "OUTPUT_DIR: .*would hide"),
    ("run_train.sh DATA_DIR=/proc/x", {}, "DATA_DIR: .*would hide"),
    ("run_train.sh", {"RUNTIME": "apptainer", "TPRIMAT_HOME": "{link}"}, "TPRIMAT_HOME="),  # it is of somebody else
    ("run_purge.sh", {"OUTPUT_DIR": "{home}"}, "OUTPUT_DIR="),  # no container can see that it is
    ("run_purge.sh", {"OUTPUT_DIR": "{link}/output"}, "OUTPUT_DIR="),
    ("entry.sh train/x.sh", {}, "entry: "),
    ("entry.sh MODLE=qwen", {}, "entry: MODLE=qwen: neither a setting"),
]


@pytest.mark.parametrize(("command", "changes", "said"), REFUSED)
def test_what_no_container_can_make_good_is_refused_before_one_is_started(command, changes, said, machine):
    link = machine.folder / "link"
    link.symlink_to(machine.root)
    machine.add_tool("mkdir", "[[ $* != *nowhere ]]")  # as if all folders but one could be made
    given = {name: value.format(link=link, home=machine.home) for name, value in changes.items()}
    done = machine.run(*command.split(), **{"RUNTIME": "docker", **given})
    assert (done.returncode, machine.started, done.stderr.count("\n")) == (2, [], 1)
    assert re.match(f"error: {said}", done.stderr), done.stderr


def test_a_command_of_entry_is_run_as_it_is(machine):
    container = machine.container("entry.sh", "MODEL=qwen", "--", "bash", "-c", "echo a  b; --help", "X=1")
    assert container["command"] == ["bash", "-c", "echo a  b; --help", "X=1"]
    assert container["environment"]["MODEL"] == "qwen"
    plain = machine.container("entry.sh", "NCCL_DEBUG=INFO")
    assert (plain["command"], plain["environment"]["NCCL_DEBUG"]) == (["bash"], "INFO")


def test_slurm_gets_all_but_what_is_for_the_container(machine):
    say = '#!/usr/bin/env bash\nprintf "%s|" "$PLATFORM" "$CONTAINER_ARGS" "$@"\n'
    add_program(machine.root / "shell" / "run_slurm.sh", say)
    asked = ["LAUNCHER=slurm", "--dry-run", "PLATFORM=amd", "NNODES=4", "CONTAINER_ARGS=--cpus 2"]
    done = machine.run("run_train.sh", *asked, RUNTIME="native")
    assert (done.returncode, done.stdout) == (0, "amd|--cpus 2|--dry-run|LAUNCHER=slurm|NNODES=4|")


@pytest.mark.parametrize(
    ("script", "first"),
    [("run_data.sh", "{checkout}/.venv/bin/python"), ("run_wrap.sh", "{bin}/python3"), ("entry.sh", "bash")],
)
def test_a_dry_run_without_a_container_prints_what_would_be_started_here(script, first, machine):
    done = machine.run(script, "--dry-run", "PLATFORM=cpu", "RUNTIME=native", "CONTAINER_ARGS=--cpus 2")
    assert done.returncode == 0 and "CONTAINER" not in done.stdout and not machine.started
    assert shlex.split(done.stdout)[0] == first.format(checkout=machine.root, bin=machine.bin)
