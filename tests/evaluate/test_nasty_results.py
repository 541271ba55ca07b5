"""Whatever stands in a result or in its place, a command gives a line or a harmless report, and the documented code."""

from __future__ import annotations

import copy
import json
import math
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from changes import MOE, energy, stated
from processes import no_hang
from sides import both, compared, run, write

from evaluate import compare, history, validate
from example import example_result

Captured = pytest.CaptureFixture[str]
Place = tuple[Any, ...]
DIGITS = "@a number of 5,000 digits@"
LARGE = "@a number that no float holds@"
DEEP = "@100,000 brackets@"
TWICE = "@an object with a key twice@"
LITERALS = {DIGITS: "9" * 5000, LARGE: "1e400", DEEP: "[" * 100_000 + "]" * 100_000, TWICE: '{"a": 1, "a": 2}'}
"""JSON that json.dumps does not write, by the text that stands for it."""
NASTY: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    -0.0,
    0.5,
    7,
    1_000_000,
    10**12,
    2**63 - 1,
    2**63,
    10**300,
    1e-310,
    5e-324,
    1e-12,
    1e18,
    1e308,
    -1e308,
    math.nan,
    math.inf,
    -math.inf,
    "",
    " ",
    "x",
    "N/A",
    "-1",
    "1e400",
    "\0",
    "\ud800",
    "\x1b[31mred",
    "a\nb",
    "\u202eabc",
    "x" * 5000,
    "2026-11-21T00:00:00",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "<script>",
    "$x^2$",
    "| a | b |",
    [],
    [[]],
    [None],
    ["x"],
    [{}],
    [1, "x"],
    [1e308] * 3,
    {},
    {"x": None},
    {"x": {"x": []}},
    {"": 0},
    {"reasons": 1},
    *LITERALS,
)
"""Values that no honest result has."""
GONE = object()
PART, WHOLE = 20, 300
"""Numbers of cases of the quick part and of everything."""
BY = ("platform", "framework", "machine", "nodes", "label")


def places(value: Any, here: Place = ()) -> Iterator[Place]:
    """Yield the place of each value inside an object or a list; of a list only its ends and its middle."""
    inside = list(value) if isinstance(value, dict) else []
    if isinstance(value, list) and value:
        inside = sorted({0, len(value) // 2, len(value) - 1})
    for key in inside:
        yield (*here, key)
        yield from places(value[key], (*here, key))


def full_run(platform: str = "nvd", number: int = 1) -> dict[str, Any]:
    """Return an honest result with a value in each of its sections."""
    result = run(
        platform,
        number,
        **{"model": "qwen3moe", "model_size": "full", "memory_metrics__peak_memory_allocated_gb": 60.0, **both(ep=8)},
        **{f"resolved_config__{key}": value for key, value in MOE.items()},
        # 100 steps of 64 x 128 tokens, which each of 48 layers sends to 8 of 128 experts
        experts={"tokens": [2_457_600] * 128, "fullest_share": [1 / 128] * 100},
    )
    stated(throttle_after=["hw_slowdown"])(result)
    energy(5000.0, 5000 / 4800, 5000 / 4800)(result)
    result["provenance"] |= {"hosts": ["node0"], "environment": {"NCCL_NVLS_ENABLE": "1", "OTHER": "x"}}
    return result


HONEST = full_run()
PLACES = list(places(HONEST))
OTHERS = [full_run(platform, number) for platform in ("nvd", "amd") for number in (1, 2, 3)][1:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("results"), OTHERS)


def judged(folder: Path, text: str, number: int = 0) -> tuple[int, dict[str, Any]]:
    """Check and compare a result beside honest ones; return the exit code of the check and the compare.json.

    Case by case another property differs, and every tenth has pages too, and a history.
    """
    (folder / "train_999.json").write_text(text, encoding="utf8")
    has_pages = number % 10 == 0
    formats = "json,md,html" if has_pages else "json,md"
    with no_hang():
        code = validate.main([str(folder)])
        compared = compare.main([str(folder), "--format", formats, "--by", BY[number % len(BY)]])
        assert not has_pages or history.main([str(folder), "--output", str(folder)]) in (0, 1, 3)
    assert code in (0, 1) and compared in (0, 1, compare.NOTHING_COMPARABLE)
    return code, json.loads((folder / "compare.json").read_text(), parse_constant=pytest.fail)


def test_the_honest_results_count(folder: Path) -> None:
    code, found = judged(folder, json.dumps(HONEST))
    assert code == 0 and found["verdicts"][0]["runs"] == [3, 3]


@pytest.mark.parametrize(
    "count", [PART, pytest.param(WHOLE, marks=pytest.mark.full("300 cases of nasty values, about 60 s"))]
)
def test_a_nasty_value_or_a_missing_one_in_any_place_is_refused_or_harmless(
    folder: Path, capsys: Captured, count: int
) -> None:
    draw = random.Random(15)
    cases = draw.sample([(place, value) for place in PLACES for value in NASTY], count)
    for number, (place, value) in enumerate([*cases, *((place, GONE) for place in draw.sample(PLACES, count // 6))]):
        print(f"{place} = {str(value)[:60]!r}")  # pytest shows the last one of a failure
        result = copy.deepcopy(HONEST)
        inside = result
        for key in place[:-1]:
            inside = inside[key]
        inside[place[-1]] = value
        if value is GONE:
            del inside[place[-1]]
        content = json.dumps(result)
        for name, literal in LITERALS.items():
            content = content.replace(json.dumps(name), literal)
        _, found = judged(folder, content, number)
        shown = capsys.readouterr()
        assert shown.out.replace("\n", "").isprintable()
        reasons = [one["reason"] for one in found["unreadable"]]
        assert all(len(reason.splitlines()) == 1 and len(reason) < 8000 for reason in reasons)


# Links to themselves, pipes, devices, folders and broken files are one line each beside the honest results.


def text(content: str) -> Callable[[Path], Any]:
    return lambda path: path.write_text(content)


def link(to: str | None = None) -> Callable[[Path], Any]:
    """Return a maker of a link, to itself by default."""
    return lambda path: path.symlink_to(to or path.name)


RESULT = json.dumps(example_result(note="here"))
ODD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a link to itself": (link(), "Too many levels of symbolic links"),
    "a link to nothing": (link("nowhere"), "No such file or directory"),
    "a device": (link("/dev/zero"), "is a device, wanted a regular file"),
    "a pipe": (os.mkfifo, "is a named pipe, wanted a regular file"),
    "a folder": (Path.mkdir, "is a folder, wanted a regular file"),
    "an empty file": (Path.touch, "is empty"),
    "deep": (text("[" * 100_000), "deeper than 40"),
    "deep inside": (text(RESULT.replace('"here"', "[" * 900 + "]" * 900)), "deeper than 40"),
    "no number": (text('{"run": NaN}'), "NaN is no finite number"),
    "another format": (text("[1, 2]"), "wanted"),
    "a key twice": (text(RESULT.replace('{"schema', '{"status": "failed", "schema')), "the key 'status' stands twice"),
}
OF_RESULTS = ("a key twice", "deep inside", "no number")
"""Faults of a result of this suite; the same content under the name of another format has another fault."""
FILES = ("train_cpu_mega_llama_run2.json", "benchmark_cuda_llama.json", "probe_cpu_example.json")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_file_in_a_folder_is_one_line_beside_the_honest_result(
    tmp_path: Path, capsys: Captured, odd: str, name: str
) -> None:
    make, words = ODD[odd]
    make(write(tmp_path, [example_result()]) / name)
    is_probe = name.startswith("probe")
    with no_hang():
        assert validate.main([str(tmp_path)]) == (0 if is_probe else 1)
        shown = capsys.readouterr()
        found = compared(tmp_path, "--format", "json,md", code=compare.NOTHING_COMPARABLE)
    joined = " ".join(shown.out.split())
    assert "Traceback" not in joined + shown.err + capsys.readouterr().err
    assert is_probe or "1 of 2 results ok and valid" in shown.err
    if name.startswith("train") or (not is_probe and odd not in OF_RESULTS):
        assert all(word in joined for word in words.split()), joined
    assert [Path(one["file"]).name for one in found["unreadable"]] == ([] if is_probe else [name])
