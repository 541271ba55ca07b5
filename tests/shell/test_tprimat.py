"""./tprimat: the list of commands, what stands behind each, slips, completion, symbolic links."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from checkout import ROOT
from fresh_machine import python_of

from utils.arguments import VERSION

DOOR = ROOT / "tprimat"
RUN = "name = sys.argv[1]; sys.argv = [name, '--help']; runpy.run_module(name, run_name='__main__', alter_sys=True)"


def door(*arguments, folder=ROOT, path=DOOR):
    return subprocess.run([path, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)


def commands():
    return {line.split()[0] for line in door().stdout.splitlines() if line.startswith("  ")}


def test_the_list_names_every_script_that_a_person_calls_and_exits_with_0():
    done = door()
    assert done.returncode == 0 and done.stderr == ""
    # shell/data.sh, train.sh, wrap.sh, purge.sh run inside the image; run_*.sh starts them. platform.sh is for scripts.
    inner = {"data", "train", "wrap", "purge", "platform"}
    stems = {path.stem for path in ROOT.glob("shell/*.sh")} - inner
    scripts = {stem.removeprefix("run_").replace("_", "-") for stem in stems}
    assert scripts - {"entry"} | {"enter"} <= commands()
    modules = {path.stem for path in ROOT.glob("evaluate/[!_]*.py") if "__main__" in path.read_text(encoding="utf8")}
    assert modules <= commands()


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_command_passes_its_help_on(name):
    done = door(name, "--help")
    assert done.returncode == 0 and "sage" in done.stdout, done.stderr


@pytest.mark.parametrize("name", sorted(commands()))
def test_help_with_a_command_is_its_help_and_every_command_tells_the_version(name):
    assert door("help", name).stdout == door(name, "--help").stdout
    assert door(name, "--version").stdout == door("--version").stdout == f"tprimat {VERSION}\n"


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_the_help_of_every_module_behind_a_command_needs_the_standard_library_only(version):
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version}")
    rooms = [*ROOT.glob("evaluate/*.py"), *ROOT.glob("data/*.py"), ROOT / "train/probe.py", ROOT / "train/rehearse.py"]
    modules = [path for path in rooms if 'if __name__ == "__main__"' in path.read_text(encoding="utf8")]
    for path in modules:
        command = [python, "-I", "-c", f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); {RUN}"]
        command.append(".".join(path.relative_to(ROOT).with_suffix("").parts))
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "") and "--version" in done.stdout, command


def test_a_word_near_nothing_is_refused_without_a_guess():
    done = door("xyzzy")
    assert done.returncode == 2 and "did you mean" not in done.stderr and len(done.stderr.splitlines()) == 1


def test_it_finds_its_checkout_through_a_symbolic_link_and_keeps_the_callers_folder(tmp_path):
    link = tmp_path / "t"
    link.symlink_to(DOOR)
    done = door("validate", "nothing_here", folder=tmp_path, path=link)
    assert done.returncode == 2 and done.stderr.startswith("error: nothing_here")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_offers_every_command(shell):
    done = door("completion", shell)
    words = done.stdout.translate(str.maketrans("'()", "   ")).split()
    assert done.returncode == 0 and commands() <= set(words)


COMPLETE = 'eval "$("$0" completion bash)"; COMP_WORDS=("$0" "$@") COMP_CWORD=$#; _tprimat; echo "${COMPREPLY[@]}"'


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["com"], {"compare"}),
        (["compare", "--ba"], {"--band", "--baseline"}),
        (["train", "--dry"], {"--dry-run"}),
        (["gpu", "--y"], {"--yes"}),
        (["train", "MODEL"], {"MODEL=", "MODEL_SIZE="}),
    ],
)
def test_completion_offers_the_options_of_a_command_and_the_settings(words, offered):
    done = subprocess.run(["bash", "-c", COMPLETE, DOOR, *words], capture_output=True, text=True, timeout=60)
    assert (set(done.stdout.split()), done.stderr) == (offered, "")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh on this machine")
def test_zsh_takes_the_completion():
    script = 'eval "$("$0" completion zsh)" && words=(t com) && whence _tprimat'
    done = subprocess.run(["zsh", "-fc", script, DOOR], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("_tprimat\n", "")
