"""Who may import whom, read from the sources; and that results can be looked at on a machine without torch."""

import ast
import json
import subprocess
import sys

import pytest

from utils.configure import ROOT

FLOORS = ("utils", "data", "train", "evaluate")
STANDARD_LIBRARY_ONLY = ("models", "schema", "results", "performance", "redact")


def sources(floor):
    return sorted((ROOT / floor).rglob("*.py"))


def imported(path):
    """Return the dotted names that a file imports anywhere, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: our folders are no packages, relative imports do not work in them"
            names.add(node.module or "")
    return names


def packages(path):
    return {name.partition(".")[0] for name in imported(path)}


@pytest.mark.parametrize(("floor"), FLOORS)
def test_a_floor_stands_on_utils_alone(floor):
    assert sources(floor), "there is code to look at"
    forbidden = set(FLOORS) - {"utils", floor}
    wrong = {str(path.relative_to(ROOT)): found for path in sources(floor) if (found := packages(path) & forbidden)}
    assert wrong == {}


@pytest.mark.parametrize("module", STANDARD_LIBRARY_ONLY)
def test_what_every_machine_must_be_able_to_run_needs_the_standard_library_only(module):
    ours = {f"utils.{name}" for name in STANDARD_LIBRARY_ONLY}
    others = {name.partition(".")[0] for name in imported(ROOT / "utils" / f"{module}.py") - ours}
    assert others <= sys.stdlib_module_names


@pytest.mark.parametrize("floor", ["utils", "evaluate"])
def test_importing_it_does_not_import_torch(floor):
    modules = [f"{floor}.{path.stem}" for path in sources(floor)]
    program = (
        "import importlib, json, sys\n"
        f"for name in {modules}:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules:\n"
        "        sys.exit(name + ' imports torch')\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert set(modules) <= set(json.loads(ran.stdout))
