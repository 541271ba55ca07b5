"""A whole run in the CPU image as a user starts it: real containers, started by Podman, and a secret in secrets.env."""

from __future__ import annotations

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

import podman_engine
import pytest
from podman_engine import ANYBODY, run_script

from utils.results import store

ROAD = ("MODEL=llama", "RUNS=1", "TRAIN_ITERS=6", "WARMUP_ITERS=1", "GBS=16", "MBS=4", "SL=64")


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
