"""Session fixtures of the tests with real containers: Podman, a checkout with a secret, our images."""

from __future__ import annotations

import random
import shutil
import string
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import base_images
import podman_engine
import pytest
from podman_engine import Podman

ROOT = Path(__file__).parents[2]
NEEDED_GB = 30


@dataclass(frozen=True)
class Built:
    """Output of build.sh, and the name of the image in Podman."""

    stdout: str
    stderr: str
    image: str


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    reason = podman_engine.install()
    free_gb = shutil.disk_usage("/tmp").free / 1e9
    if reason is None and free_gb < NEEDED_GB:
        reason = f"{free_gb:.0f} GB free in /tmp, the images need {NEEDED_GB}"
    if reason:
        pytest.skip(f"no containers: {reason}")
    # With a longer path than 50 characters to `run`, Podman cannot clean up after a container, and waits 20 s for that.
    folder = Path(tempfile.mkdtemp(prefix="tprimat-podman-", dir="/tmp"))
    engine = podman_engine.make(folder)
    try:
        base_images.make_debian(engine)
        started = engine.run("podman", "run", "--rm", base_images.DEBIAN, "true")
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
        podman.ask("save", "--output", archive, base_images.DEBIAN)
        archive.chmod(0o644)
        engine.ask("load", "--input", archive)
        engine.ask("tag", base_images.DEBIAN, "localhost/tprimat:cpu")
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
    folder = tmp_path_factory.mktemp("work") / "a checkout"
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in listed.rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "a copy"]):
        subprocess.run([*git, *arguments], cwd=folder, check=True)
    (folder / "secrets.env").write_text(f"HF_TOKEN={token}\n", encoding="utf8")
    (folder / "secrets.env").chmod(0o600)
    for junk in ("key.pem", "output/old.json", "utils/__pycache__/old.pyc", ".venv/bin/tool", ".env"):
        (folder / junk).parent.mkdir(parents=True, exist_ok=True)
        (folder / junk).write_text(f"{token}\n", encoding="utf8")
    return folder


@pytest.fixture(scope="session")
def built(podman: Podman, checkout: Path) -> Callable[[str], Built]:
    """Return a function that builds a platform's image with build.sh, once."""
    images: dict[str, Built] = {}

    def build(platform: str) -> Built:
        if platform not in images:
            if platform != "cpu" and not {"amd", "nvd"} & set(images):
                python = base_images.python_312()
                if python is None:
                    pytest.skip(
                        "no Python 3.12, the version of both vendors' images, that can be copied (pyenv has one)"
                    )
                base_images.make_vendors(podman, python)
            done = podman.run(
                checkout / "shell" / "build.sh",
                f"PLATFORM={platform}",
                RUNTIME="podman",
                PIP_USER_AGENT_USER_DATA=f"lent-{platform}",
                timeout=1200,
            )
            assert done.returncode == 0, f"build of {platform}:\n{done.stderr[-5000:]}"
            images[platform] = Built(done.stdout, done.stderr, f"localhost/tprimat:{platform}")
        return images[platform]

    return build
