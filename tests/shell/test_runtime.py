"""The choice of the engine: the first that works, with the reason why the others were passed over."""

from __future__ import annotations

import hashlib
import os

import pytest

from tests.support.engine_cases import Machine

ALL = "docker podman apptainer"


@pytest.fixture
def machine(tmp_path):
    """Return a function that makes a machine."""

    def make(engines=ALL, *, faults="", images="cpu amd nvd"):
        made = Machine(tmp_path / "m", engines, faults=faults)
        for platform in images.split():
            made.add_images(platform)
        every = [f"{prefix}tprimat:{platform}" for platform in images.split() for prefix in ("", "localhost/")]
        made.environment["STANDIN_IMAGES"] = " ".join(every)
        return made

    return make


def pick(machine, wanted, platform="cpu", purpose="run", **changes):
    done = machine.sourced('pick_runtime "$@" || exit; echo "$RUNTIME"', wanted, platform, purpose, **changes)
    return done.returncode, done.stdout.strip(), done.stderr


NO_DAEMON = "Cannot connect to the Docker daemon"


@pytest.mark.parametrize(
    ("engines", "faults", "taken", "said"),
    [
        (ALL, "", "docker", []),
        (ALL, "docker:no-daemon", "podman", [f"docker: {NO_DAEMON}"]),
        (ALL, "docker:is-podman", "podman", ["docker: is podman under another name"]),
        (
            ALL,
            "docker:no-start",
            "podman",
            ["docker: starts no container: docker: Error: OCI runtime error: crun: operation not permitted)"],
        ),
        (ALL, "docker:no-daemon podman:no-daemon", "apptainer", ["docker: Cannot connect", "podman: Cannot connect"]),
        ("podman apptainer", "podman:no-start", "apptainer", ["docker: not on PATH", "podman: starts no container"]),
        ("apptainer", "", "apptainer", ["docker: not on PATH; podman: not on PATH"]),
    ],
)
@pytest.mark.parametrize("platform", ["cpu", "amd", "nvd"])
def test_auto_takes_the_first_that_works_and_says_why_not_the_others(platform, engines, faults, taken, said, machine):
    code, runtime, stderr = pick(machine(engines, faults=faults), "auto", platform)
    assert (code, runtime) == (0, taken), stderr
    assert stderr.startswith(f"runtime: {taken}, the first that works") and stderr.count("\n") == 1
    for text in said:
        assert text in stderr


def test_an_engine_that_hangs_is_passed_over(machine):
    code, runtime, stderr = pick(machine(faults="docker:hangs"), "auto", ENGINE_TIMEOUT="1")
    assert (code, runtime) == (0, "podman")
    assert "docker: does not answer within 1 s" in stderr


@pytest.mark.parametrize(("engines", "images"), [("", "cpu"), (ALL, "")])
def test_a_cpu_machine_without_engine_or_image_runs_natively_and_says_so_in_one_line(engines, images, machine):
    code, runtime, stderr = pick(machine(engines, images=images), "auto")
    assert (code, runtime) == (0, "native")
    assert stderr.startswith("runtime: native (docker: ") and stderr.count("\n") == 1


@pytest.mark.parametrize("platform", ["amd", "nvd"])
def test_a_gpu_machine_without_any_engine_runs_natively_with_a_warning(platform, machine):
    code, runtime, stderr = pick(machine("docker", faults="docker:no-daemon"), "auto", platform)
    assert (code, runtime) == (0, "native")
    assert stderr.startswith("warning: ") and NO_DAEMON in stderr and stderr.count("\n") == 1


@pytest.mark.parametrize("platform", ["amd", "nvd"])
def test_a_gpu_machine_without_an_image_is_told_to_build_it(platform, machine):
    made = machine(images="")
    code, runtime, stderr = pick(made, "auto", platform)
    assert (code, runtime) == (2, "")
    assert stderr.startswith("error: ") and "./shell/build.sh" in stderr and stderr.count("\n") == 1
    code, runtime, stderr = pick(made, "auto", platform, "tools")
    assert (code, runtime) == (0, "native"), "packing and removing results need no image"


@pytest.mark.parametrize(
    ("wanted", "engines", "faults", "images", "said"),
    [
        ("docker", "podman", "", "cpu", "not on PATH"),
        ("docker", ALL, "docker:no-daemon", "cpu", NO_DAEMON),
        ("docker", ALL, "docker:no-start", "cpu", "starts no container"),
        ("podman", ALL, "", "", "no image localhost/tprimat:cpu, which ./shell/build.sh makes"),
        ("apptainer", ALL, "", "", "tprimat_cpu.sif, which ./shell/build.sh makes"),
        ("lxc", ALL, "", "cpu", "wanted auto, docker, podman, apptainer or native"),
    ],
)
def test_an_engine_by_name_that_does_not_work_is_bad_input(wanted, engines, faults, images, said, machine):
    code, runtime, stderr = pick(machine(engines, faults=faults, images=images), wanted)
    assert (code, runtime) == (2, "")
    assert stderr.startswith(f"error: RUNTIME={wanted}: ") and said in stderr and stderr.count("\n") == 1


@pytest.mark.parametrize("wanted", ["auto", "docker", "native"])
def test_inside_a_container_of_ours_everything_is_native_without_a_word(wanted, machine):
    assert pick(machine(), wanted, TPRIMAT_IN_CONTAINER="1") == (0, "native", "")


def test_building_needs_an_engine_that_builds_but_no_image(machine):
    made = machine(images="")
    assert pick(made, "auto", "amd", "build")[:2] == (0, "docker")
    for engine in ("docker", "podman"):
        (made.bin / engine).unlink()
    code, _, stderr = pick(made, "auto", "amd", "build")
    assert code == 2 and "install docker or podman" in stderr


def test_the_digest_of_an_image_is_the_engines_and_of_a_file_that_beside_it_while_it_is_not_older(machine):
    made = machine()
    digests = made.sourced("for e in docker podman apptainer; do image_digest $e cpu; done").stdout.split()
    of_file = hashlib.sha256(b"an image").hexdigest()
    assert digests == ["sha256:" + "5" * 64, "sha256:" + "5" * 64, f"sha256:{of_file}"]
    (made.checkout / "tprimat_cpu.sif.sha256").write_text("7" * 64 + "  tprimat_cpu.sif\n")
    assert made.sourced("image_digest apptainer cpu").stdout.split() == ["sha256:" + "7" * 64]
    beside = made.checkout / "tprimat_cpu.sif.sha256"
    os.utime(beside, (1, 1))
    assert made.sourced("image_digest apptainer cpu").stdout.split() == [f"sha256:{of_file}"]
