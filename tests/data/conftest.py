"""Commands of `data` run in this process, small tokenizers, and renames that fail: for all tests of this folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_server import HubServer, stand_in
from standins import write_jsonl
from transformers import AutoTokenizer

from data import encode, synth


class Commands:
    """Runs the `main` of a command in this process."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd

    def run(self, main: Callable[[list[str]], int], *arguments: object, wanted: int = 0) -> pytest.CaptureResult[str]:
        """Return what a command wrote, its child processes included, after it ended with `wanted`."""
        self._capfd.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as end:  # of argparse
            code = int(end.code or 0)
        said = self._capfd.readouterr()
        assert code == wanted, said.err
        return said

    def error(self, main: Callable[[list[str]], int], *arguments: object, wanted: int = 1) -> str:
        """Return the one line that a command which failed wrote."""
        said = self.run(main, *arguments, wanted=wanted)
        assert said.out == "" and said.err.startswith("error: ") and said.err.count("\n") == 1, said
        return said.err


@pytest.fixture
def commands(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


@pytest.fixture
def encoded(commands: Commands) -> Callable[..., dict[str, Any]]:
    """Return what encodes files, one path or several, and gives back the manifest."""

    def run(sources: Path | list[Path], tokenizer: Path, prefix: Path, *more: object) -> dict[str, Any]:
        inputs = [sources] if isinstance(sources, Path) else sources
        given = ("--input", *inputs, "--tokenizer", tokenizer, "--output-prefix", prefix)
        said = commands.run(encode.main, *given, *more)
        manifest = dict(json.loads(prefix.with_name(f"{prefix.name}.json").read_text()))
        assert json.loads(said.out) == manifest
        return manifest

    return run


@pytest.fixture
def like_transformers(tmp_path: Path, encoded) -> Callable[..., dict[str, Any]]:
    """Return what encodes texts, checks that all ids are those of AutoTokenizer, and gives back the manifest."""

    def run(folder: Path, texts: list[str], *more: object) -> dict[str, Any]:
        manifest = encoded(write_jsonl(tmp_path / "texts.jsonl", texts), folder, tmp_path / "pair", *more)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert manifest["vocab_size"] == len(tokenizer)
        assert manifest["eod_token_id"] == tokenizer.eos_token_id
        assert manifest["tokenizer"]["class"] == type(tokenizer).__name__
        tokens = np.fromfile(tmp_path / "pair.bin", dtype=manifest["dtype"]).tolist()
        start = 0
        for text, ids in zip(texts, tokenizer(texts).input_ids, strict=True):
            if ids:
                ids.append(tokenizer.eos_token_id)
            end = start + len(ids)
            assert tokens[start:end] == ids, ascii(text[:80])
            start = end
        assert len(tokens) == start
        return manifest

    return run


@pytest.fixture
def part_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return what sets the size of the parts in which this process encodes."""
    return lambda size: monkeypatch.setattr("data.encoding.parts.PART_BYTES", size)


class Renames:
    """All renames of this process, by which files appear whole; one of them can end the run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.before: dict[str, BaseException] = {}
        """An exception to raise before the file of this name appears."""
        self.after: dict[str, BaseException] = {}
        real = Path.replace

        def replace(path: Path, target: Path) -> Path:
            if error := self.before.pop(target.name, None):
                raise error
            real(path, target)
            self.names.append(target.name)
            if error := self.after.pop(target.name, None):
                raise error
            return target

        monkeypatch.setattr(Path, "replace", replace)


@pytest.fixture
def renames(monkeypatch: pytest.MonkeyPatch) -> Renames:
    return Renames(monkeypatch)


@pytest.fixture(scope="session")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of byte-level BPE tokenizers.

    `plain` has 600 entries and no beginning of text, `bos` puts a token before each document as Llama 3 does, `large`
    has 65,500 entries, the smallest vocabulary whose ids are int32, and its end of text is the largest id.
    """
    folder = tmp_path_factory.mktemp("tokenizers")
    plain = folder / "plain"
    synth.write_tokenizer(plain, seed=1, vocabulary_size=600)
    for name, ids in {"bos": {"size": 602, "eos": 601, "bos": 600}, "large": {"size": 65_500, "eos": 65_499}}.items():
        (folder / name).mkdir()
        for file, content in stand_in(plain, **ids).items():
            (folder / name / file).write_bytes(content)
    return {name: folder / name for name in ("plain", "bos", "large")}


@pytest.fixture(scope="session")
def plain_tokenizer(tokenizers: dict[str, Path]) -> Path:
    return tokenizers["plain"]


# A hub on loopback, and the environment of a process that talks to it.


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture
def environment(hub: HubServer, tmp_path: Path) -> dict[str, str]:
    """The environment of this process without tokens and settings of a user, and with the hub's address."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING", "TRANSFORMERS"))}
    settings = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    return kept | settings | {"NO_PROXY": "127.0.0.1"}
