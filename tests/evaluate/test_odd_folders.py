"""Commands of `evaluate` on folders that hold links to themselves, pipes, devices, folders and broken files.

Each odd file is one line, the honest results beside it are shown, and the exit code is the documented one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nasty import no_hang
from reports import refused
from sides import compared, write

from evaluate import compare, extract, fingerprint, mlperf, validate
from example import example_result

Captured = pytest.CaptureFixture[str]


def large(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


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
    "a large file": (large, "bytes, wanted a regular file of at most"),
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


@pytest.mark.parametrize("odd", [odd for odd in ODD if odd not in ("a folder", "another format")])
def test_an_odd_path_on_the_command_line_is_one_line(tmp_path: Path, capsys: Captured, odd: str) -> None:
    path = tmp_path / "train_cpu_mega_llama_run1.json"
    ODD[odd][0](path)
    commands: list[tuple[Callable[[list[str]], int], list[str]]] = [
        (compare.main, [str(path), "--format", "md"]),
        (validate.main, [str(path)]),
        (validate.main, ["--bundle", str(path)]),
        (mlperf.main, [str(path)]),
        (extract.main, ["--model-name", "llama", "--output", str(tmp_path / "out.json"), "--log-file", str(path)]),
    ]
    for command, arguments in commands:
        with no_hang():
            code = command(arguments)
        shown = capsys.readouterr()
        assert code in (1, 2), (arguments, shown)
        assert "Traceback" not in shown.err and shown.err.count("\n") <= 2 and len(shown.err) < 1500, shown.err
    assert not (tmp_path / "out.json").exists()


def test_a_pipe_in_place_of_data_or_prices_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, [example_result()])
    for name in ("pair.bin", "prices"):
        os.mkfifo(tmp_path / name)
    link("/dev/zero")(tmp_path / "pair.idx")
    with no_hang():
        assert "pair.bin: is a named pipe, wanted a regular file" in refused(fingerprint.main, tmp_path / "pair")
        prices = refused(compare.main, tmp_path, "--prices", tmp_path / "prices")
    assert "prices: cannot be read (is a named pipe" in prices


def test_a_pipe_in_place_of_a_log_or_a_description_of_mlperf_is_named(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "a" / "b" / "llama31_8b").mkdir(parents=True)
    for name in ("system.json", "llama31_8b/result_0.txt"):
        os.mkfifo(tmp_path / "a" / "b" / name)
    with no_hang():
        assert (mlperf.main([str(tmp_path)]), validate.main([str(tmp_path)])) == (1, 1)
    shown = capsys.readouterr()
    assert "named pipe" in shown.err and "pipe" in shown.out


@pytest.mark.parametrize("what", ["the folder", "a file"])
def test_what_vanishes_while_it_is_searched_is_named(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    folder, walk = write(tmp_path / "output", [example_result()]), os.walk

    def vanishing(top: Any, **options: Any) -> Any:
        if what == "the folder":
            shutil.rmtree(folder, ignore_errors=True)
        for place, folders, files in walk(top, **options):
            yield place, folders, [*files, "train_gone.json"]

    monkeypatch.setattr(os, "walk", vanishing)
    assert validate.main([str(folder)]) in (1, 2)
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    assert what == "the folder" or "No such file" in " ".join(shown.out.split())
