"""shell/build.sh with stand-ins for the engines: the commands that it runs, and values that they must not contain."""

from __future__ import annotations

import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.setups import LIMIT_SECONDS, Sandbox, add_program

PLATFORMS = {
    "amd": "docker.io/rocm/primus:v26.7",
    "nvd": "nvcr.io/nvidia/nemo:26.08",
    "cpu": "docker.io/library/python:3.11-slim",
}
ID = "sha256:" + "1" * 64
# Plays docker, podman and apptainer: notes its arguments, and what the secret files hold while the build lasts.
ENGINE = """#!/usr/bin/env bash
printf '%s\\0' "${0##*/}" "$@" >>"$CALLS"
printf '\\n' >>"$CALLS"
case "${0##*/} $1" in
  "docker info" | "podman info") [[ " $BROKEN " != *" ${0##*/} "* ]] || { echo "cannot connect" >&2; exit 1; } ;;
  *" image")
    if [[ $* == *RepoDigests* ]]; then
      [[ -z $BASE_IS_HERE ]] && exit 1
      echo "$BASE_IS_HERE"
    elif [[ $* == *"{{.Id}}"* ]]; then echo "$ID"
    else [[ -n $BASE_IS_HERE ]]; fi ;;
  *" build")
    for word in "$@"; do
      if [[ $word == id=settings,src=* ]]; then
        cp "${word#*src=}" "$CALLS.settings"
        ls -l "${word#*src=}" >"$CALLS.mode"
      fi
    done
    if [[ -n $SECONDS_OF_BUILD ]]; then
      sleep "$SECONDS_OF_BUILD" &
      echo $! >"$CALLS.step"
      trap 'touch "$CALLS.told"; exit 9' TERM
      touch "$CALLS.building"
      wait
    fi
    if [[ $1 == build && ${0##*/} == apptainer ]]; then : >"$3"; fi
    exit "${BUILD_EXIT:-0}" ;;
esac
"""
ENGINES = ("docker", "podman", "apptainer")


class Machine(Sandbox):
    """The files that build.sh reads, and engines that write down their calls."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "shell", "*.Dockerfile", "config*.env")
        self.calls_file = folder / "calls"
        plain = {"CALLS": str(self.calls_file), "BROKEN": "", "BASE_IS_HERE": "", "SECONDS_OF_BUILD": "", "ID": ID}
        self.environment |= plain

    def add_engines(self, *names: str) -> None:
        for name in names:
            add_program(self.bin / name, ENGINE)

    def build(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return self.run("build.sh", *arguments, **changes)

    def calls(self, engine: str, verb: str) -> list[list[str]]:
        lines = self.calls_file.read_text().splitlines() if self.calls_file.exists() else []
        words = [line.rstrip("\0").split("\0") for line in lines]
        return [line[1:] for line in words if line[:2] == [engine, verb]]

    def builds(self, **changes: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        """Build with docker, which must succeed; return what was printed and the arguments of the build."""
        self.add_engines("docker")
        done = self.build(**changes)
        assert done.returncode == 0, done.stderr
        return done, self.calls("docker", "build")[-1]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def values(command: list[str], option: str) -> list[str]:
    return [after for word, after in zip(command, command[1:], strict=False) if word == option]


@pytest.mark.parametrize("engine", ["docker", "podman"])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_platforms_image_is_built_from_its_dockerfile_and_named(machine, engine, platform):
    machine.add_engines(engine)
    done = machine.build(f"PLATFORM={platform}")
    name = f"tprimat:{platform}" if engine == "docker" else f"localhost/tprimat:{platform}"
    assert (done.returncode, done.stdout) == (0, f"{name} {ID}\n"), done.stderr
    (build,) = machine.calls(engine, "build")
    assert machine.calls(engine, "pull") == [["pull", PLATFORMS[platform]]]
    assert (values(build, "--tag"), values(build, "--file")) == ([name], [f"{platform}.Dockerfile"])
    assert f"BASE_IMAGE={PLATFORMS[platform]}" in values(build, "--build-arg") and build[-1] == "."


@pytest.mark.parametrize(
    ("described", "digest"),
    [
        (f"registry.local/base@sha256:{'a' * 64} sha256:{'b' * 64}", f"sha256:{'a' * 64}"),
        (f"sha256:{'b' * 64}", f"sha256:{'b' * 64}"),  # no registry has seen it
    ],
)
def test_a_base_of_the_users_own_is_taken_with_its_digest_and_not_pulled(machine, described, digest):
    own = {"BASE_IMAGE": "registry.local/base:1", "BASE_IS_HERE": described}
    _, build = machine.builds(**own, BUILD_ARGS="--no-cache  --progress plain")
    assert not machine.calls("docker", "pull")
    assert {"BASE_IMAGE=registry.local/base:1", f"BASE_DIGEST={digest}"} < set(values(build, "--build-arg"))
    assert build[-4:] == ["--no-cache", "--progress", "plain", "."]


def test_pip_settings_are_lent_in_files_and_never_in_arguments(machine, tmp_path):
    machine.add_engines("podman")
    mirror, wheels, certificates = tmp_path / "mirror", tmp_path / "wheels", tmp_path / "ca.pem"
    conf = machine.home / ".config" / "pip" / "pip.conf"
    for folder in (conf.parent, mirror / "simple", wheels):
        folder.mkdir(parents=True)
    certificates.write_text("certificate")
    indexes = f"file://{mirror}/simple\n    https://more.local/simple"
    conf.write_text(f"[global]\nextra-index-url = {indexes}\ncert = {certificates}\n")
    lent = {"PIP_INDEX_URL": "https://me:pass word@pypi.local/simple", "PIP_FIND_LINKS": str(wheels)}
    lent["https_proxy"] = "http://proxy.local:3128"
    done = machine.build(**lent, OTHER="other")
    assert done.returncode == 0, done.stderr
    settings = shlex.split(Path(f"{machine.calls_file}.settings").read_text(encoding="utf8"))
    exports = dict(word.split("=", 1) for word in settings if word != "export")
    assert exports.items() >= (lent | {"PIP_CERT": "/run/tprimat/cert.pem"}).items()
    assert exports.keys() - lent.keys() == {"PIP_CERT", "XDG_CONFIG_DIRS", "XDG_CONFIG_HOME"}
    (build,) = machine.calls("podman", "build")
    assert "pass word" not in " ".join(build) and "pass" not in done.stdout + done.stderr
    secrets = dict(value.removeprefix("id=").split(",src=") for value in values(build, "--secret"))
    assert (secrets["pip_user"], secrets["pip_cert"]) == (str(conf), str(certificates))
    assert values(build, "--volume") == [f"{folder}:{folder}:ro" for folder in sorted((mirror, wheels))]
    assert not Path(secrets["settings"]).exists(), "it was lent for the build only"
    assert Path(f"{machine.calls_file}.mode").read_text().startswith("-rw-------")


@pytest.mark.parametrize(
    ("told", "taken"), [({}, "{home}/.pip/pip.conf"), ({"PIP_CONFIG_FILE": "{home}/my.conf"}, "{home}/my.conf")]
)
def test_the_config_file_that_pip_is_told_replaces_that_of_the_user(machine, told, taken):
    (machine.home / ".pip").mkdir()
    for name in (".pip/pip.conf", "my.conf"):
        (machine.home / name).touch()
    _, build = machine.builds(**{name: value.format(home=machine.home) for name, value in told.items()})
    assert f"id=pip_user,src={taken.format(home=machine.home)}" in values(build, "--secret")


def test_docker_says_that_it_cannot_mount_a_folder_of_packages(machine, tmp_path):
    done, build = machine.builds(PIP_FIND_LINKS=str(tmp_path))
    assert f"warning: build: pip takes packages from {tmp_path}, which docker cannot mount" in done.stderr
    assert "--volume" not in build


@pytest.mark.parametrize(
    ("engines", "settings", "wanted"),
    [
        ((), {}, "error: RUNTIME=auto: no engine that builds images (docker: not on PATH; podman: not on PATH)"),
        (("docker",), {"BROKEN": "docker"}, "docker: cannot connect"),
        (("apptainer",), {"RUNTIME": "apptainer"}, "no engine that builds images"),
        (("docker",), {"RUNTIME": "apptainer"}, "error: build: RUNTIME=apptainer: apptainer is not on PATH"),
        (("docker",), {"RUNTIME": "native"}, "error: build: RUNTIME=native uses no image"),
        (("docker",), {"RUNTIME": "podman"}, "error: RUNTIME=podman: podman: not on PATH"),
        (("docker",), {"RUNTIME": "lxc"}, "error: RUNTIME=lxc: wanted auto, docker, podman, apptainer or native"),
        (("docker",), {"PLATFORM": "tpu"}, "error: platform: got PLATFORM=tpu"),
    ],
)
def test_without_an_engine_that_works_it_refuses_in_one_line(machine, engines, settings, wanted):
    machine.add_engines(*engines)
    done = machine.build(**settings)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert wanted in done.stderr and not machine.calls("docker", "build")


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_apptainer_gets_its_file_from_the_same_image(machine, engine, tmp_path):
    machine.add_engines(engine, "apptainer")
    folder = tmp_path / "image files"
    folder.mkdir()
    done = machine.build("RUNTIME=apptainer", PLATFORM="amd", TPRIMAT_SIF_DIR=str(folder))
    archive = f"{folder}/.tprimat_amd.tar"
    name, options = (
        ("tprimat:amd", []) if engine == "docker" else ("localhost/tprimat:amd", ["--format", "docker-archive"])
    )
    assert machine.calls(engine, "save") == [["save", *options, "--output", archive, name]]
    made = ["build", "--force", f"{folder}/tprimat_amd.sif.new", f"docker-archive:{archive}"]
    assert machine.calls("apptainer", "build") == [made]
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # sha256 of no byte, FIPS 180-4
    assert sorted(path.name for path in folder.iterdir()) == ["tprimat_amd.sif", "tprimat_amd.sif.sha256"]
    assert (folder / "tprimat_amd.sif.sha256").read_text().split()[0] == empty
    assert (done.returncode, done.stdout) == (0, f"{folder}/tprimat_amd.sif sha256:{empty}\n"), done.stderr


@pytest.mark.parametrize("name", ["tprimat_amd.sif", "tprimat_amd.sif.sha256"])
def test_a_file_of_a_user_is_not_replaced_by_the_one_for_apptainer_and_one_of_ours_is(machine, name, tmp_path):
    machine.add_engines("docker", "apptainer")
    of_user = tmp_path / "sif" / name
    of_user.parent.mkdir()
    of_user.write_text("of a user")
    asked = {"RUNTIME": "apptainer", "PLATFORM": "amd", "TPRIMAT_SIF_DIR": str(of_user.parent)}
    done = machine.build(**asked)
    assert done.returncode == 2 and not machine.calls("docker", "build")
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"error: build: {of_user}: exists, and this suite has not written it")
    assert [path.read_text() for path in of_user.parent.iterdir()] == ["of a user"]
    of_user.unlink()
    assert [machine.build(**asked).returncode for _ in range(2)] == [0, 0]


@pytest.mark.parametrize(
    ("runtime", "has_engines"), [*((name, True) for name in ENGINES), ("docker", False), ("podman", False)]
)
def test_a_dry_run_prints_what_would_be_started_and_needs_and_starts_nothing(machine, runtime, has_engines):
    machine.add_engines(*(ENGINES if has_engines else ()))
    done = machine.build("--dry-run", f"RUNTIME={runtime}", "PLATFORM=nvd")
    assert done.returncode == 0, done.stderr
    assert ("note: cannot be started here: " in done.stderr) != has_engines
    engine = "docker" if runtime == "apptainer" else runtime
    expected = [[engine, "pull"], [engine, "build"]]
    if runtime == "apptainer":
        expected += [[engine, "save"], ["apptainer", "build"], ["mv", "-f"]]
    assert [shlex.split(line)[:2] for line in done.stdout.splitlines()] == expected
    assert not [call for name in ENGINES for verb in ("pull", "build", "save") for call in machine.calls(name, verb)]


def test_a_failed_build_fails_and_prints_no_image(machine):
    machine.add_engines("docker")
    done = machine.build(BUILD_EXIT="125")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("error: build: 'docker build' failed with exit code 125")


def test_a_signal_reaches_the_engine_and_nothing_of_the_settings_is_left(machine, tmp_path):
    machine.add_engines("docker")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = machine.start("build.sh", SECONDS_OF_BUILD="60", TMPDIR=str(temporary))
    deadline = time.monotonic() + LIMIT_SECONDS
    while not Path(f"{machine.calls_file}.building").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 143 and Path(f"{machine.calls_file}.told").exists()
    step = Path("/proc", Path(f"{machine.calls_file}.step").read_text().strip(), "cmdline")
    while step.exists() and step.read_bytes():  # one that nobody has waited for yet has no arguments
        assert time.monotonic() < deadline, "what the engine had started lives on"
        time.sleep(0.02)
    assert not list(temporary.iterdir())
