"""Session fixtures of the tests with real containers: Podman, a checkout with a secret, our images."""

from __future__ import annotations

import functools
import random
import string
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import podman_engine
import pytest
from podman_engine import Podman

from tests.support.checkout import copy_checkout


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    if reason := podman_engine.why_not():
        pytest.skip(f"no containers: {reason}")
    # With a longer path than 50 characters to `run`, Podman cannot clean up after a container, and waits 20 s for that.
    folder = Path(tempfile.mkdtemp(prefix="tprimat-podman-", dir="/tmp"))
    engine = podman_engine.make(folder)
    try:
        podman_engine.make_debian(engine)
        started = engine.run("podman", "run", "--rm", podman_engine.DEBIAN, "true")
        if started.returncode:
            pytest.skip(f"no containers: Podman starts none here: {started.stderr.strip().splitlines()[-1]}")
        yield engine
    finally:
        engine.remove()


@pytest.fixture(scope="session")
def users_podman(podman: Podman) -> Iterator[Podman]:
    """Podman of an ordinary user, whose CPU image is a stand-in: a Debian with the Python that archiving needs."""
    folder = Path(tempfile.mkdtemp(prefix="tprimat-user-"))  # the user cannot enter pytest's own folders
    folder.chmod(0o755)
    engine = podman_engine.of_user(podman, folder)
    try:
        archive = folder / "tmp" / "debian.tar"
        podman.ask("save", "--output", archive, podman_engine.DEBIAN)
        archive.chmod(0o644)
        engine.ask("load", "--input", archive)
        engine.ask("tag", podman_engine.DEBIAN, "localhost/tprimat:cpu")
        archive.unlink()
        yield engine
    finally:
        engine.remove()


@pytest.fixture(scope="session")
def token() -> str:
    """Return a random token shaped like one of the hub: a literal one would be found in the sources."""
    return "hf_" + "".join(random.choices(string.ascii_letters, k=34))


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory, token: str) -> Path:
    """Return a copy of what git does not ignore, plus secrets.env and other files that must not get into an image."""
    folder = copy_checkout(tmp_path_factory.mktemp("work") / "a checkout")
    git = ["git", "-C", folder, "-c", "user.name=test", "-c", "user.email=test@example.org"]
    for arguments in (["add", "-A"], ["-c", "commit.gpgsign=false", "commit", "-q", "-m", "a copy"]):
        subprocess.run([*git, *arguments], check=True)
    (folder / "secrets.env").write_text(f"HF_TOKEN={token}\n", encoding="utf8")
    (folder / "secrets.env").chmod(0o600)
    for junk in ("key.pem", "output/old.json", "utils/__pycache__/old.pyc", ".venv/bin/tool", ".env"):
        (folder / junk).parent.mkdir(parents=True, exist_ok=True)
        (folder / junk).write_text(f"{token}\n", encoding="utf8")
    return folder


@pytest.fixture(scope="session")
def built(podman: Podman, checkout: Path) -> Callable[[str], SimpleNamespace]:
    """Return a function that builds a platform's image with build.sh, once: its name, and what was printed."""

    @functools.cache
    def make_vendors() -> None:
        if (python := podman_engine.python_312()) is None:
            pytest.skip("no Python 3.12, that of both vendors' images, that can be copied (pyenv has one)")
        if reason := podman_engine.why_not():  # the other worker may have filled the disk meanwhile
            pytest.skip(f"no images of the vendors: {reason}")
        podman_engine.make_vendors(podman, python)

    @functools.cache
    def build(platform: str) -> SimpleNamespace:
        if platform != "cpu":
            make_vendors()
        lent = {"RUNTIME": "podman", "PIP_USER_AGENT_USER_DATA": f"lent-{platform}"}
        done = podman.run(checkout / "shell" / "build.sh", f"PLATFORM={platform}", **lent)
        assert done.returncode == 0, f"build of {platform}:\n{done.stderr[-5000:]}"
        return SimpleNamespace(stdout=done.stdout, stderr=done.stderr, image=f"localhost/tprimat:{platform}")

    return build
