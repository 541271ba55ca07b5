"""The structure of the house, read from its sources: floors between rooms and packages, no circles, docstrings.

And in use: other people's packages named as our rooms do not replace them.
"""

import ast
import functools
import json
import os
import subprocess
import sys
import sysconfig
from collections import Counter
from graphlib import CycleError, TopologicalSorter

import pytest
from checkout import ROOT
from sides import write

from example import example_result

ROOMS = ("utils", "data", "train", "evaluate")
FLOORS_OF_PACKAGES = {
    "utils": (
        {"settings", "hardware"},
        {"results"},
        {"logs"},
        {"memory", "provenance"},
        {"housekeeping"},
        {"dataset"},
    ),
    "data": ({"reading"}, {"hub"}, {"language", "cleaning", "checking", "encoding"}),
    "train": (
        {"machine", "settings_map", "rehearsal"},
        {"job"},
        {"profiling", "energy"},
        {"common", "runner"},
        {"mega", "hf", "cluster", "preflight", "probing"},
        {"nemo", "bridge", "prim", "titan"},
    ),
    "evaluate": (
        {"inputs", "metrics", "timing"},
        {"checks"},
        {"fairness", "frames"},
        {"verdict"},
        {"report"},
        {"bundle", "timeline"},
        {"acceptance"},
    ),
}
"""Packages of each room from the ground up: a package imports only packages on lower floors."""
STANDARD_LIBRARY_ONLY = (
    *(
        "utils/models.py",
        "utils/frameworks.py",
        "evaluate/timing/kinds.py",
        "utils/redact.py",
        "utils/arguments.py",
    ),
    *("utils/results", "utils/logs", "evaluate/extract.py"),
)


def sources(folder):
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "__pycache__" not in path.parts]


MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for room in ROOMS
    for path in sources(room)
}


def imported(path, *, when_loaded=False):
    """Return the dotted names that a file imports, inside functions too unless `when_loaded`; of ours, the modules."""
    names = set()
    tree = ast.parse(path.read_text(encoding="utf8"))
    for node in tree.body if when_loaded else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; name the room"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names.add(full if full in MODULES else node.module)
    return names


@functools.cache
def imports():
    """Return what each module imports."""
    return {name: imported(path) for name, path in MODULES.items()}


def package_of(module):
    """Return room and package of a module; the package is None for a file at the top of its room."""
    room, *rest = module.split(".")
    is_package = MODULES[module].name == "__init__.py"
    return room, rest[0] if len(rest) > 1 or (rest and is_package) else None


def ours(names):
    return {name for name in names if name in MODULES}


def floor_of(module):
    """Return the floor of a module in its room: files on top of utils lie below all packages, those of others above."""
    room, package = package_of(module)
    if package is None:
        return -1 if MODULES[module].name == "__init__.py" or (room == "utils" and module != "utils.configure") else 99
    return next(number for number, floor in enumerate(FLOORS_OF_PACKAGES[room]) if package in floor)


def may_import(module, other):
    here, there = package_of(module), package_of(other)
    if here[0] != there[0]:
        return there[0] == "utils"
    return here == there or floor_of(other) < floor_of(module)


@pytest.mark.parametrize("room", ROOMS)
def test_every_package_of_a_room_has_a_floor(room):
    found = {package for name in MODULES for r, package in [package_of(name)] if r == room and package}
    listed = [package for floor in FLOORS_OF_PACKAGES[room] for package in floor]
    assert sorted(listed) == sorted(found)


@pytest.mark.parametrize("room", ROOMS)
def test_a_module_imports_its_package_lower_floors_and_of_other_rooms_utils_alone(room):
    of_room = {name: ours(names) for name, names in imports().items() if name.partition(".")[0] == room}
    pairs = [(name, other) for name, names in of_room.items() for other in names]
    assert pairs and [f"{name} imports {other}" for name, other in pairs if not may_import(name, other)] == []


def test_no_file_imports_itself_through_others():
    try:
        order = list(
            TopologicalSorter({name: ours(names) - {name} for name, names in imports().items()}).static_order()
        )
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
    assert set(order) >= set(MODULES)


def test_every_package_says_what_it_is_for():
    for folder in {path.parent for path in MODULES.values()}:
        tree = ast.parse((folder / "__init__.py").read_text(encoding="utf8"))
        text = ast.get_docstring(tree) or ""
        assert "mports" in text and "Begin with" in text, f"{folder}: say what it may import and where to begin"
        assert tree.body[1:] == [], f"{folder}: docstring only"


def test_no_folder_is_too_full():
    counts = Counter(path.parent for path in MODULES.values())
    assert {str(folder): n for folder, n in counts.items() if n > 20} == {}


@pytest.mark.parametrize("place", STANDARD_LIBRARY_ONLY)
def test_what_every_machine_must_be_able_to_run_needs_the_standard_library_and_numpy_only(place):
    path = ROOT / place
    todo = [path] if path.is_file() else sources(place)
    seen = set()
    while todo:
        file = todo.pop()
        seen.add(file)
        names = imported(file, when_loaded=True)
        others = {name.partition(".")[0] for name in names} - set(ROOMS) - {"numpy"}
        assert others <= sys.stdlib_module_names, file
        todo += [MODULES[name] for name in ours(names) if MODULES[name] not in seen]


@pytest.mark.parametrize("room", ["utils", "evaluate"])
def test_importing_it_does_not_import_torch(room):
    modules = [name for name in MODULES if name.partition(".")[0] == room and not name.endswith("__main__")]
    program = (
        "import importlib, json, sys\n"
        f"for name in {modules}:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules:\n"
        "        sys.exit(name + ' imports torch')\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert set(modules) <= set(json.loads(ran.stdout))


# Packages of other people named `utils`, `data`, `train` or `evaluate` do not replace ours.


@pytest.fixture(params=["PYTHONPATH", "environment"])
def python(request, tmp_path):
    """Return a Python with regular packages of our names on its path, and its environment.

    Hugging Face's `evaluate` and many images' `utils` are such packages.
    """
    foreign = tmp_path / "foreign"
    for name in ROOMS:
        (foreign / name).mkdir(parents=True)
        (foreign / name / "__init__.py").write_text(f"raise SystemExit('the foreign package {name}')\n")
    if request.param == "PYTHONPATH":
        return sys.executable, {"PYTHONPATH": str(foreign)}
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    (site_packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site_packages / "foreign.pth").write_text(f"{foreign}\n{sysconfig.get_path('purelib')}\n")
    return str(tmp_path / "venv" / "bin" / "python"), {}


@pytest.mark.parametrize(
    "arguments",
    [
        ("utils.configure", "--platform", "cpu", "--get", "results_dir"),
        ("evaluate.validate", "{results}"),
        ("evaluate.compare", "{results}", "--format", "md", "--output", "{results}/compared"),
        ("data.verify", "--help"),
        ("data.encode", "--help"),
        ("train.matrix", "--help"),
        ("train.launch", "--help"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_run_our_own_code_and_not_packages_of_the_same_name(python, tmp_path, arguments):
    write(tmp_path / "results", [example_result(framework=name, run=run) for run in (1, 2) for name in ("mega", "hf")])
    executable, changes = python
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | changes

    def start(folder, *command):
        return subprocess.run(
            [executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
        )

    ran = start(ROOT, "-m", *(argument.format(results=tmp_path / "results") for argument in arguments))
    assert ran.returncode in (0, 3) and "foreign" not in ran.stdout + ran.stderr, ran.stderr[-1000:]
    assert "the foreign package evaluate" in start(tmp_path, "-c", "import evaluate").stderr, "they are there"
