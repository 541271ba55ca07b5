"""The three images, built by build.sh, and a whole run in the CPU image: real containers, started by Podman.

`amd` and `nvd` are built on stand-ins (base_images.py): their instructions run, without a GPU.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import base_images
import podman_engine
import pytest
from packaging.requirements import Requirement

from utils.results import store

ROOT = Path(__file__).parents[2]
ANYBODY = "12345:23456"
IN_IMAGE = "/workspace/code"
ROAD = ("MODEL=llama", "RUNS=1", "TRAIN_ITERS=6", "WARMUP_ITERS=1", "GBS=16", "MBS=4", "SL=64")
each_platform = pytest.mark.parametrize("platform", base_images.PLATFORMS)
LIST_PACKAGES = """
import importlib.metadata as m, json, re
print(json.dumps({re.sub("[-_.]+", "-", d.name).lower(): d.version for d in m.distributions()}))
"""
ASK_TORCH = "import json, numpy, torch; print(json.dumps([torch.__file__, numpy.__file__, torch.version.{claim}]))"
ASK_ANYBODY = """
import getpass, os, pathlib, tempfile
import megatron.core, transformers, accelerate, matplotlib.pyplot
from torch._inductor.runtime.runtime_utils import cache_dir
pathlib.Path.home().joinpath("mine").write_text("x")
print(os.getuid(), getpass.getuser(), cache_dir().startswith(tempfile.gettempdir()))
"""


def in_image(podman, image: str, *command: str, options: tuple[str, ...] = ()) -> str:
    return podman.ask("run", "--rm", "--network", "none", *options, image, *command)


def python(podman, image: str, program: str, options: tuple[str, ...] = ()) -> str:
    return in_image(podman, image, "/opt/tprimat/venv/bin/python", "-c", program, options=options)


def run_script(podman, checkout: Path, name: str, *arguments: str, timeout: float = 900, **changes: str):
    """Run one of the user's commands with the token only in secrets.env."""
    command = [checkout / "shell" / name, "PLATFORM=cpu", *arguments]
    return podman.run(*command, timeout=timeout, **{"RUNTIME": "podman", "HF_TOKEN_PATH": "", **changes})


@each_platform
def test_build_prints_the_id_of_the_image_and_labels_say_where_it_comes_from(podman, checkout, built, platform):
    image = built(platform)
    (described,) = json.loads(podman.ask("image", "inspect", image.image))
    assert image.stdout == f"localhost/tprimat:{platform} sha256:{described['Id']}\n"
    (base,) = json.loads(podman.ask("image", "inspect", base_images.base_name(platform)))
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True
    ).stdout
    labels = described["Labels"]
    prefix = "org.opencontainers.image"
    assert re.sub("-dirty$", "", labels[f"{prefix}.revision"]) == commit.strip()
    assert labels[f"{prefix}.base.name"] == base_images.base_name(platform)
    assert labels[f"{prefix}.base.digest"] in (base["Digest"], *(d.split("@")[1] for d in base["RepoDigests"]))


@each_platform
def test_every_pinned_package_is_in_the_image_at_its_version(podman, built, platform):
    installed = json.loads(python(podman, built(platform).image, LIST_PACKAGES))
    files = [ROOT / f"{name}-requirements.txt" for name in (platform, "energy")]
    lines = [line for file in files for line in file.read_text().splitlines()]
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    pins = [pin for pin in pins if pin.marker is None or pin.marker.evaluate({"python_version": "3.11"})]
    assert len(pins) > 15
    for pin in pins:
        version = installed[re.sub("[-_.]+", "-", pin.name).lower()]
        assert pin.specifier.contains(version, prereleases=True), f"{pin}: the image has {version}"


@pytest.mark.parametrize("platform", base_images.CLAIMS)
def test_pytorch_and_numpy_of_the_base_stay(podman, built, platform):
    claim, version = base_images.CLAIMS[platform]
    torch, numpy, found = json.loads(python(podman, built(platform).image, ASK_TORCH.format(claim=claim)))
    assert torch.startswith(f"{base_images.PACKAGES}/torch/")
    assert numpy.startswith(f"{base_images.PACKAGES}/numpy/")
    assert found == version
    inside = in_image(podman, built(platform).image, "ls", "/opt/tprimat/venv/lib/python3.11/site-packages").split()
    assert "megatron" in inside
    assert not {"torch", "numpy"} & set(inside), "a second one was installed"


def test_the_environment_finds_the_engine_of_the_base_before_that_of_the_image_below(podman, built):
    """NeMo's images keep TransformerEngine in a virtual environment that a second one does not see by itself."""
    found = python(podman, built("nvd").image, f"import {base_images.ENGINE} as engine; print(engine.__file__)")
    assert found.strip() == f"{base_images.BASE_PACKAGES}/{base_images.ENGINE}/__init__.py"


def test_amd_has_the_tools_of_rocm_on_its_path_and_says_what_it_could_not_get(podman, built):
    image = built("amd")
    assert in_image(podman, image.image, "printenv", "PATH").startswith("/opt/rocm/bin:")
    assert "rocprofiler-sdk could not be installed" in image.stderr
    groups = in_image(podman, image.image, "getent", "group", "video", "render").splitlines()
    assert [group.split(":")[0] for group in groups] == ["video", "render"], "the run scripts name them"


@each_platform
def test_anybody_may_use_the_image(podman, built, platform):
    said = python(podman, built(platform).image, ASK_ANYBODY, options=("--user", ANYBODY))
    assert said.splitlines()[-1] == "12345 tprimat True"


@each_platform
def test_data_sets_of_the_hub_can_be_read(podman, built, platform):
    assert python(podman, built(platform).image, "import datasets; print('read')").endswith("read")


@each_platform
def test_the_image_starts_our_commands_without_words_of_the_base(podman, built, platform):
    assert in_image(podman, built(platform).image, "pwd") == IN_IMAGE


def test_the_image_holds_what_git_tracks_and_nothing_else_of_the_checkout(podman, checkout, built):
    listed = subprocess.run(["git", "ls-files"], cwd=checkout, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    tracked = {name for name in listed if name and not name.startswith((".ci/", "output/")) and name != ".dockerignore"}
    held = in_image(podman, built("cpu").image, "find", IN_IMAGE, "!", "-type", "d").splitlines()
    assert {name.removeprefix(f"{IN_IMAGE}/") for name in held} == tracked


def test_an_image_older_than_the_checkout_is_not_used(podman, checkout, built, tmp_path):
    changed = tmp_path / "cpu-requirements.txt"
    changed.write_text((checkout / changed.name).read_text() + "xxhash==1.0.0\n", encoding="utf8")
    mount = f"type=bind,source={changed},target={IN_IMAGE}/{changed.name},ro"
    command = ["podman", "run", "--rm", "--env", "PLATFORM=cpu", "--mount", mount, built("cpu").image]
    done = podman.run(*command, "./shell/train.sh", "--dry-run")
    assert done.returncode == 1
    assert done.stderr.startswith("error: environment: the image is older than cpu-requirements.txt")
    assert "./shell/build.sh" in done.stderr


@contextmanager
def watched_processes() -> Iterator[set[bytes]]:
    """Collect the arguments of all processes of the machine, about thirty times a second, during the block."""
    seen: set[bytes] = set()
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.03):
            for place in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.add(place.read_bytes())
                except OSError:  # it has ended meanwhile
                    continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        is_over.set()
        watcher.join()


@pytest.fixture(scope="module")
def road(podman, checkout, built, tmp_path_factory):
    """Run data, training and archive in containers; return the output folder, the output, and all arguments seen."""
    built("cpu")
    folder = tmp_path_factory.mktemp("road")
    folders = (f"OUTPUT_DIR={folder}/output", f"DATA_DIR={folder}/data")
    printed = ""
    with watched_processes() as arguments:
        for name, extra in (("run_data.sh", ROAD), ("run_train.sh", ROAD), ("run_wrap.sh", ())):
            done = run_script(podman, checkout, name, *folders, *extra)
            assert done.returncode == 0, f"{name}: {done.stdout[-2000:]}{done.stderr[-5000:]}"
            printed += done.stdout + done.stderr
    return folder / "output", printed, arguments


def test_the_whole_road_in_containers_gives_valid_results_that_name_the_image(podman, built, road):
    output, _, _ = road
    paths = sorted(store.find([output]))
    assert [path.name for path in paths] == ["train_cpu_hf_llama_run1.json", "train_cpu_mega_llama_run1.json"]
    image = built("cpu")
    for path in paths:
        result = store.read(path)
        assert result["status"] == "ok"
        provenance = result["provenance"]
        assert f"{provenance['image']} {provenance['image_digest']}\n" == image.stdout
    assert zipfile.is_zipfile(output / "output.zip")
    assert podman.containers() == []


def test_the_token_reaches_the_container(podman, checkout, built, token):
    built("cpu")
    done = run_script(podman, checkout, "entry.sh", "--", "bash", "-c", 'printf %s "$HF_TOKEN" | sha256sum')
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == sha256(token.encode()).hexdigest()


@each_platform
def test_the_token_and_lent_settings_are_in_no_image(podman, built, token, platform, tmp_path):
    """The archive of an image contains its layers, history and configuration."""
    image = built(platform).image
    assert token not in podman.ask("image", "inspect", image) + podman.ask("history", "--no-trunc", image)
    archive = tmp_path / "image.tar"
    podman.ask("save", "--format", "docker-archive", "--output", archive, image)
    try:
        assert archive.stat().st_size > 5e8
        for secret in (token, f"lent-{platform}"):
            found = subprocess.run(["grep", "-q", "-a", "-F", "-e", secret, archive], timeout=600)
            assert found.returncode == 1, f"{secret[:5]}... is in the image"
    finally:
        archive.unlink()


def test_the_token_is_nowhere_after_the_road(podman, token, road):
    output, printed, arguments = road
    secret = token.encode()
    assert any(b"train_mega" in line for line in arguments), "the trainers were seen"
    assert any(b"run\0--rm" in line for line in arguments), "the engine was seen"
    assert not [line for line in arguments if secret in line]
    assert token not in printed
    files = [path for path in output.parent.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert not [path for path in files if secret in path.read_bytes()]
    with zipfile.ZipFile(output / "output.zip") as archive:
        assert len(archive.namelist()) > 3
        assert not [name for name in archive.namelist() if secret in archive.read(name)]
    left = subprocess.run(
        ["grep", "-r", "-l", "-a", "-F", "-e", token, podman.folder / "run", podman.folder / "engine"]
    )
    assert left.returncode == 1, "the engine keeps it"


def test_results_are_the_callers(podman, checkout, built, tmp_path):
    """As docker starts it for an ordinary user: with the ids and a folder of that user."""
    built("cpu")
    folders = [tmp_path / "output", tmp_path / "data", tmp_path / "cache"]
    for folder in folders:
        folder.mkdir()
        os.chown(folder, 12345, 23456)
    settings = (f"OUTPUT_DIR={folders[0]}", f"DATA_DIR={folders[1]}", "FRAMEWORK=mega", *ROAD)
    extra = {"CONTAINER_ARGS": f"--user {ANYBODY}", "HF_HOME": str(folders[2])}
    done = run_script(podman, checkout, "run_train.sh", *settings, **extra)
    assert done.returncode == 0, done.stderr[-5000:]
    written = [path for folder in folders for path in folder.rglob("*")]
    assert len(written) > 10
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in written} == {(12345, 23456)}


def test_an_ordinary_user_without_a_daemon_gets_files_of_his_own(users_podman, checkout, road):
    """With the user's own Podman, which runs without root."""
    folder = users_podman.folder
    shutil.copytree(checkout, folder / "code", ignore=shutil.ignore_patterns(".git", "secrets.env"))
    output = folder / "home" / "output"
    shutil.copytree(road[0], output)
    (output / "output.zip").unlink()
    for path in (output, *output.rglob("*")):
        os.chown(path, podman_engine.USER, podman_engine.USER)
    done = run_script(users_podman, folder / "code", "run_wrap.sh", f"OUTPUT_DIR={output}")
    assert done.returncode == 0, done.stderr
    made = (output / "output.zip").stat()
    assert (made.st_uid, made.st_gid) == (podman_engine.USER, podman_engine.USER)
    assert users_podman.containers() == []


def test_the_exit_code_is_the_jobs(podman, checkout, built, tmp_path):
    built("cpu")
    folders = (f"OUTPUT_DIR={tmp_path / 'output'}", f"DATA_DIR={tmp_path / 'data'}")
    refused = run_script(podman, checkout, "run_train.sh", *folders, "GBS=7")
    assert refused.returncode == 2, refused.stderr
    assert "GBS" in refused.stderr
    assert run_script(podman, checkout, "entry.sh", *folders, "--", "bash", "-c", "exit 41").returncode == 41


def living(marker: str) -> list[str]:
    """Return the arguments of all other processes that contain the marker."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if marker in line and place.parent.name != str(os.getpid()):
            found.append(line)
    return found


@pytest.mark.parametrize("name", ["TERM", "INT"])
def test_a_signal_in_the_middle_of_training_leaves_no_container_and_no_process(
    podman, checkout, built, token, tmp_path, name
):
    built("cpu")
    output = tmp_path / "output"
    settings = [f"OUTPUT_DIR={output}", f"DATA_DIR={tmp_path / 'data'}", "FRAMEWORK=mega", *ROAD, "TRAIN_ITERS=3000"]
    command = podman.wrapped(checkout / "shell" / "run_train.sh", "PLATFORM=cpu", *settings)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**podman.environment, "RUNTIME": "podman"}, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + 300
            while not re.search(r"  step \d+/3000", printed := (tmp_path / "log").read_text(errors="replace")):
                assert process.poll() is None and time.monotonic() < deadline, printed[-5000:]
                time.sleep(0.2)
            (container,) = podman.containers()
            assert token not in podman.ask("container", "inspect", container), "a running container shows no secret"
            assert living(str(output))
            process.send_signal(getattr(signal, f"SIG{name}"))
            code = process.wait(180)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
                podman.run("podman", "rm", "--all", "--force")
    assert code == 128 + getattr(signal, f"SIG{name}"), (tmp_path / "log").read_text()[-5000:]
    assert podman.containers() == []
    assert living(str(output)) == []
