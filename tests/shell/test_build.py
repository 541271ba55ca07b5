"""shell/build.sh with stand-ins for the engines: the commands that it runs, and values that they must not contain."""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
TOOLS = (
    "bash",
    "env",
    "dirname",
    "readlink",
    "cat",
    "sed",
    "mktemp",
    "rm",
    "mv",
    "tr",
    "sort",
    "git",
    "timeout",
    "sha256sum",
    "ls",
    "cp",
    "sleep",
    "touch",
    "kill",
    "realpath",
)


class Machine:
    """A copy of the files that build.sh reads, below a folder with a space in its name, and a PATH of stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a checkout"
        self.home = folder / "home"
        self.programs = folder / "programs"
        self.calls_file = folder / "calls"
        shutil.copytree(ROOT / "shell", self.root / "shell", ignore=shutil.ignore_patterns("__pycache__"))
        for pattern in ("*.Dockerfile", "config*.env"):
            for path in ROOT.glob(pattern):
                shutil.copy(path, self.root)
        self.home.mkdir()
        self.programs.mkdir()
        for name in TOOLS:
            (self.programs / name).symlink_to(str(shutil.which(name)))

    def add_engines(self, *names: str) -> None:
        for name in names:
            (self.programs / name).write_text(ENGINE, encoding="utf8")
            (self.programs / name).chmod(0o755)

    def environment(self, **changes: str) -> dict[str, str]:
        plain = {"PATH": str(self.programs), "HOME": str(self.home), "CALLS": str(self.calls_file), "PLATFORM": "cpu"}
        return {**plain, "BROKEN": "", "BASE_IS_HERE": "", "SECONDS_OF_BUILD": "", "ID": ID, **changes}

    def run(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.root / "shell" / "build.sh"), *arguments]
        return subprocess.run(command, env=self.environment(**changes), capture_output=True, text=True, timeout=60)

    def calls(self, engine: str, verb: str) -> list[list[str]]:
        if not self.calls_file.exists():
            return []
        lines = [line.rstrip("\0").split("\0") for line in self.calls_file.read_text().splitlines()]
        return [line[1:] for line in lines if line[:2] == [engine, verb]]

    def settings(self) -> str:
        return Path(f"{self.calls_file}.settings").read_text(encoding="utf8")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def values(command: list[str], option: str) -> list[str]:
    return [after for word, after in zip(command, command[1:], strict=False) if word == option]


@pytest.mark.parametrize("engine", ["docker", "podman"])
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_platforms_image_is_built_from_its_dockerfile_and_named(machine, engine, platform):
    machine.add_engines(engine)
    done = machine.run(f"PLATFORM={platform}")
    assert done.returncode == 0, done.stderr
    name = f"tprimat:{platform}" if engine == "docker" else f"localhost/tprimat:{platform}"
    assert done.stdout == f"{name} {ID}\n"
    ((_, base),) = machine.calls(engine, "pull")
    (build,) = machine.calls(engine, "build")
    assert base == PLATFORMS[platform]
    assert values(build, "--tag") == [name]
    assert values(build, "--file") == [f"{platform}.Dockerfile"]
    assert f"BASE_IMAGE={base}" in values(build, "--build-arg")
    assert build[-1] == "."


def test_a_base_of_the_users_own_is_taken_with_its_digest_and_not_pulled(machine):
    machine.add_engines("docker")
    here = f"registry.local/base@sha256:{'a' * 64} sha256:{'b' * 64}"
    done = machine.run(BASE_IMAGE="registry.local/base:1", BASE_IS_HERE=here, BUILD_ARGS="--no-cache  --progress plain")
    assert done.returncode == 0, done.stderr
    assert not machine.calls("docker", "pull")
    (build,) = machine.calls("docker", "build")
    assert {"BASE_IMAGE=registry.local/base:1", f"BASE_DIGEST=sha256:{'a' * 64}"} < set(values(build, "--build-arg"))
    assert build[-4:] == ["--no-cache", "--progress", "plain", "."]


def test_a_base_that_no_registry_has_seen_is_named_by_its_id(machine):
    machine.add_engines("docker")
    assert machine.run(BASE_IS_HERE=f"sha256:{'b' * 64}").returncode == 0
    (build,) = machine.calls("docker", "build")
    assert f"BASE_DIGEST=sha256:{'b' * 64}" in values(build, "--build-arg")


def test_pip_settings_are_lent_in_files_and_never_in_arguments(machine, tmp_path):
    machine.add_engines("podman")
    (machine.home / ".config" / "pip").mkdir(parents=True)
    conf = machine.home / ".config" / "pip" / "pip.conf"
    pages = tmp_path / "mirror" / "simple"
    wheels = tmp_path / "wheels"
    certificates = tmp_path / "ca.pem"
    for folder in (pages, wheels):
        folder.mkdir(parents=True)
    certificates.write_text("certificate")
    conf.write_text(
        f"[global]\nextra-index-url = file://{pages}\n    https://more.local/simple\ncert = {certificates}\n"
    )
    url = "https://me:pass word@pypi.local/simple"
    lent = {
        "PIP_INDEX_URL": url,
        "PIP_FIND_LINKS": str(wheels),
        "https_proxy": "http://proxy.local:3128",
        "OTHER": "other",
    }
    done = machine.run(**lent)
    assert done.returncode == 0, done.stderr
    exports = dict(word.split("=", 1) for word in shlex.split(machine.settings()) if word != "export")
    assert exports.pop("PIP_INDEX_URL") == url
    assert exports.pop("https_proxy") == "http://proxy.local:3128"
    assert exports.pop("PIP_FIND_LINKS") == str(wheels)
    assert exports.pop("PIP_CERT") == "/run/tprimat/cert.pem"
    assert set(exports) == {"XDG_CONFIG_DIRS", "XDG_CONFIG_HOME"}
    (build,) = machine.calls("podman", "build")
    assert "pass word" not in " ".join(build) and "pass" not in done.stdout + done.stderr
    secrets = dict(value.removeprefix("id=").split(",src=") for value in values(build, "--secret"))
    assert secrets["pip_user"] == str(conf)
    assert secrets["pip_cert"] == str(certificates)
    assert values(build, "--volume") == [f"{folder}:{folder}:ro" for folder in sorted((pages.parent, wheels))]
    assert not Path(secrets["settings"]).exists(), "it was lent for the build only"
    assert Path(f"{machine.calls_file}.mode").read_text().startswith("-rw-------")


def test_the_config_file_that_pip_is_told_replaces_that_of_the_user(machine, tmp_path):
    machine.add_engines("docker")
    (machine.home / ".pip").mkdir()
    (machine.home / ".pip" / "pip.conf").write_text("[global]\n")
    told = tmp_path / "told.conf"
    told.write_text("[global]\n")
    assert machine.run().returncode == 0
    assert machine.run(PIP_CONFIG_FILE=str(told)).returncode == 0
    assert machine.run(PIP_CONFIG_FILE="/dev/null").returncode == 0
    first, second, third = (" ".join(build) for build in machine.calls("docker", "build"))
    assert f"id=pip_user,src={machine.home}/.pip/pip.conf" in first
    assert f"id=pip_user,src={told}" in second and ".pip" not in second
    assert "id=pip_" not in third.replace("id=pip_cert", "")


def test_docker_says_that_it_cannot_mount_a_folder_of_packages(machine, tmp_path):
    machine.add_engines("docker")
    done = machine.run(PIP_FIND_LINKS=str(tmp_path))
    assert done.returncode == 0
    assert f"warning: build: pip takes packages from {tmp_path}, which docker cannot mount" in done.stderr
    assert "--volume" not in machine.calls("docker", "build")[0]


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
    done = machine.run(**settings)
    assert done.returncode == 2
    assert wanted in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not machine.calls("docker", "build") and done.stdout == ""


def test_a_dry_run_needs_no_engine(machine):
    done = machine.run("--dry-run", "RUNTIME=podman")
    assert done.returncode == 0, done.stderr
    assert "note: cannot be started here: RUNTIME=podman: podman: not on PATH" in done.stderr
    assert [shlex.split(line)[:2] for line in done.stdout.splitlines()] == [["podman", "pull"], ["podman", "build"]]


def test_an_unknown_argument_is_refused(machine):
    done = machine.run("--fast")
    assert (done.returncode, done.stderr) == (2, "error: build: got argument '--fast', wanted --dry-run or KEY=VALUE\n")


def test_a_docker_without_its_daemon_leaves_the_build_to_podman(machine):
    machine.add_engines("docker", "podman")
    done = machine.run(BROKEN="docker")
    assert done.returncode == 0, done.stderr
    assert "runtime: podman, the first that works (docker: cannot connect)" in done.stderr
    assert machine.calls("podman", "build") and not machine.calls("docker", "build")


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_apptainer_gets_its_file_from_the_same_image(machine, engine, tmp_path):
    machine.add_engines(engine, "apptainer")
    folder = tmp_path / "image files"
    folder.mkdir()
    done = machine.run("RUNTIME=apptainer", PLATFORM="amd", TPRIMAT_SIF_DIR=str(folder))
    assert done.returncode == 0, done.stderr
    archive = f"{folder}/.tprimat_amd.tar"
    (save,) = machine.calls(engine, "save")
    name = "tprimat:amd" if engine == "docker" else "localhost/tprimat:amd"
    assert save == ["save", *(["--format", "docker-archive"] if engine == "podman" else []), "--output", archive, name]
    (build,) = machine.calls("apptainer", "build")
    assert build == ["build", "--force", f"{folder}/tprimat_amd.sif.new", f"docker-archive:{archive}"]
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # sha256 of no byte, FIPS 180-4
    assert sorted(path.name for path in folder.iterdir()) == ["tprimat_amd.sif", "tprimat_amd.sif.sha256"]
    assert (folder / "tprimat_amd.sif.sha256").read_text().split()[0] == empty
    assert done.stdout == f"{folder}/tprimat_amd.sif sha256:{empty}\n"


@pytest.mark.parametrize("name", ["tprimat_amd.sif", "tprimat_amd.sif.sha256"])
def test_a_file_of_a_user_is_not_replaced_by_the_one_for_apptainer(machine, name, tmp_path):
    machine.add_engines("docker", "apptainer")
    (tmp_path / "sif").mkdir()
    (tmp_path / "sif" / name).write_text("of a user")
    done = machine.run("RUNTIME=apptainer", PLATFORM="amd", TPRIMAT_SIF_DIR=str(tmp_path / "sif"))
    assert done.returncode == 2 and not machine.calls("docker", "build")
    line = done.stderr.splitlines()[-1]
    assert line.startswith(f"error: build: {tmp_path}/sif/{name}: exists, and this suite has not written it")
    assert [path.read_text() for path in (tmp_path / "sif").iterdir()] == ["of a user"]
    (tmp_path / "sif" / name).unlink()
    for _ in range(2):
        assert machine.run("RUNTIME=apptainer", PLATFORM="amd", TPRIMAT_SIF_DIR=str(tmp_path / "sif")).returncode == 0


@pytest.mark.parametrize("runtime", ["docker", "podman", "apptainer"])
def test_a_dry_run_prints_what_would_be_started_and_starts_nothing(machine, runtime):
    machine.add_engines("docker", "podman", "apptainer")
    done = machine.run("--dry-run", f"RUNTIME={runtime}", "PLATFORM=nvd")
    assert done.returncode == 0, done.stderr
    commands = [shlex.split(line)[:2] for line in done.stdout.splitlines()]
    engine = "docker" if runtime == "apptainer" else runtime
    expected = [[engine, "pull"], [engine, "build"]]
    if runtime == "apptainer":
        expected += [[engine, "save"], ["apptainer", "build"], ["mv", "-f"]]
    assert commands == expected
    for name in ("docker", "podman", "apptainer"):
        assert not [call for verb in ("pull", "build", "save") for call in machine.calls(name, verb)]


def test_a_failed_build_fails_and_prints_no_image(machine):
    machine.add_engines("docker")
    done = machine.run(BUILD_EXIT="125")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("error: build: 'docker build' failed with exit code 125")


def test_a_signal_reaches_the_engine_and_nothing_of_the_settings_is_left(machine, tmp_path):
    machine.add_engines("docker")
    environment = machine.environment(SECONDS_OF_BUILD="60", TMPDIR=str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    process = subprocess.Popen([machine.root / "shell" / "build.sh"], env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not Path(f"{machine.calls_file}.building").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    assert Path(f"{machine.calls_file}.told").exists()
    step = Path("/proc", Path(f"{machine.calls_file}.step").read_text().strip(), "cmdline")
    while step.exists() and step.read_bytes():  # one that nobody has waited for yet has no arguments
        assert time.monotonic() < deadline, "what the engine had started lives on"
        time.sleep(0.02)
    assert not list((tmp_path / "temporary").iterdir())


def test_help_is_the_header_of_the_script(machine):
    done = machine.run("--help")
    assert done.returncode == 0
    assert "Usage:" in done.stdout and "--dry-run" in done.stdout and not done.stderr
