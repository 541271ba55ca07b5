"""shell/test.sh and .ci/run in a copy of the checkout, with stand-ins for the tools: commands and verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.setups import Sandbox, add_program

CHECKS = ("ruff check", "ruff format", "mypy", "shellcheck", "shfmt", "tests (quick part)")
# Plays every tool; each is known by a word that only its command line has.
TOOL = """#!/usr/bin/env bash
exec >>"$CALLS"
printf '%s %s|words=%s|CI=%s|threads=%s|input=%s\\n' "${0##*/}" "$*" "$#" "${CI:-}" "${OMP_NUM_THREADS:-}" "$(cat)"
case "${0##*/} $*" in $FAILS_ON) exit 3 ;; esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Sandbox:
    made = Sandbox(tmp_path, "shell/test.sh", "shell/lib/environment.sh", ".ci/run")
    setup = 'echo "setup $*" >>"$CALLS"; exit "${SETUP_EXIT:-0}"'
    add_program(made.root / "shell" / "setup.sh", f"#!/usr/bin/env bash\n{setup}\n")
    test = '@pytest.mark.full(\n    "every framework, 300 s"\n)\ndef test_one(): ...\n'
    add_program(made.root / "tests" / "train" / "test_long.py", test)
    for name in ("python", "shellcheck", "shfmt"):
        add_program(made.root / ".venv" / "bin" / name, TOOL)
    made.environment |= {"PATH": "/usr/bin:/bin", "CALLS": str(tmp_path / "calls.txt"), "FAILS_ON": ""}
    return made


def run(checkout: Sandbox, *arguments: str, script: str = "test.sh", **changes: str) -> tuple[int, str, list[str]]:
    """Return the exit code, stdout and the calls of the tools."""
    done = checkout.run(script, *arguments, given="typed", **changes)
    return done.returncode, done.stdout, (checkout.folder / "calls.txt").read_text(encoding="utf8").splitlines()


def test_all_checks_run_after_setup(checkout: Sandbox) -> None:
    code, output, calls = run(checkout)
    assert (code, calls[0]) == (0, "setup --dev")
    assert output.splitlines()[-2:] == ["  every framework, 300 s", "all checks passed"], "what --all adds is named"
    wanted = (
        "-m ruff check",
        "-m ruff format --check",
        "-m mypy",
        "shellcheck ",
        "shfmt -i 2 -ci -d",
        "-m pytest --no-loadscope-reorder --dist loadfile -n 2",
    )
    for call, part in zip(calls[1:], wanted, strict=True):
        assert part in call and "threads=1" in call


WORDS = ("*ruff check*", "*ruff format*", "*mypy*", "shellcheck*", "shfmt*", "*pytest*")


@pytest.mark.parametrize(("fails_on", "names"), [*zip(WORDS, CHECKS, strict=True), ("*", ", ".join(CHECKS))])
def test_failing_checks_stop_no_other_and_are_named_last(checkout: Sandbox, fails_on: str, names: str) -> None:
    code, output, calls = run(checkout, FAILS_ON=fails_on)
    assert (code, output.splitlines()[-1], len(calls)) == (1, f"failed: {names}", 1 + len(CHECKS))
    code, _, calls = run(checkout, SETUP_EXIT="1")
    assert (code, calls[-1]) == (1, "setup --dev"), "a failing setup ends it"


def test_arguments_reach_pytest_as_they_are(checkout: Sandbox) -> None:
    _, _, calls = run(checkout, "tests/utils", "-k", "one or two")
    assert "--dist loadfile -n 2 -m not full tests/utils -k one or two|words=12|" in calls[-1]
    _, _, calls = run(checkout, "--all", "tests/utils", "-k", "one or two")
    assert "--dist loadfile -n 3 tests/utils -k one or two|words=10|" in calls[-1]


def test_all_runs_every_test_in_one_go(checkout: Sandbox) -> None:
    code, output, calls = run(checkout, "--all")
    assert [call.split("--dist loadfile")[1].split("|")[0] for call in calls if "-m pytest" in call] == [" -n 3"]
    assert (code, output) == (0, "all checks passed\n")


def test_continuous_integration_has_no_input(checkout: Sandbox) -> None:
    add_program(checkout.folder / "programs" / "apt-get", "#!/bin/sh\n")  # this test installs nothing
    path = f"{checkout.folder / 'programs'}:/usr/bin:/bin"
    code, output, calls = run(checkout, "tests/utils", script="../.ci/run", PATH=path)
    assert (code, output.splitlines()[-1]) == (0, "all checks passed")
    assert all("|CI=true|" in call and call.endswith("|input=") for call in calls[1:])
    assert "tests/utils" in calls[-1]
