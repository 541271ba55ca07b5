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

import podman_engine
import psutil
import pytest
from podman_engine import run_script

from tests.support.launching import results

ROAD = ("MODEL=llama", "RUNS=1", "TRAIN_ITERS=6", "WARMUP_ITERS=1", "GBS=16", "MBS=4", "SL=64")


pytestmark = pytest.mark.full("real containers of Podman: a whole run in the CPU image, about 300 s")


def command_lines() -> set[str]:
    """Return the arguments of all other processes of the machine."""
    others = (process for process in psutil.process_iter(["cmdline"]) if process.pid != os.getpid())
    return {"\0".join(process.info["cmdline"] or ()) for process in others}


@contextmanager
def watched_processes() -> Iterator[set[str]]:
    """Collect the arguments of all processes of the machine, about thirty times a second, during the block."""
    seen, is_over = set(), threading.Event()

    def watch() -> None:
        while not is_over.wait(0.03):
            seen.update(command_lines())

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
    found = results(output)
    assert [path.name for path in found] == ["train_cpu_hf_llama_run1.json", "train_cpu_mega_llama_run1.json"]
    for result in found.values():
        image = "{image} {image_digest}\n".format_map(result["provenance"])
        assert (result["status"], image) == ("ok", built("cpu").stdout)
    assert zipfile.is_zipfile(output / "output.zip")
    assert podman.containers() == []


def test_the_token_reaches_the_container_and_the_exit_code_is_the_jobs(podman, checkout, built, token):
    built("cpu")
    done = run_script(podman, checkout, "entry.sh", "--", "bash", "-c", 'printf %s "$HF_TOKEN" | sha256sum; exit 41')
    assert done.returncode == 41 and done.stdout.split()[0] == sha256(token.encode()).hexdigest(), done.stderr


def test_the_token_is_nowhere_after_the_road(podman, token, road):
    output, printed, arguments = road
    assert any("train_mega" in line for line in arguments), "the trainers were seen"
    assert any("run\0--rm" in line for line in arguments), "the engine was seen"
    assert not [line for line in (*arguments, printed) if token in line]
    contents = {path: path.read_bytes() for path in output.parent.rglob("*") if path.is_file()}
    with zipfile.ZipFile(output / "output.zip") as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
    assert len(contents) > 10 and len(packed) > 3
    assert not [where for where, content in (contents | packed).items() if token.encode() in content]
    kept = subprocess.run(["grep", "-rlaF", "-e", token, podman.folder / "run", podman.folder / "engine"])
    assert kept.returncode == 1, "the engine keeps it"


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


def test_a_signal_in_the_middle_of_training_leaves_no_container_and_no_process(
    podman, checkout, built, token, tmp_path
):
    """SIGTERM; of the others see tests/shell/test_engines.py."""
    built("cpu")
    output, log = tmp_path / "output", tmp_path / "log"
    settings = [f"OUTPUT_DIR={output}", f"DATA_DIR={tmp_path / 'data'}", "FRAMEWORK=mega", *ROAD, "TRAIN_ITERS=3000"]
    command = podman.wrapped(checkout / "shell" / "run_train.sh", "PLATFORM=cpu", *settings)
    environment = {**podman.environment, "RUNTIME": "podman"}
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 300
        while not re.search(r"  step \d+/3000", printed := log.read_text(errors="replace")):
            assert process.poll() is None and time.monotonic() < deadline, printed[-5000:]
            time.sleep(0.2)
        (container,) = podman.containers()
        assert token not in podman.ask("container", "inspect", container), "a running container shows no secret"
        assert [line for line in command_lines() if str(output) in line]
        process.terminate()
        code = process.wait(180)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
            podman.run("podman", "rm", "--all", "--force")
    assert code == 128 + signal.SIGTERM, log.read_text()[-5000:]
    assert podman.containers() == []
    assert not [line for line in command_lines() if str(output) in line]
