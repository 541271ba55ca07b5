"""secrets.env: read by name into the environment, judged, never repeated in a message."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from utils.settings.config import ROOT

TOKEN = "hf_" + "aB3" * 11 + "x"
"""In the form of a token of the hub, and none."""
SHOW = 'load_secrets; printf "[%s]" "${HF_TOKEN-unset}"; env | grep -c "^HF_TOKEN=" || true'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "a checkout"
    (root / "shell" / "lib").mkdir(parents=True)
    shutil.copy(ROOT / "shell" / "lib" / "secrets.sh", root / "shell" / "lib")
    return root


def load(checkout: Path, what: str = SHOW, options: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    script = f"set -Eeuo pipefail; source shell/lib/secrets.sh; {what}"
    environ = {"PATH": os.environ["PATH"], **environ}
    command = ["bash", *options.split(), "-c", script]
    return subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True, timeout=60)


def write(checkout: Path, text: str, mode: int = 0o600) -> Path:
    path = checkout / "secrets.env"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_value_comes_out_exported(checkout):
    write(checkout, f"# mine\n\nHF_TOKEN={TOKEN}")
    ran = load(checkout)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"[{TOKEN}]1\n", "")


@pytest.mark.parametrize("text", [None, "HF_TOKEN=\n", "# nothing\n"])
def test_without_file_or_value_nothing_is_set(checkout, text):
    if text is not None:
        write(checkout, text)
    ran = load(checkout)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[unset]0\n", "")


@pytest.mark.parametrize("given", ["hf_of_the_environment", ""])
def test_the_environment_comes_first_even_empty(checkout, given):
    write(checkout, f"HF_TOKEN={TOKEN}\n")
    assert load(checkout, HF_TOKEN=given).stdout.startswith(f"[{given}]")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o666])
def test_a_file_that_others_can_read_is_one_warning_with_the_command(checkout, mode):
    path = write(checkout, f"HF_TOKEN={TOKEN}\n", mode)
    ran = load(checkout)
    assert ran.stdout == f"[{TOKEN}]1\n" and ran.stderr.count("\n") == 1
    assert ran.stderr.startswith(f"warning: secrets.env: mode {mode:o} lets others read it: chmod 600 ")
    subprocess.run(["bash", "-c", ran.stderr.partition(" it: ")[2]], check=True)
    assert path.stat().st_mode & 0o777 == 0o600, "the command in the warning does what it says"
    assert load(checkout).stderr == ""


def test_scripts_that_start_one_another_warn_once(checkout):
    write(checkout, f"HF_TOKEN={TOKEN}\n", 0o644)
    ran = load(checkout, "load_secrets; bash -c 'source shell/lib/secrets.sh; load_secrets; printf %s \"$HF_TOKEN\"'")
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (0, TOKEN, 1)


def test_a_link_is_followed_and_its_target_judged(checkout, tmp_path):
    target = tmp_path / "token.env"
    target.write_text(f"HF_TOKEN={TOKEN}\n")
    target.chmod(0o644)
    (checkout / "secrets.env").symlink_to(target)
    ran = load(checkout)
    assert ran.stdout == f"[{TOKEN}]1\n" and "mode 644" in ran.stderr
    target.chmod(0o400)
    assert load(checkout).stderr == ""


BAD = {
    "no assignment": f"{TOKEN}\n",
    "export": f"export HF_TOKEN={TOKEN}\n",
    "quotes": f'HF_TOKEN="{TOKEN}"\n',
    "spaces": f"HF_TOKEN= {TOKEN}\n",
    "comment behind": f"HF_TOKEN={TOKEN} # mine\n",
    "line ends of Windows": f"HF_TOKEN={TOKEN}\r\n",
    "a variable": f"HF_TOKEN=$X{TOKEN}\n",
    "unknown key": f"HF_TOKENS={TOKEN}\n",
    "a setting": "MBS=2\n",
    "twice": f"HF_TOKEN={TOKEN}\nHF_TOKEN={TOKEN}\n",
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_outside_the_grammar_ends_with_2_and_is_not_repeated(checkout, what):
    write(checkout, "# first line\n" + BAD[what])
    ran = load(checkout)
    line = 3 if what == "twice" else 2
    assert (ran.returncode, ran.stdout) == (2, "") and ran.stderr.count("\n") == 1
    assert ran.stderr.startswith(f"error: secrets.env:{line}: ") and "aB3" not in ran.stderr


@pytest.mark.parametrize("sort", ["folder", "fifo", "dangling link"])
def test_what_is_no_file_is_refused_at_once(checkout, sort):
    path = checkout / "secrets.env"
    {"folder": path.mkdir, "fifo": lambda: os.mkfifo(path), "dangling link": lambda: path.symlink_to("gone")}[sort]()
    ran = load(checkout)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)


def test_a_trace_does_not_show_it(checkout):
    write(checkout, f"HF_TOKEN={TOKEN}\n")
    ran = load(checkout, "load_secrets; true after", options="-x")
    assert "aB3" not in ran.stderr and "+ true after" in ran.stderr, "the trace goes on behind it"


def test_what_is_shipped_as_an_example_is_valid_and_empty(checkout):
    write(checkout, (ROOT / "secrets.env.example").read_text())
    assert (ran := load(checkout)).returncode == 0 and ran.stdout == "[unset]0\n"


def test_git_ignores_the_file():
    ran = subprocess.run(["git", "-C", ROOT, "check-ignore", "-q", "secrets.env"], timeout=60)
    assert ran.returncode in (0, 128), "128: no git checkout"
