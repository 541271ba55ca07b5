"""Encoded pairs have the bytes of megatron-core, and a failed run leaves nothing behind."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from housekeeping import tree
from megatron_reference import TEXTS, megatron_pair, write_jsonl

from data.encode import main
from data.encoding import pair, parts
from data.encoding.pair import encode
from utils.dataset.indexed import check, load_manifest
from utils.errors import DataError, UnusableError
from utils.provenance.digests import sha256_file, sha256_tokenizer
from utils.results.store import write_json
from utils.settings.config import ROOT

GOOD = b'{"text": "fine"}\n'


@pytest.mark.parametrize("kind", ["plain", "bos", "large"])
def test_pair_is_the_one_that_megatron_writes(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    monkeypatch.setattr(parts, "PART_BYTES", 50)  # so that parts begin and end between all kinds of lines
    tokenizer = request.getfixturevalue(f"{kind}_tokenizer")
    texts = [*TEXTS, "<|last|> <|begin|>"]
    manifest = encode(write_jsonl(tmp_path / "in.jsonl", texts), tokenizer, tmp_path / "ours")
    megatron_pair(tmp_path / "theirs", texts, tokenizer)
    for ending in ("bin", "idx"):
        assert (tmp_path / f"ours.{ending}").read_bytes() == (tmp_path / f"theirs.{ending}").read_bytes()

    theirs = IndexedDataset(str(tmp_path / "ours"))
    assert manifest["dtype"] == theirs.index.dtype.__name__ == ("int32" if kind == "large" else "uint16")
    assert manifest["sequences"] == len(theirs)
    assert manifest["documents"] == len(theirs.document_indices) - 1 == len(texts)
    assert manifest["tokens"] == sum(theirs.sequence_lengths)
    # an empty text is an empty document, unless the tokenizer begins every text with a token
    assert len(theirs) == len(texts) - (0 if kind == "bos" else 3)
    if kind == "large":
        assert 65499 in theirs[len(theirs) - 1]


def test_manifest_tells_what_went_in_and_came_out(tmp_path: Path, plain_tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", TEXTS)
    manifest = encode(source, plain_tokenizer, tmp_path / "new" / "out.v1")
    assert load_manifest(tmp_path / "new" / "out.v1") == manifest
    assert manifest["input"] == {"name": "in.jsonl", "sha256": sha256_file(source), "bytes": source.stat().st_size}
    assert manifest["bytes_of_text"] == sum(len(text.encode()) for text in TEXTS)
    assert manifest["bin_sha256"] == sha256_file(tmp_path / "new" / "out.v1.bin")
    assert manifest["idx_sha256"] == sha256_file(tmp_path / "new" / "out.v1.idx")
    assert manifest["bin_bytes"] == (tmp_path / "new" / "out.v1.bin").stat().st_size
    assert manifest["tokenizer"]["sha256"] == sha256_tokenizer(plain_tokenizer)
    assert (manifest["vocab_size"], manifest["eod_token_id"], manifest["append_eod"]) == (600, 0, True)
    assert str(tmp_path) not in json.dumps(manifest)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["out.v1.bin", "out.v1.idx", "out.v1.json"]


def test_any_number_of_workers_writes_the_same_bytes(
    tmp_path: Path, plain_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 200)
    source = write_jsonl(tmp_path / "in.jsonl", [f"{number} {text}" for number in range(20) for text in TEXTS[:6]])
    manifests = [encode(source, plain_tokenizer, tmp_path / f"out{count}", workers=count) for count in (1, 2, 3)]
    assert manifests[0] == manifests[1] == manifests[2]
    assert manifests[0]["documents"] == 120
    for ending in ("bin", "idx"):
        assert len({(tmp_path / f"out{count}.{ending}").read_bytes() for count in (1, 2, 3)}) == 1


def test_line_endings_do_not_change_the_tokens(tmp_path: Path, plain_tokenizer: Path) -> None:
    lines = [json.dumps({"text": text}).encode() for text in TEXTS]
    digests = set()
    for name, content in (
        ("unix", b"\n".join(lines) + b"\n"),
        ("dos", b"\r\n".join(lines) + b"\r\n"),
        ("open", b"\n".join(lines)),
    ):
        (tmp_path / name).write_bytes(content)
        digests.add(encode(tmp_path / name, plain_tokenizer, tmp_path / f"{name}_out")["bin_sha256"])
    assert len(digests) == 1


def test_a_bad_line_leaves_the_earlier_pair_and_nothing_else(tmp_path: Path, plain_tokenizer: Path) -> None:
    source, prefix = write_jsonl(tmp_path / "in.jsonl", TEXTS), tmp_path / "out"
    encode(source, plain_tokenizer, prefix)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path != source}
    source.write_bytes(GOOD + b"oops\n" + GOOD)
    with pytest.raises(DataError, match=r"in\.jsonl:2: got invalid JSON, 'oops'"):
        encode(source, plain_tokenizer, prefix)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path != source} == before


def test_a_pair_that_is_being_replaced_has_no_manifest_of_the_earlier_one(
    tmp_path: Path, plain_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "out"
    encode(write_jsonl(tmp_path / "in.jsonl", TEXTS), plain_tokenizer, prefix)

    def no_space(content: dict[str, object], path: Path, **given: object) -> None:
        if path == tmp_path / "out.json":
            raise OSError("no space left")
        write_json(content, path, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(pair, "write_json", no_space)
    with pytest.raises(OSError, match="no space"):
        encode(write_jsonl(tmp_path / "in.jsonl", TEXTS[:1]), plain_tokenizer, prefix)
    assert check(prefix).documents == 1
    with pytest.raises(UnusableError, match=r"out\.json: no such file"):
        load_manifest(prefix)


def linked(make: str) -> Callable[[Path], tuple[Path, Path]]:
    """Return a function that makes an input and a prefix with `out.json` as a link of this sort to the input."""

    def case(folder: Path) -> tuple[Path, Path]:
        source = write_jsonl(folder / "in.jsonl", TEXTS)
        getattr((folder / "out.json"), make)(source)
        return source, folder / "out"

    return case


def named(name: str, prefix: str) -> Callable[[Path], tuple[Path, Path]]:
    """Return a function that makes an input of this name and returns it with a prefix; {up} is another way there."""

    def case(folder: Path) -> tuple[Path, Path]:
        (folder / name).parent.mkdir(exist_ok=True)
        return write_jsonl(folder / name, TEXTS), folder / prefix.format(up=f"../{folder.name}")

    return case


def under_a_link(folder: Path) -> tuple[Path, Path]:
    write_jsonl(folder / "out.bin", TEXTS)
    (folder / "in.jsonl").symlink_to(folder / "out.bin")
    return folder / "in.jsonl", folder / "out"


@pytest.mark.parametrize(
    "case",
    [
        *(named("corpus.json", "corpus"), named("corpus.bin", "corpus"), named("corpus.idx", "{up}/corpus")),
        *(linked("symlink_to"), linked("hardlink_to"), under_a_link, named(".out.parts/000000.json", "out")),
        *(named("in.jsonl", "tok/tokenizer"), named("in.jsonl", "tok/special_tokens_map"), named("in.jsonl", "own/x")),
    ],
    ids=[
        *("manifest", "bin", "idx by another path", "symbolic link", "hard link", "input is a link", "in the parts"),
        *("tokenizer", "tokenizer file that is not there", "hard link to the tokenizer"),
    ],
)
def test_an_output_that_is_an_input_or_of_the_tokenizer_is_refused_before_anything_is_written(
    tmp_path: Path,
    plain_tokenizer: Path,
    capsys: pytest.CaptureFixture[str],
    case: Callable[[Path], tuple[Path, Path]],
) -> None:
    source, prefix = case(tmp_path)
    shutil.copytree(plain_tokenizer, tmp_path / "tok")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "x.idx").hardlink_to(tmp_path / "tok" / "tokenizer.json")
    before = tree(tmp_path)
    arguments = ["--input", str(source), "--tokenizer", str(tmp_path / "tok"), "--output-prefix", str(prefix)]
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "would be written, and is also an input" in said.err
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "moment", [f"{place} of {name}" for name in ("out.bin", "out.idx") for place in ("before", "after")]
)
def test_a_run_that_is_killed_while_it_replaces_a_pair_is_taken_up(
    tmp_path: Path, plain_tokenizer: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    prefix = tmp_path / "out"
    encode(write_jsonl(tmp_path / "first.jsonl", TEXTS[:3]), plain_tokenizer, prefix)
    place, _, name = moment.split()
    real = Path.replace

    def replace(path: Path, target: Path) -> Path:
        if target.name == name and place == "before":
            raise KeyboardInterrupt
        real(path, target)
        if target.name == name:
            raise KeyboardInterrupt
        return target

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            encode(write_jsonl(tmp_path / "second.jsonl", TEXTS), plain_tokenizer, prefix)
    assert not (tmp_path / "out.json").exists()
    third = write_jsonl(tmp_path / "third.jsonl", TEXTS[::-1] * 2)
    assert encode(third, plain_tokenizer, prefix) == encode(third, plain_tokenizer, tmp_path / "whole")
    assert (tmp_path / "out.bin").read_bytes() == (tmp_path / "whole.bin").read_bytes()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("content", [b"", b'{"text": ""}\n' * 3])
def test_an_input_without_a_token_is_refused(tmp_path: Path, plain_tokenizer: Path, content: bytes) -> None:
    (tmp_path / "in.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=r"in\.jsonl: the [03] documents contain no token"):
        encode(tmp_path / "in.jsonl", plain_tokenizer, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_ids_with_gaps_are_refused_because_an_embedding_ends_at_their_number(
    tmp_path: Path, plain_tokenizer: Path
) -> None:
    folder = tmp_path / "gaps"
    folder.mkdir()
    content = json.loads((plain_tokenizer / "tokenizer.json").read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 70_000, "content": "<|far|>"})
    content["model"]["vocab"]["<|far|>"] = 70_000
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text((plain_tokenizer / "tokenizer_config.json").read_text())
    with pytest.raises(DataError, match="produces id 70000, but has 601 entries"):
        encode(write_jsonl(tmp_path / "in.jsonl", ["a <|far|>"]), folder, tmp_path / "out")


def arguments(tmp_path: Path, tokenizer: Path, *more: str) -> list[str]:
    paths = ["--input", str(tmp_path / "in.jsonl"), "--tokenizer", str(tokenizer)]
    return [*paths, "--output-prefix", str(tmp_path / "out"), *more]


def test_the_command_prints_the_manifest(
    tmp_path: Path, plain_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_text('{"content": "a"}\n')
    assert main(arguments(tmp_path, plain_tokenizer, "--text-key", "content")) == 0
    assert json.loads(capsys.readouterr().out) == load_manifest(tmp_path / "out")


@pytest.mark.parametrize("fault", ["input", "tokenizer", "empty folder", "broken tokenizer", "no eos", "workers"])
def test_what_cannot_be_used_is_one_line_and_exit_2(
    tmp_path: Path, plain_tokenizer: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    tokenizer, more = plain_tokenizer, ()
    if fault != "input":
        (tmp_path / "in.jsonl").write_bytes(GOOD)
    if fault == "tokenizer":
        tokenizer = tmp_path / "gone"
    if fault in ("empty folder", "broken tokenizer", "no eos"):
        tokenizer = tmp_path / "tokenizer"
        tokenizer.mkdir()
    if fault in ("broken tokenizer", "no eos"):
        content = '{"model": 1}' if fault == "broken tokenizer" else (plain_tokenizer / "tokenizer.json").read_text()
        (tokenizer / "tokenizer.json").write_text(content)
        (tokenizer / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    if fault == "workers":
        more = ("--workers", "0")
    before = sorted(tmp_path.rglob("*"))
    assert main(arguments(tmp_path, tokenizer, *more)) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and said.err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_bad_line_among_workers_is_exit_1_with_file_and_line_and_no_process_left(
    tmp_path: Path,
    plain_tokenizer: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 100)
    (tmp_path / "in.jsonl").write_bytes(GOOD * 1000 + b'{"text": null}\n' + GOOD * 1000)
    assert main(arguments(tmp_path, plain_tokenizer, "--workers", "2")) == 1
    said = capsys.readouterr()
    assert said.out == "" and "in.jsonl:1001: got text = None" in said.err and said.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_run_that_is_stopped_leaves_its_finished_parts_and_no_process(
    tmp_path: Path, plain_tokenizer: Path, number: signal.Signals, code: int
) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'{"text": "%s"}\n' % (b"pot " * 2000) * 5000)
    # the reference engine needs seconds for the parts after the first one, so the signal arrives during the work
    process = start(arguments(tmp_path, plain_tokenizer, "--workers", "2", "--engine", "hf"))
    deadline = time.monotonic() + 60
    while not parts.finished(tmp_path / ".out.parts"):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.parts", "in.jsonl"]
    assert not group_is_alive(process.pid)


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "data.encode", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def group_is_alive(group: int) -> bool:
    # the helper processes of multiprocessing end a moment after their parent
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    return True


MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize("engine", ["hf", "auto"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_byte_order_mark_at_the_start_of_each_file_changes_no_token(
    tmp_path: Path, plain_tokenizer: Path, monkeypatch: pytest.MonkeyPatch, engine: str, workers: int
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 50)
    sources = [write_jsonl(tmp_path / f"{number}.jsonl", texts) for number, texts in enumerate((TEXTS[:4], TEXTS[4:]))]
    encode(sources, plain_tokenizer, tmp_path / "plain")
    for source in sources:
        source.write_bytes(MARK + source.read_bytes())
    (tmp_path / "only.jsonl").write_bytes(MARK)
    manifest = encode([*sources, tmp_path / "only.jsonl"], plain_tokenizer, tmp_path / "marked", workers, engine=engine)
    for ending in ("bin", "idx"):
        assert (tmp_path / f"marked.{ending}").read_bytes() == (tmp_path / f"plain.{ending}").read_bytes()
    assert [file["sha256"] for file in manifest["input"]["files"]][:2] == [sha256_file(source) for source in sources]


@pytest.mark.parametrize("engine", ["hf", "auto"])
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    ("line", "message"),
    [
        (MARK + GOOD, "in.jsonl:3: got invalid JSON, "),  # only the start of a file is that of a file
        (b'{"deep": ' + b"[" * 100_000 + b"]" * 100_000 + b', "text": "a"}\n', "in.jsonl:3: got invalid JSON, "),
        (json.dumps(dict.fromkeys(map(str, range(200_000)))).encode() + b"\n", "in.jsonl:3: got the keys ['0', '1', "),
    ],
    ids=["mark", "nesting", "keys"],
)
def test_a_line_that_is_too_much_is_one_short_line(
    tmp_path: Path,
    plain_tokenizer: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    workers: str,
    line: bytes,
    message: str,
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 20)
    (tmp_path / "in.jsonl").write_bytes(GOOD * 2 + line)
    assert main(arguments(tmp_path, plain_tokenizer, "--workers", workers, "--engine", engine)) == 1
    said = capfd.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and message in said.err and len(said.err) < 700


def test_utf_16_is_named(tmp_path: Path, plain_tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.jsonl").write_bytes(GOOD.decode().encode("utf-16"))
    assert main(arguments(tmp_path, plain_tokenizer)) == 1
    said = capsys.readouterr().err
    assert "in.jsonl:1: got UTF-16 or UTF-32, " in said and "iconv" in said and said.count("\n") == 1
