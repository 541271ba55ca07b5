"""secrets.env: exported by name, checked, never repeated in a message."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.setups import ROOT, copy_to

TOKEN = "hf_" + "aB3" * 11 + "x"
"""Shaped like a token of the hub, but invalid."""
SOURCE = "source shell/lib/environment.sh; source shell/lib/passed.sh"
SHOW = 'load_secrets; printf "[%s]" "${HF_TOKEN-unset}"; env | grep -c "^HF_TOKEN=" || true'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return copy_to(tmp_path / "a checkout", "shell/lib/environment.sh", "shell/lib/passed.sh")


def load(checkout: Path, what: str = SHOW, options: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    script = f"set -Eeuo pipefail; {SOURCE}; {what}"
    environ = {"PATH": os.environ["PATH"], **environ}
    command = ["bash", *options.split(), "-c", script]
    return subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True, timeout=60)


def write(checkout: Path, text: str, mode: int = 0o600) -> Path:
    path = checkout / "secrets.env"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"# mine\n\nHF_TOKEN={TOKEN}", f"[{TOKEN}]1\n"),
        (None, "[unset]0\n"),
        ("HF_TOKEN=\n", "[unset]0\n"),
        ((ROOT / "secrets.env.example").read_text(), "[unset]0\n"),
    ],
)
def test_the_value_comes_out_exported_and_without_one_nothing_is_set(checkout, text, shown):
    if text is not None:
        write(checkout, text)
    ran = load(checkout)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, shown, "")


@pytest.mark.parametrize("given", ["hf_of_the_environment", ""])
def test_the_environment_comes_first_even_empty(checkout, given):
    write(checkout, f"HF_TOKEN={TOKEN}\n")
    assert load(checkout, HF_TOKEN=given).stdout.startswith(f"[{given}]")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o666])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_that_others_can_read_is_one_warning_with_the_command(checkout, mode, is_link):
    path = write(checkout, f"HF_TOKEN={TOKEN}\n", mode)
    if is_link:
        path = path.rename(checkout / "token.env")
        (checkout / "secrets.env").symlink_to(path)
    ran = load(checkout)
    assert ran.stdout == f"[{TOKEN}]1\n" and ran.stderr.count("\n") == 1
    assert ran.stderr.startswith(f"warning: secrets.env: mode {mode:o} lets others read it: chmod 600 ")
    subprocess.run(["bash", "-c", ran.stderr.partition(" it: ")[2]], check=True)
    assert path.stat().st_mode & 0o777 == 0o600, "the command in the warning does what it says"
    assert load(checkout).stderr == ""


def test_scripts_that_start_one_another_warn_once(checkout):
    write(checkout, f"HF_TOKEN={TOKEN}\n", 0o644)
    ran = load(checkout, f"load_secrets; bash -c '{SOURCE}; load_secrets; printf %s \"$HF_TOKEN\"'")
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (0, TOKEN, 1)


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


def test_git_ignores_the_file():
    ran = subprocess.run(["git", "-C", ROOT, "check-ignore", "-q", "secrets.env"], timeout=60)
    assert ran.returncode in (0, 128), "128: no git checkout"


SCRIPTS = sorted(path for pattern in ("shell/*.sh", "evaluate/*.sh", "tprimat") for path in ROOT.glob(pattern))
CALLS: dict[str, tuple[list[str], dict[str, str]]] = {  # arguments and environment
    "alone": ([TOKEN], {}),
    "a key": ([f"{TOKEN}=1"], {}),
    "a value": ([f"MODEL={TOKEN}"], {}),
    "an option": ([f"--{TOKEN}"], {}),
    "a platform": ([f"PLATFORM={TOKEN}"], {}),
    "a second word": (["x", TOKEN], {}),
    **{f"{name} of the environment": (["--dry-run"], {name: TOKEN}) for name in ("PLATFORM", "RUNTIME")},
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_script_repeats_a_secret_that_it_refuses(script: Path) -> None:
    """Nothing is started: the refusal is the first thing that a script does."""
    for what, (arguments, changes) in CALLS.items():
        if (changes and not script.name.startswith("run_")) or (what == "a value" and script.name == "platform.sh"):
            continue  # which takes no such word, and ignores other settings
        environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PLATFORM": "cpu", **changes}
        ran = subprocess.run([script, *arguments], env=environ, capture_output=True, text=True, timeout=60)
        assert (ran.returncode, ran.stderr.count("\n"), ran.stdout) == (2, 1, ""), (what, ran)
        assert TOKEN[:20] not in ran.stderr and ran.stderr.startswith("error: "), (what, ran)


def test_a_trace_of_bash_shows_no_value_that_a_container_gets(tmp_path: Path) -> None:
    commands = 'PRIVATE_NAMES=(HF_TOKEN); _may_be_secret HF_TOKEN && lend_private && wc -c <"$PRIVATE_FILE"'
    environ = {"PATH": os.environ["PATH"], "HF_TOKEN": TOKEN, "TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    ran = subprocess.run(
        ["bash", "-xc", f"{SOURCE}; {commands}"], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60
    )
    assert int(ran.stdout) == len(f"HF_TOKEN={TOKEN}") + 1 and "lend_private" in ran.stderr
    assert TOKEN[:20] not in ran.stderr


WITH_BASH = [path for path in SCRIPTS if len(path.read_text(encoding="utf8").splitlines()) > 2]
"""All but those that start another one in two lines, which sh can read."""


@pytest.mark.parametrize("script", WITH_BASH, ids=lambda path: path.name)
def test_a_script_that_sh_reads_says_that_it_needs_bash(script: Path) -> None:
    """The twin is every other test, which starts it with bash."""
    ran = subprocess.run(["dash", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1) and "needs bash" in ran.stderr, ran
