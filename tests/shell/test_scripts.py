"""Rules for every shell script of ours, `./tprimat`, and scripts that need nothing installed or only start others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT, python_of
from housekeeping import tree, write_data, write_output

from tests.support.setups import Sandbox, add_program
from utils.arguments import VERSION

SHORT = {
    **{name: f'run_{name}.sh" --here ' for name in ("data", "purge", "sweep", "train", "wrap")},
    **{name: f'inside/read.sh" {name} ' for name in ("extract", "frame", "gpu", "history", "trace", "validate")},
    "compare": '../evaluate/compare.sh" ',
}
"""Commands of two lines, and what each starts."""
COMMANDS = sorted({*ROOT.glob("shell/*.sh")} - {ROOT / "shell" / f"{name}.sh" for name in SHORT})
"""The other scripts that a person calls."""
READING = [ROOT / "shell" / f"{name}.sh" for name, started in SHORT.items() if "read.sh" in started]
LIBRARIES = sorted(ROOT.glob("shell/lib/*.sh"))
INNER = [*LIBRARIES, *sorted(ROOT.glob("shell/inside/*.sh")), ROOT / ".ci" / "run"]


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("script", [*COMMANDS, *INNER], ids=names)
def test_it_runs_with_the_bash_of_the_path_and_stops_at_the_first_error(script: Path) -> None:
    text = script.read_text(encoding="utf8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert script in LIBRARIES or "\nset -Eeuo pipefail\n" in text or '/lib/environment.sh" || exit\n' in text
    assert os.access(script, os.X_OK) == (script not in LIBRARIES), "a library is sourced"


@pytest.mark.parametrize("script", [script for script in INNER if script.name != "job.sh"], ids=names)
def test_its_header_says_how_it_is_used(script: Path) -> None:
    """Except job.sh, whose help is that of train.launch."""
    header = re.match("(#.*\n)+", script.read_text(encoding="utf8"))[0]
    titles = " ".join(line.split(":")[0].lower() for line in header.splitlines() if ":" in line)
    for title in ("usage", "reads", "writes", "exits"):
        assert re.search(rf"\b{title}\b", titles), f"{script} has no '{title}:' in its header"


@pytest.mark.parametrize("flag", ["--help", "-h"])
@pytest.mark.parametrize("script", [*COMMANDS, *READING], ids=names)
def test_the_help_of_commands_has_one_form_and_needs_no_environment(script: Path, flag: str) -> None:
    """One sentence on what the command is for; then Usage, Reads, Writes, Exits and Example, in columns."""
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    done = subprocess.run([script, flag], cwd="/", env=environment, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    first, *lines = re.split("\n\n(positional arguments|options):", done.stdout)[0].splitlines()
    assert first.endswith(".") and len(first) <= 120
    block = lines[next(number for number, line in enumerate(lines) if line.startswith("Usage:")) :]
    labels = [line[:9].strip() for line in block if line[:9].strip()]
    assert labels == ["Usage:", "Reads:", "Writes:", "Exits:", "Example:"]
    assert all(line[8] == " " and line[9] != " " for line in block if line[:9].strip())
    assert f"./shell/{script.name}" in block[0]
    assert block[-1].startswith(f"Example: ./shell/{script.name}")


@pytest.mark.parametrize("name", SHORT)
def test_a_short_name_only_hands_on(name: str) -> None:
    shebang, line = (ROOT / "shell" / f"{name}.sh").read_text(encoding="utf8").splitlines()
    start = f'exec "$(dirname -- "$(readlink -f -- "$0")")/{SHORT[name]}'
    assert shebang == "#!/usr/bin/env bash" and line.startswith(start) and line.endswith('"$@"')


# ./tprimat: the list of commands, what stands behind each, completion, symbolic links.

DOOR = ROOT / "tprimat"
RUN = "name = sys.argv[1]; sys.argv = [name, '--help']; runpy.run_module(name, run_name='__main__', alter_sys=True)"


def door(*arguments, folder=ROOT, path=DOOR):
    return subprocess.run([path, *arguments], cwd=folder, capture_output=True, text=True, timeout=600)


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
def test_every_command_passes_its_help_on_and_tells_the_version(name):
    done = door(name, "--help")
    assert done.returncode == 0 and "sage" in done.stdout and door("help", name).stdout == done.stdout, done.stderr
    assert door(name, "--version").stdout == f"tprimat {VERSION}\n"


@pytest.mark.parametrize(
    "version",
    [
        "3.10",
        *(
            pytest.param(one, marks=pytest.mark.full("the helps with two more Pythons, about 7 s"))
            for one in ("3.11", "3.12")
        ),
        "3.13",
    ],
)
def test_the_help_of_every_module_behind_a_command_needs_the_standard_library_only(version):
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version}")
    rooms = [*ROOT.glob("evaluate/*.py"), *ROOT.glob("data/*.py"), ROOT / "train/probe.py", ROOT / "train/rehearse.py"]
    for path in rooms:
        if 'if __name__ == "__main__"' in path.read_text(encoding="utf8"):
            command = [python, "-I", "-c", f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); {RUN}"]
            command.append(".".join(path.relative_to(ROOT).with_suffix("").parts))
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            assert (done.returncode, done.stderr) == (0, "") and "--version" in done.stdout, command


def test_it_finds_its_checkout_through_a_symbolic_link_and_keeps_the_callers_folder(tmp_path):
    link = tmp_path / "t"
    link.symlink_to(DOOR)
    done = door("validate", "nothing_here", folder=tmp_path, path=link)
    assert done.returncode == 2 and done.stderr.startswith("error: nothing_here")


COMPLETE = 'eval "$("$0" completion bash)"; COMP_WORDS=("$0" "$@") COMP_CWORD=$#; _tprimat; echo "${COMPREPLY[@]}"'


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ([""], commands() | {"help"}),
        (["com"], {"compare"}),
        (["compare", "--ba"], {"--band", "--baseline"}),
        (["train", "--dry"], {"--dry-run"}),
        (["gpu", "--y"], {"--yes"}),
        (["train", "MODEL"], {"MODEL=", "MODEL_SIZE="}),
    ],
)
def test_completion_offers_the_commands_their_options_and_the_settings(words, offered):
    done = subprocess.run(["bash", "-c", COMPLETE, DOOR, *words], capture_output=True, text=True, timeout=600)
    assert (set(done.stdout.split()), done.stderr) == (offered, "")


# Scripts that need nothing installed: wrap and purge, the job scripts, compare.sh with the folder of the settings.


@pytest.fixture
def checkout(tmp_path: Path) -> Sandbox:
    """Return a copy of the checkout without .venv, on a machine whose Python has no packages."""
    made = Sandbox(tmp_path, "shell", "utils", "evaluate", "train", "config*.env", "*requirements.txt")
    (made.bin / "python3").symlink_to(sys.executable)
    return made


@pytest.mark.parametrize("has_broken_python", [False, True])
def test_wrap_and_purge_work_without_the_suites_environment(checkout, has_broken_python):
    """Neither creates or changes it. On a machine without a GPU, DATA_DIR is inside OUTPUT_DIR."""
    output, venv = checkout.root / "output", checkout.root / ".venv"
    write_output(output)
    write_data(output / "data")
    if has_broken_python:
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python").symlink_to("missing")
    wrapped = checkout.run("wrap.sh")
    assert wrapped.returncode == 0 and wrapped.stdout.startswith(f"{output}/output.zip: 23 files, ")
    assert re.fullmatch(r".+: removed \.output\.zip\.\w+\.tmp, left by a run that was killed\n", wrapped.stderr)
    before = tree(output)
    dry = checkout.run("purge.sh", "OUTPUT_DIR=output", "--dry-run", "--with-data")
    assert dry.returncode == 0 and "would remove" in dry.stdout and tree(output) == before
    purged = checkout.run("purge.sh")
    assert (purged.returncode, purged.stderr) == (0, "")
    assert sorted(path.name for path in output.iterdir()) == [".tprimat", "data"]
    assert checkout.run("purge.sh", "--with-data").returncode == 0
    assert not output.exists() and venv.exists() == has_broken_python


SAY = '#!/usr/bin/env bash\nprintf "%s\\n" "$PLATFORM" "$@"\n'
"""Prints its arguments, one a line."""


@pytest.fixture(scope="module")
def saying(tmp_path_factory):
    """Return a checkout whose Python and setup print their arguments."""
    made = Sandbox(tmp_path_factory.mktemp("saying"), "shell", "utils", "train", "config*.env")
    (made.bin / "python3").symlink_to(sys.executable)
    add_program(made.root / ".venv" / "bin" / "python", SAY)
    add_program(made.root / "shell" / "setup.sh", SAY)
    return made


@pytest.mark.parametrize("script", sorted(ROOT.glob("train/*.sh")), ids=lambda path: path.name)
def test_a_job_script_starts_the_job_of_its_name(script, saying):
    _, platform, framework, model = script.stem.split("_")
    ran = saying.run(f"../train/{script.name}", "--run", "3", "MBS=2")
    job = ["-m", "train.launch", "--platform", platform, "--framework", framework, "--model", model]
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-len(job) - 4 :] == [platform, *job, "--run", "3", "MBS=2"]


@pytest.mark.parametrize(
    ("asked", "passed"), [(["LABEL=tp2"], ["of LABEL=tp2"]), (["a", "b", "--output", "c"], ["a", "b", "--output", "c"])]
)
def test_compare_takes_the_folder_of_the_settings_where_none_is_named(asked, passed, checkout):
    first = '[[ $2 == utils.configure ]] && echo "of ${*: -1}" && exit'
    add_program(checkout.root / ".venv" / "bin" / "python", SAY.replace("\n", f"\n{first}\n", 1))
    ran = checkout.run("../evaluate/compare.sh", *asked)
    assert ran.stdout.splitlines() == ["cpu", "-m", "evaluate.compare", *passed]


# shell/profile.sh: nsys wraps the job's script. A stand-in checks its arguments against the options of Nsight Systems
# 2023.1 and later, and starts nothing.

NSYS = f"""#!{sys.executable}
import argparse, json, os, sys
from pathlib import Path

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("command", choices=("profile",))
parser.add_argument("--trace", type=lambda text: set(text.split(",")), required=True)
parser.add_argument("--sample", choices=("process-tree", "system-wide", "none"))
parser.add_argument("--cpuctxsw", choices=("process-tree", "system-wide", "none"))
parser.add_argument("--capture-range", choices=("none", "cudaProfilerApi", "hotkey", "nvtx"), required=True)
parser.add_argument("--capture-range-end", choices=("none", "stop", "stop-shutdown"), required=True)
parser.add_argument("--kill", choices=("none", "sigkill", "sigterm"))
parser.add_argument("--output", type=Path, required=True)
own = [argument for argument in sys.argv[1:] if argument.startswith("--") or argument == "profile"]
if not all("=" in argument for argument in own[1:]):
    sys.exit("nsys: a long option and its value are joined by =")
options = parser.parse_args(own)
application = sys.argv[1 + len(own):]
if not os.access(application[0], os.X_OK) or not options.trace <= {{"cuda", "nvtx", "osrt", "cublas", "cudnn", "mpi"}}:
    sys.exit("nsys: bad application or trace")
options.output.with_suffix(".nsys-rep").write_text("report")
print(json.dumps({{"application": application, "range": options.capture_range, "end": options.capture_range_end}}))
sys.exit(7)
"""


def test_nsys_wraps_the_script_of_the_job_and_captures_the_profiled_steps_alone(tmp_path):
    tools = add_program(tmp_path / "bin" / "nsys", NSYS).parent
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    asked = (f"OUTPUT_DIR={tmp_path}/out", "PROFILE_RANKS=0")
    command = [ROOT / "shell" / "profile.sh", "nsys", "train_nvd_mega_llama.sh", *asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 7, done.stderr  # the exit code of nsys, which is that of the job
    said = json.loads(done.stdout)
    script = str(ROOT / "train" / "train_nvd_mega_llama.sh")
    assert said["application"] == [script, "FORCE=1", *asked, "PROFILING=nsys"]
    assert (said["range"], said["end"]) == ("cudaProfilerApi", "stop")
    (report,) = (tmp_path / "out" / "profiles" / "train_nvd_mega_llama_run1").iterdir()
    assert report.name.startswith("nsys_") and report.suffix == ".nsys-rep"
