"""The choice of the engine: the first that works, with the reason why the others were passed over."""

from __future__ import annotations

import functools
import hashlib
import os

import pytest

from tests.support.engine_cases import ALL, Machine


@pytest.fixture
def machine(tmp_path):
    """Return a function that makes a machine."""
    return functools.partial(Machine, tmp_path / "m")


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
    wanted, platform, engines, faults, images, purpose, taken, said, machine
):
    made = machine(engines, faults=faults, images=images)
    code, runtime, stderr = pick(made, wanted, platform, purpose, ENGINE_TIMEOUT="1" if "hangs" in faults else "60")
    assert (code, runtime) == ((0, taken) if taken else (2, "")), stderr
    assert stderr.startswith(said[0].format(taken)) and stderr.count("\n") <= 1
    assert [text for text in said[1:] if text not in stderr] == []


@pytest.mark.parametrize("wanted", ["auto", "docker", "native"])
def test_inside_a_container_of_ours_everything_is_native_without_a_word(wanted, machine):
    assert pick(machine(), wanted, TPRIMAT_IN_CONTAINER="1") == (0, "native", "")


def test_the_digest_of_an_image_is_the_engines_and_of_a_file_that_beside_it_while_it_is_not_older(machine):
    made = machine()
    digests = made.sourced("for e in docker podman apptainer; do image_digest $e cpu; done").stdout.split()
    of_file = hashlib.sha256(b"an image").hexdigest()
    assert digests == ["sha256:" + "5" * 64, "sha256:" + "5" * 64, f"sha256:{of_file}"]
    (made.checkout / "tprimat_cpu.sif.sha256").write_text("7" * 64 + "  tprimat_cpu.sif\n")
    assert made.sourced("image_digest apptainer cpu").stdout.split() == ["sha256:" + "7" * 64]
    os.utime(made.checkout / "tprimat_cpu.sif.sha256", (1, 1))
    assert made.sourced("image_digest apptainer cpu").stdout.split() == [f"sha256:{of_file}"]
