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

from evaluate import compare, extract, fingerprint, mlperf, probe, validate
from example import example_result
from utils.results import store

Captured = pytest.CaptureFixture[str]


def honest(folder: Path) -> Path:
    path = folder / "train_cpu_mega_llama_run1.json"
    store.write(example_result(), path)
    return path


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def large(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def text(content: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_text(content)

    return make


def deep_inside_a_result(path: Path) -> None:
    path.write_text(json.dumps(example_result(note="here")).replace('"here"', "[" * 900 + "]" * 900))


def two_statuses(path: Path) -> None:
    path.write_text(json.dumps(example_result()).replace('{"schema', '{"status": "failed", "schema'))


ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "a link to itself": (loop, "Too many levels of symbolic links"),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), "No such file or directory"),
    "a device": (device, "is a device, wanted a regular file"),
    "a pipe": (os.mkfifo, "is a named pipe, wanted a regular file"),
    "a folder": (Path.mkdir, "is a folder, wanted a regular file"),
    "a large file": (large, "bytes, wanted a regular file of at most"),
    "an empty file": (Path.touch, "is empty"),
    "deep": (text("[" * 100_000), "deeper than 40"),
    "deep inside": (deep_inside_a_result, "deeper than 40"),
    "no number": (text('{"run": NaN}'), "NaN is no finite number"),
    "another format": (text("[1, 2]"), "wanted"),
    "a key twice": (two_statuses, "the key 'status' stands twice"),
}
OF_RESULTS = ("a key twice", "deep inside", "no number")
"""Faults of a result of this suite; the same content under the name of another format has another fault."""
NAMES = ("train_cpu_mega_llama_run2.json", "benchmark_cuda_llama.json", "probe_cpu_example.json")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_file_in_a_folder_is_one_line_beside_the_honest_result(
    tmp_path: Path, capsys: Captured, odd: str, name: str
) -> None:
    make, words = ODD[odd]
    honest(tmp_path)
    make(tmp_path / name)
    with no_hang():
        code = validate.main([str(tmp_path)])
    shown = capsys.readouterr()
    joined = " ".join(shown.out.split())
    assert "Traceback" not in joined + shown.err
    if name.startswith("probe"):
        assert code == 0
    else:
        assert code == 1
        assert "1 of 2 results ok and valid" in shown.err
        if "train" in name or odd not in OF_RESULTS:
            assert all(word in joined for word in words.split()), joined
    with no_hang():
        code = compare.main([str(tmp_path), "--format", "json,md", "--output", str(tmp_path / "out")])
    assert code == compare.NOTHING_COMPARABLE, "one honest result makes no pair"
    assert "Traceback" not in capsys.readouterr().err
    found = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [Path(one["file"]).name for one in found["unreadable"]] == ([] if "probe" in name else [name])


@pytest.mark.parametrize("odd", [odd for odd in ODD if odd not in ("a folder", "another format")])
def test_an_odd_path_on_the_command_line_is_one_line(tmp_path: Path, capsys: Captured, odd: str) -> None:
    make, _ = ODD[odd]
    path = tmp_path / "train_cpu_mega_llama_run1.json"
    make(path)
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
        assert "Traceback" not in shown.err
        assert shown.err.count("\n") <= 2 and len(shown.err) < 1500, shown.err
    assert not (tmp_path / "out.json").exists()


def test_pipes_and_devices_give_no_fingerprint(tmp_path: Path, capsys: Captured) -> None:
    os.mkfifo(tmp_path / "pair.bin")
    device(tmp_path / "pair.idx")
    with no_hang():
        assert fingerprint.main([str(tmp_path / "pair")]) == 2
    assert "pair.bin: is a named pipe, wanted a regular file" in capsys.readouterr().err


def test_prices_in_a_pipe_are_an_error(tmp_path: Path, capsys: Captured) -> None:
    honest(tmp_path)
    os.mkfifo(tmp_path / "prices")
    with no_hang():
        assert compare.main([str(tmp_path), "--prices", str(tmp_path / "prices")]) == 2
    assert "prices: cannot be read (is a named pipe" in capsys.readouterr().err


def test_a_folder_that_vanishes_while_it_is_searched_is_named(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "output"
    folder.mkdir()
    honest(folder)
    walk = os.walk

    def vanishing(top: Any, **options: Any) -> Any:
        shutil.rmtree(folder, ignore_errors=True)
        return walk(top, **options)

    monkeypatch.setattr(os, "walk", vanishing)
    assert validate.main([str(folder)]) in (1, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_a_file_that_vanishes_before_it_is_read_is_named(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest(tmp_path)
    gone = tmp_path / "train_cpu_mega_llama_run2.json"
    find = store.find
    monkeypatch.setattr(store, "find", lambda folders: [*find(folders), gone])
    assert validate.main([str(tmp_path)]) == 1
    assert "No such file" in " ".join(capsys.readouterr().out.split())


def test_a_pipe_in_place_of_a_log_or_a_description_of_mlperf_is_named(tmp_path: Path, capsys: Captured) -> None:
    system = tmp_path / "a" / "b"
    (system / "llama31_8b").mkdir(parents=True)
    os.mkfifo(system / "system.json")
    os.mkfifo(system / "llama31_8b" / "result_0.txt")
    with no_hang():
        assert mlperf.main([str(tmp_path)]) == 1
        assert "named pipe" in capsys.readouterr().err
        assert validate.main([str(tmp_path)]) == 1
    assert "pipe" in capsys.readouterr().out


def test_names_in_a_probe_do_not_reach_the_terminal_as_they_are(tmp_path: Path, capsys: Captured) -> None:
    rates = {"bf16": {"best_tflops": 2.0, "sustained_tflops": 1.0, "spread_percent": 0.1}}
    names = dict.fromkeys(("platform", "host", "device_name", "pytorch_version"), "\x1b[31mred\u202e")
    content = {"probe_version": 1, "started_utc": "2026-11-21T00:00:00+00:00", "rates": rates} | names
    (tmp_path / "probe_cpu_example.json").write_text(json.dumps(content))
    assert probe.main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.replace("\n", "").isprintable() and "\\x1b[31mred\\u202e" in shown
