"""The choice of the engine; signals reach the job in the container, and no container is left behind."""

from __future__ import annotations

import hashlib
import os
import signal

import psutil
import pytest

from tests.support.setups import ALL, LIMIT_SECONDS, Machine, add_program

every_engine = pytest.mark.parametrize("engine", ALL.split())
docker_and_podman = pytest.mark.parametrize("engine", ["docker", "podman"])
PATIENT = """
for name in INT TERM HUP; do trap "echo got-$name >>$STANDIN_OUT; sleep 0.2; exit 7" $name; done
echo started >>$STANDIN_OUT
while :; do sleep 0.05; done
"""
"""A job that ends cleanly some time after a signal."""


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path / "m")


def start(machine, engine, script="run_train.sh", **changes):
    given = {"RUNTIME": engine, "STANDIN_JOB": PATIENT, "GRACE_SECONDS": "20"} | changes
    process = machine.start(script, "PLATFORM=cpu", **given)
    machine.wait_for("started")
    return process


def ended(machine, process):
    """Check that no container is left, and return the exit code."""
    _, stderr = process.communicate(timeout=LIMIT_SECONDS)
    assert not list(machine.state.iterdir()), stderr
    return process.returncode


@every_engine
@pytest.mark.parametrize("script", ["run_train.sh", "run_data.sh", "run_wrap.sh", "run_purge.sh", "entry.sh"])
def test_the_exit_code_is_the_jobs_and_only_a_command_of_entry_gets_the_input(script, engine, machine):
    job = "echo said; cat; exit 42"
    done = machine.run(script, RUNTIME=engine, STANDIN_JOB=job, given="piped")
    assert (done.returncode, done.stdout) == (42, "said\npiped" if script == "entry.sh" else "said\n")
    assert not list(machine.state.iterdir())


@every_engine
@pytest.mark.parametrize(
    ("send", "name"),
    [(os.kill, "TERM"), (os.kill, "INT"), (os.kill, "HUP"), (os.killpg, "INT")],  # the last: Ctrl-C
)
def test_a_signal_reaches_the_job_once_which_ends_in_its_own_way(send, name, engine, machine):
    process = start(machine, engine)
    send(process.pid, signal.Signals[f"SIG{name}"])
    assert ended(machine, process) == 7
    assert machine.out.read_text().split() == ["started", f"got-{name}"]


DEAF = "trap '' TERM; echo started >>$STANDIN_OUT; while :; do sleep 0.05; done"


@every_engine
@pytest.mark.parametrize(("job", "grace", "said"), [(PATIENT, "20", ["started", "got-TERM"]), (DEAF, "1", ["started"])])
def test_a_client_that_is_killed_leaves_no_container_nor_a_job_that_heeds_no_signal(job, grace, said, engine, machine):
    process = start(machine, engine, STANDIN_JOB=job, GRACE_SECONDS=grace)
    children = psutil.Process(process.pid).children()
    (client,) = [child for child in children if any(word.endswith("engine.py") for word in child.cmdline())]
    client.kill()
    assert ended(machine, process) == 128 + signal.SIGKILL
    assert machine.out.read_text().split() == said


@every_engine
def test_nohup_is_honoured(engine, machine):
    add_program(
        machine.root / "shell" / "later.sh", "#!/usr/bin/env bash\ntrap '' HUP\nexec \"${0%/*}/run_train.sh\"\n"
    )
    process = start(machine, engine, "later.sh")
    os.killpg(process.pid, signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert ended(machine, process) == 7
    assert "got-HUP" not in machine.out.read_text()


@docker_and_podman
def test_a_container_has_a_name_of_its_own_and_is_removed(engine, machine):
    first, second = (machine.container("run_train.sh", engine=engine) for _ in range(2))
    assert first.options("--name") != second.options("--name")
    assert first.options("--rm") == ["true"] and first.options("--sig-proxy") == ["false"]
    assert not first.options("--tty") and not first.options("--interactive"), "no terminal here"


@docker_and_podman
def test_an_init_reaps_and_hands_on_where_the_engine_has_one(engine, machine):
    assert machine.container("run_train.sh", engine=engine).options("--init") == ["true"]
    (machine.bin / "catatonit").unlink()
    container = machine.container("run_train.sh", engine=engine)
    ours = [] if engine == "docker" else ["shell/inside/start.sh", "--init"]  # docker brings its own
    assert container.options("--init") == ([] if ours else ["true"])
    assert container["command"] == [*ours, "shell/run_train.sh", "--here"]


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
def test_our_own_init_hands_on_signals_once_and_returns_the_exit_code(name, machine):
    process = machine.start("inside/start.sh", "--init", "bash", "-c", PATIENT)
    machine.wait_for("started")
    process.send_signal(signal.Signals[f"SIG{name}"])
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 7 and machine.out.read_text().split() == ["started", f"got-{name}"]
    assert machine.run("inside/start.sh", "--init", "bash", "-c", "cat; exit 3", given="x").returncode == 3
    assert machine.run("inside/start.sh", "--init", "bash", "-c", "kill -9 $$").returncode == 128 + signal.SIGKILL


# The first engine that works is taken, with the reason why the others were passed over.


def pick(machine, wanted, platform="cpu", purpose="run", **changes):
    done = machine.sourced('pick_runtime "$@" || exit; echo "$RUNTIME"', wanted, platform, purpose, **changes)
    return done.returncode, done.stdout.strip(), done.stderr


NO_DAEMON = "Cannot connect to the Docker daemon"
FIRST, BUILD_SH = "runtime: {}, the first that works", "which ./shell/build.sh makes"
EVERY, CPU, GPUS = ("cpu", "amd", "nvd"), ("cpu",), ("amd", "nvd")
HERE = "cpu amd nvd"
PICKS = [
    # RUNTIME, platforms, engines on PATH, their faults, images, purpose, what is taken (None: refused), what is said
    ("auto", EVERY, ALL, "", HERE, "run", "docker", (FIRST,)),
    ("auto", EVERY, ALL, "docker:no-daemon", HERE, "run", "podman", (FIRST, f"docker: {NO_DAEMON}")),
    ("auto", EVERY, ALL, "docker:is-podman", HERE, "run", "podman", (FIRST, "docker: is podman under another name")),
    ("auto", EVERY, ALL, "docker:no-start", HERE, "run", "podman", (FIRST, "starts no container: docker: Error: OCI ")),
    ("auto", EVERY, ALL, "docker:no-daemon podman:no-daemon", HERE, "run", "apptainer", (FIRST, "podman: Cannot")),
    ("auto", EVERY, "podman apptainer", "podman:no-start", HERE, "run", "apptainer", (FIRST, "docker: not on PATH")),
    ("auto", EVERY, "apptainer", "", HERE, "run", "apptainer", (FIRST, "docker: not on PATH; podman: not on PATH")),
    ("auto", CPU, ALL, "docker:hangs", HERE, "run", "podman", (FIRST, "docker: does not answer within 1 s")),
    ("auto", CPU, "", "", HERE, "run", "native", ("runtime: native (docker: ",)),
    ("auto", CPU, ALL, "", "", "run", "native", ("runtime: native (docker: ",)),
    ("auto", GPUS, "docker", "docker:no-daemon", HERE, "run", "native", ("warning: ", NO_DAEMON)),
    ("auto", GPUS, ALL, "", "", "run", None, ("error: ", "./shell/build.sh")),
    ("auto", GPUS, ALL, "", "", "tools", "native", ("",)),  # packing and removing results need no image
    ("auto", GPUS, ALL, "", "", "build", "docker", ("",)),  # nor does building one
    ("auto", GPUS, "apptainer", "", "", "build", None, ("error: ", "install docker or podman")),
    ("docker", CPU, "podman", "", HERE, "run", None, ("error: RUNTIME=docker: ", "not on PATH")),
    ("docker", CPU, ALL, "docker:no-daemon", HERE, "run", None, ("error: RUNTIME=docker: ", NO_DAEMON)),
    ("docker", CPU, ALL, "docker:no-start", HERE, "run", None, ("error: RUNTIME=docker: ", "starts no container")),
    (
        "podman",
        CPU,
        ALL,
        "",
        "",
        "run",
        None,
        ("error: RUNTIME=podman: ", f"no image localhost/tprimat:cpu, {BUILD_SH}"),
    ),
    ("apptainer", CPU, ALL, "", "", "run", None, ("error: RUNTIME=apptainer: ", f"tprimat_cpu.sif, {BUILD_SH}")),
    (
        "lxc",
        CPU,
        ALL,
        "",
        HERE,
        "run",
        None,
        ("error: RUNTIME=lxc: ", "wanted auto, docker, podman, apptainer or native"),
    ),
]


@pytest.mark.parametrize(
    ("wanted", "platform", "engines", "faults", "images", "purpose", "taken", "said"),
    [(wanted, platform, *rest) for wanted, platforms, *rest in PICKS for platform in platforms],
)
def test_the_first_that_works_is_taken_and_the_reason_said(
    wanted, platform, engines, faults, images, purpose, taken, said, tmp_path
):
    made = Machine(tmp_path / "m", engines, faults=faults, images=images)
    code, runtime, stderr = pick(made, wanted, platform, purpose, ENGINE_TIMEOUT="1" if "hangs" in faults else "60")
    assert (code, runtime) == ((0, taken) if taken else (2, "")), stderr
    assert stderr.startswith(said[0].format(taken)) and stderr.count("\n") <= 1
    assert [text for text in said[1:] if text not in stderr] == []


@pytest.mark.parametrize("platform", GPUS)
def test_a_plan_needs_no_image(platform, tmp_path):
    """An engine without our image would stop the jobs, which a dry run does not start."""
    made = Machine(tmp_path / "m", ALL, images="")
    ran = made.sourced('is_dry_run=true; pick_runtime "$@" || exit; echo "$RUNTIME"', "auto", platform, "run")
    assert (ran.returncode, ran.stdout.strip()) == (0, "native") and ran.stderr.startswith("warning: "), ran.stderr


@pytest.mark.parametrize("wanted", ["auto", "docker", "native"])
def test_inside_a_container_of_ours_everything_is_native_without_a_word(wanted, machine):
    assert pick(machine, wanted, TPRIMAT_IN_CONTAINER="1") == (0, "native", "")


def test_the_digest_of_an_image_is_the_engines_and_of_a_file_that_beside_it_while_it_is_not_older(machine):
    digests = machine.sourced("for e in docker podman apptainer; do image_digest $e cpu; done").stdout.split()
    of_file = hashlib.sha256(b"an image").hexdigest()
    assert digests == ["sha256:" + "5" * 64, "sha256:" + "5" * 64, f"sha256:{of_file}"]
    (machine.root / "tprimat_cpu.sif.sha256").write_text("7" * 64 + "  tprimat_cpu.sif\n")
    assert machine.sourced("image_digest apptainer cpu").stdout.split() == ["sha256:" + "7" * 64]
    os.utime(machine.root / "tprimat_cpu.sif.sha256", (1, 1))
    assert machine.sourced("image_digest apptainer cpu").stdout.split() == [f"sha256:{of_file}"]
