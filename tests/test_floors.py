"""The structure of the house, read from its sources: floors between rooms and packages, no circles, docstrings."""

import ast
import json
import subprocess
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter

import pytest

from utils.settings.config import ROOT

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
    "data": ({"reading", "engines"}, {"hub"}, {"language", "cleaning", "checking", "encoding"}),
    "train": (
        {"machine", "job", "settings_map", "rehearsal"},
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
        {"page", "sweeps"},
        {"bundle", "timeline"},
        {"acceptance"},
        {"comparing"},
    ),
}
"""Packages of each room from the ground up: a package imports only packages on lower floors."""
STANDARD_LIBRARY_ONLY = (
    *("utils/models.py", "utils/kinds.py", "utils/redact.py", "utils/secret_forms.py", "utils/arguments.py"),
    *("utils/results", "utils/logs", "evaluate/extract.py"),
)
MOST_FILES_IN_A_FOLDER = 20


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


IMPORTS = {name: imported(path) for name, path in MODULES.items()}


def package_of(module):
    """Return room and package of a module; the package is None for a file at the top of its room."""
    room, *rest = module.split(".")
    is_package = MODULES[module].name == "__init__.py"
    return room, rest[0] if len(rest) > 1 or (rest and is_package) else None


def ours(names):
    return {name for name in names if name in MODULES}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_utils_alone(room):
    forbidden = set(ROOMS) - {"utils", room}
    wrong = {
        name: found
        for name, names in IMPORTS.items()
        if name.partition(".")[0] == room and (found := {n for n in names if n.partition(".")[0] in forbidden})
    }
    assert wrong == {}


@pytest.mark.parametrize("room", ROOMS)
def test_every_package_of_a_room_has_a_floor(room):
    found = {package for name in MODULES for r, package in [package_of(name)] if r == room and package}
    listed = [package for floor in FLOORS_OF_PACKAGES[room] for package in floor]
    assert sorted(listed) == sorted(found)


@pytest.mark.parametrize("room", ROOMS)
def test_a_package_imports_lower_floors_only(room):
    floor_of = {package: n for n, floor in enumerate(FLOORS_OF_PACKAGES[room]) for package in floor}
    wrong = []
    for name, names in IMPORTS.items():
        here = package_of(name)
        if here[0] != room or here[1] is None:
            continue
        for other in ours(names):
            there = package_of(other)
            if there[0] != room or there == here:
                continue
            is_file_on_top = there[1] is None and MODULES[other].name != "__init__.py"
            if is_file_on_top and room == "utils":
                continue  # models, redact, errors, files stand below all packages
            if is_file_on_top or (there[1] is not None and floor_of[there[1]] >= floor_of[here[1]]):
                wrong.append(f"{name} imports {other}")
    assert wrong == []


def test_files_on_top_of_utils_import_no_package_but_the_command():
    tops = [name for name in MODULES if package_of(name) == ("utils", None) and name.count(".") == 1]
    wrong = {name: found for name in tops if (found := {n for n in ours(IMPORTS[name]) if n not in tops})}
    assert set(wrong) <= {"utils.configure"}


def test_no_file_imports_itself_through_others():
    try:
        order = list(TopologicalSorter({name: ours(names) - {name} for name, names in IMPORTS.items()}).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))
    assert set(order) >= set(MODULES)


def test_every_package_says_what_it_is_for():
    folders = {path.parent for path in MODULES.values()}
    missing = [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").is_file()]
    assert missing == []
    for folder in folders:
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf8"))) or ""
        assert "mports" in text and "Begin with" in text, f"{folder}: say what it may import and where to begin"
        assert ast.parse((folder / "__init__.py").read_text(encoding="utf8")).body[1:] == [], (
            f"{folder}: docstring only"
        )


def test_no_folder_is_too_full():
    counts = Counter(path.parent for path in MODULES.values())
    assert {str(folder): n for folder, n in counts.items() if n > MOST_FILES_IN_A_FOLDER} == {}


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
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert set(modules) <= set(json.loads(ran.stdout))
