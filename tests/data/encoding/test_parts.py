"""A killed run continues where it stopped, with the same bytes, and reuses only parts that are certainly its own."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from megatron_reference import TEXTS, write_jsonl

from data.encode import main
from data.encoding import join, parts, worker
from data.encoding.pair import encode
from data.encoding.parts import folder_of, lines_before, spans
from data.engines.guard import why_unusable
from utils.errors import DataError, UnusableError
from utils.provenance.digests import sha256_file
from utils.settings.config import ROOT

KILLS = int(os.environ.get("TPRIMAT_KILLS", "10"))
EXAMPLES = int(os.environ.get("TPRIMAT_FUZZ", "100"))
PATIENCE_SECONDS = 120
GOOD = b'{"text": "fine words"}\n'
RARE = " \U00010940"
"""A letter that is newer than the tables of the reference."""


def pair(prefix: Path) -> list[str]:
    return [sha256_file(prefix.with_name(f"{prefix.name}.{ending}")) for ending in ("bin", "idx")]


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 2000)


@pytest.mark.parametrize("size", [1, 7, 100, 10**6])
def test_parts_are_whole_lines_that_together_are_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", size)
    contents = {"a": b"one\n\ntwo two\nthree", "b": b"", "c": b"\n\n", "d": b"x" * 200_000 + b"\ny\n"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    found = list(spans([tmp_path / name for name in contents]))
    assert [span.number for span in found] == list(range(len(found)))
    for name, content in contents.items():
        pieces = [span.read() for span in found if span.path == tmp_path / name]
        assert b"".join(pieces) == content
        assert all(piece.endswith(b"\n") for piece in pieces[:-1])
        assert all(len(piece) >= size for piece in pieces[:-1])
    for span in found:
        assert lines_before(span) == contents[span.path.name][: span.start].count(b"\n")


def test_several_files_are_encoded_as_one(tmp_path: Path, plain_tokenizer: Path, small_parts: None) -> None:
    first = write_jsonl(tmp_path / "first.jsonl", TEXTS)
    second = write_jsonl(tmp_path / "second.jsonl", TEXTS[::-1])
    first.write_bytes(first.read_bytes().rstrip(b"\n"))  # a last line without its end is a line all the same
    manifest = encode([second, first], plain_tokenizer, tmp_path / "both")
    encode(write_jsonl(tmp_path / "one.jsonl", TEXTS[::-1] + TEXTS), plain_tokenizer, tmp_path / "one")
    assert pair(tmp_path / "both") == pair(tmp_path / "one")
    files = manifest["input"]["files"]
    assert [file["sha256"] for file in files] == [sha256_file(second), sha256_file(first)]
    assert manifest["input"]["bytes"] == first.stat().st_size + second.stat().st_size


def test_either_engine_writes_the_same_pair(tmp_path: Path, bos_tokenizer: Path) -> None:
    texts = [*TEXTS, "\u088f \U00010940", "\u088f", "<|begin|> and more"]
    source = write_jsonl(tmp_path / "in.jsonl", texts)
    names = {engine: encode(source, bos_tokenizer, tmp_path / engine, engine=engine) for engine in ("hf", "auto")}
    assert pair(tmp_path / "hf") == pair(tmp_path / "auto")
    assert names["hf"]["engine"] == {"name": "hf"}
    if names["auto"]["engine"]["name"] == "gigatoken":
        # those with a code point that is newer than the reference's tables
        assert names["auto"]["engine"]["documents_by_reference"] == 2


def test_documents_for_the_reference_are_in_their_places_with_any_number_of_workers(
    tmp_path: Path, plain_tokenizer: Path, bos_tokenizer: Path, small_parts: None
) -> None:
    texts = [f"{number} words" + RARE * (number % 7 == 0) for number in range(300)]
    texts += [f"{number}{RARE}" for number in range(100)] + [RARE] + ["", "fine"] * 50 + [f"the last{RARE}"]
    source = write_jsonl(tmp_path / "in.jsonl", texts)
    for tokenizer in (plain_tokenizer, bos_tokenizer):
        encode(source, tokenizer, tmp_path / "hf", engine="hf")
        for count in (1, 2, 3):
            manifest = encode(source, tokenizer, tmp_path / "auto", count)
            assert pair(tmp_path / "hf") == pair(tmp_path / "auto")
            if manifest["engine"]["name"] == "gigatoken":
                assert manifest["engine"]["documents_by_reference"] == sum(RARE in text for text in texts)


def interrupted(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, after: int = 5) -> Path:
    """Encode until `after` parts are finished, then fail as a full disk does; return the prefix."""
    source, made = tmp_path / "in.jsonl", []
    # one in 40 is for the reference
    lines = [{"text": f"{number} some words of it" + RARE * (number % 40 == 7), "b": "x"} for number in range(1000)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    real = worker.save_part

    def disk_full(*given: object) -> object:
        if len(made) == after:
            raise OSError("no space left")
        made.append(given)
        return real(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(worker, "save_part", disk_full)
        with pytest.raises(OSError, match="no space"):
            encode(source, tokenizer, tmp_path / "out")
    assert parts.finished(folder_of(tmp_path / "out")) == after
    assert not list(tmp_path.glob("out*"))
    return tmp_path / "out"


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the parts that are made from now on."""
    made: list[int] = []
    real = worker.save_part

    def save(folder: Path, found: dict[str, int], *rest: object) -> object:
        made.append(found["number"])
        return real(folder, found, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(worker, "save_part", save)
    return made


def test_finished_parts_are_taken_and_only_the_others_made(
    tmp_path: Path, plain_tokenizer: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = interrupted(tmp_path, plain_tokenizer, monkeypatch)
    made = counted(monkeypatch)
    encode(tmp_path / "in.jsonl", plain_tokenizer, prefix)
    assert made == list(range(5, len(list(spans([tmp_path / "in.jsonl"])))))
    assert not folder_of(prefix).exists()
    encode(tmp_path / "in.jsonl", plain_tokenizer, tmp_path / "whole")
    assert pair(prefix) == pair(tmp_path / "whole")


def other_text(tmp_path: Path) -> None:
    content = bytearray((tmp_path / "in.jsonl").read_bytes())
    content[10:15] = b"other"  # of the same size, in the first part
    (tmp_path / "in.jsonl").write_bytes(bytes(content))


def damaged(name: str, content: bytes | None = None) -> Callable[[Path], None]:
    def change(tmp_path: Path) -> None:
        path = tmp_path / ".out.parts" / name
        path.write_bytes(path.read_bytes()[:-2] + b"\0\1" if content is None else content)

    return change


def swapped(tmp_path: Path) -> None:
    folder = tmp_path / ".out.parts"
    for ending in ("bin", "lengths", "json"):
        shutil.copy(folder / f"000001.{ending}", folder / f"000000.{ending}")


@pytest.mark.parametrize(
    "change",
    [
        other_text,
        damaged("000000.bin"),
        damaged("000000.bin", b""),
        damaged("000000.lengths"),
        pytest.param(
            damaged("000000.reference"),
            marks=pytest.mark.skipif(why_unusable() is not None, reason=str(why_unusable())),
        ),
        damaged("000000.json", b"{}"),
        damaged("000000.json", b""),
        swapped,
    ],
    ids=[
        "other text",
        "changed ids",
        "no ids",
        "lengths",
        "reference",
        "empty manifest",
        "no manifest",
        "another part",
    ],
)
def test_a_part_that_is_stale_damaged_or_of_another_place_is_made_anew(
    tmp_path: Path,
    plain_tokenizer: Path,
    small_parts: None,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
) -> None:
    prefix = interrupted(tmp_path, plain_tokenizer, monkeypatch)
    change(tmp_path)
    made = counted(monkeypatch)
    encode(tmp_path / "in.jsonl", plain_tokenizer, prefix)
    assert made[0] == 0 and made[1:] == list(range(5, made[-1] + 1))
    encode(tmp_path / "in.jsonl", plain_tokenizer, tmp_path / "whole")
    assert pair(prefix) == pair(tmp_path / "whole")


@pytest.mark.parametrize("what", ["tokenizer", "text key", "engine", "on bad line", "version"])
def test_parts_of_another_job_are_all_made_anew(
    tmp_path: Path,
    plain_tokenizer: Path,
    bos_tokenizer: Path,
    small_parts: None,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    prefix = interrupted(tmp_path, plain_tokenizer, monkeypatch)
    others = {"engine": {"engine": "hf"}, "on bad line": {"on_bad_line": "skip"}, "text key": {"text_key": "b"}}
    if what == "version":
        monkeypatch.setattr(worker, "PART_VERSION", 99)
    made = counted(monkeypatch)
    tokenizer = bos_tokenizer if what == "tokenizer" else plain_tokenizer
    encode(tmp_path / "in.jsonl", tokenizer, prefix, **others.get(what, {}))
    assert made[0] == 0 and made == list(range(len(made)))


def test_two_runs_cannot_write_one_pair(tmp_path: Path, plain_tokenizer: Path) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", TEXTS)
    folder_of(tmp_path / "out").mkdir()
    with (folder_of(tmp_path / "out") / "lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UnusableError, match="another run is writing"):
            encode(source, plain_tokenizer, tmp_path / "out")
    encode(source, plain_tokenizer, tmp_path / "out")


def test_an_input_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, plain_tokenizer: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", ["some words of it"] * 1000)
    real = join._take

    def touch(*given: object) -> None:
        os.utime(source, ns=(1, 1))
        real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(join, "_take", touch)
    with pytest.raises(DataError, match=r"in\.jsonl: changed while being read"):
        encode(source, plain_tokenizer, tmp_path / "out")


def test_bad_lines_are_counted_and_said_where_that_is_asked_for(
    tmp_path: Path, plain_tokenizer: Path, small_parts: None, capsys: pytest.CaptureFixture[str]
) -> None:
    good = [json.dumps({"text": f"line {number}"}).encode() + b"\n" for number in range(500)]
    bad = {150: b"oops\n", 300: b"\n", 301: b'{"text": null}\n'}
    (tmp_path / "in.jsonl").write_bytes(b"".join(bad.get(number, line) for number, line in enumerate(good)))
    (tmp_path / "good.jsonl").write_bytes(b"".join(line for number, line in enumerate(good) if number not in bad))
    manifest = encode(tmp_path / "in.jsonl", plain_tokenizer, tmp_path / "out", workers=2, on_bad_line="skip")
    encode(tmp_path / "good.jsonl", plain_tokenizer, tmp_path / "wanted")
    assert pair(tmp_path / "out") == pair(tmp_path / "wanted")
    assert (manifest["bad_lines"], manifest["documents"]) == (3, 497)
    assert "3 bad lines skipped, the first: " in (said := capsys.readouterr().err)
    assert "in.jsonl:151: got invalid JSON, 'oops'" in said


def test_a_killed_worker_is_an_error_and_finished_parts_stay(
    tmp_path: Path, plain_tokenizer: Path, small_parts: None
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", ["some words of it " * 50] * 4000)
    command = arguments(tmp_path, plain_tokenizer)
    process = start(command)
    wait_for(lambda: parts.finished(folder_of(tmp_path / "out")) >= 1, process)
    workers = [child for child in psutil.Process(process.pid).children(recursive=True) if is_worker(child)]
    workers[0].kill()
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1, errors
    assert "error: workers: one of 2 was killed" in errors
    assert parts.finished(folder_of(tmp_path / "out")) >= 1
    assert not list(tmp_path.glob("out*"))
    assert main(command) == 0 and source.exists()


def test_a_run_killed_at_any_moment_goes_on_with_the_same_bytes_and_nobody_is_left(
    tmp_path: Path, plain_tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_jsonl(tmp_path / "in.jsonl", [f"{number} " + "some words of it " * 80 for number in range(20_000)])
    whole = subprocess.run(
        [*python(), *arguments(tmp_path, plain_tokenizer, "whole")], cwd=ROOT, env=environment(), capture_output=True
    )
    assert whole.returncode == 0, whole.stderr
    pick, while_writing = random.Random(KILLS), 0
    for number in range(KILLS):
        process = start(arguments(tmp_path, plain_tokenizer))
        found = set[psutil.Process]()
        try:
            if number % 4 == 3:  # wherever it is then: starting, or at the end
                time.sleep(pick.uniform(0.1, 3))
            else:
                already = parts.finished(folder_of(tmp_path / "out"))
                wait_for(lambda: parts.finished(folder_of(tmp_path / "out")) > already, process)  # noqa: B023
                time.sleep(pick.uniform(0, 0.1))
            found = set(psutil.Process(process.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            pass
        process.kill()
        process.communicate()
        wait_for(lambda: not any(is_alive(child) for child in found), None)  # noqa: B023
        is_writing = parts.finished(folder_of(tmp_path / "out")) > 0 and not (tmp_path / "out.json").exists()
        while_writing += is_writing
        if (tmp_path / "out.json").exists():
            assert pair(tmp_path / "out") == pair(tmp_path / "whole")
            for path in tmp_path.glob("out.*"):
                path.unlink()
    print(f"{KILLS} kills, {while_writing} of them while parts were being written")
    assert while_writing >= KILLS * 0.6
    left = sorted(path.name for path in tmp_path.glob(".out.*.tmp"))
    assert len(left) <= 3, "those of the last killed run only: .bin, .idx, and the manifest"
    capsys.readouterr()
    assert main(arguments(tmp_path, plain_tokenizer)) == 0
    said = capsys.readouterr().err
    assert not left or f"{tmp_path}: removed {', '.join(left)}, left by a run that was killed\n" in said
    assert pair(tmp_path / "out") == pair(tmp_path / "whole")
    pairs = [f"{name}.{ending}" for name in ("out", "whole") for ending in ("bin", "idx", "json")]
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name, *pairs]


lines = st.one_of(
    st.just(GOOD),
    st.text(max_size=20).map(lambda text: json.dumps({"text": text}).encode() + b"\n"),
    st.text(max_size=20).map(
        lambda text: json.dumps({"text": text}, ensure_ascii=False).encode("utf8", "replace") + b"\r\n"
    ),
    st.sampled_from(
        [
            *(
                b"\n",
                b"\r\n",
                b" \n",
                b"{}\n",
                b"null\n",
                b"[]\n",
                b'{"text": null}\n',
                b'{"text": 1}\n',
                b'{"Text": "a"}\n',
            ),
            *(
                b'{"text": "\\ud800"}\n',
                b'{"text": "\\ud83d\\ude42"}\n',
                b'{"text": "\xff"}\n',
                b'{"text": "\xe2\x82\n',
            ),
            *(b'\xef\xbb\xbf{"text": "a"}\n', b"\x00\n", b'{"text": "\\u0000"}\n', b'{"text": "a"} {"text": "b"}\n'),
            *(b'{"text": "a", "text": "b"}\n', b'{"a": NaN, "text": "b"}\n', b'{"a": "\\ud800", "text": "b"}\n'),
            *(b'{"text": "' + b"long " * 3000 + b'"}\n', b"\x1f\x8b\x08\n", b"[" * 5000 + b"\n", b'{"text": "cut'),
        ]
    ),
)


def reference(content: bytes) -> list[str] | int:
    """Return the texts of a file by json alone, one line after the other, or the number of its first bad line."""
    texts, content = [], content.removeprefix(b"\xef\xbb\xbf")
    for number, line in enumerate(content.removesuffix(b"\n").split(b"\n") if content else [], 1):
        try:
            text = json.loads(line.decode("utf8"))["text"]
            text.encode("utf8")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return number
        texts.append(text)
    return texts


def test_any_file_is_the_right_bytes_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, plain_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from data.engines.backend import Encoder

    monkeypatch.setattr(parts, "PART_BYTES", 40)
    folder = tmp_path_factory.mktemp("fuzz")
    encoder = Encoder(plain_tokenizer)

    @settings(max_examples=EXAMPLES, deadline=None)
    @example([b'{"text": "' + b"5" * 50_000_000 + b'"}\n', b"oops"])
    @given(st.lists(lines, max_size=8))
    def check(content: list[bytes]) -> None:
        source, prefix = folder / "in.jsonl", folder / "out"
        source.write_bytes(b"".join(content))
        texts = reference(b"".join(content))
        try:
            manifest = encode(source, plain_tokenizer, prefix)
        except DataError as error:
            if isinstance(texts, int):
                assert str(error).startswith(f"{source}:{texts}: got ")
            else:
                assert "contain no token" in str(error) and not any(texts)
        else:
            assert isinstance(texts, list)
            assert manifest["documents"] == len(texts)
            ids = [token for row in encoder.ids(texts) for token in row]
            assert prefix.with_name("out.bin").read_bytes() == b"".join(token.to_bytes(2, "little") for token in ids)
        assert not folder_of(prefix).exists()

    check()


def arguments(folder: Path, tokenizer: Path, name: str = "out") -> list[str]:
    paths = ["--input", str(folder / "in.jsonl"), "--tokenizer", str(tokenizer)]
    return [*paths, "--output-prefix", str(folder / name), "--workers", "2"]


def python() -> list[str]:
    """Return a command that is data.encode in parts of 64 KiB."""
    return [
        *(sys.executable, "-c"),
        "import sys; from data import encode; from data.encoding import parts\n"
        "parts.PART_BYTES = 1 << 16\n"
        "if __name__ == '__main__': sys.exit(encode.main())",
    ]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*python(), *command],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(is_true: Callable[[], bool], process: subprocess.Popen[str] | None) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_true():
        assert time.monotonic() < deadline
        if process is not None and process.poll() is not None:
            return
        time.sleep(0.005)


def is_worker(process: psutil.Process) -> bool:
    """A worker is a child of the server process, which is a child of the run."""
    try:
        return is_alive(process) and len(process.parents()) > 0 and process.parent().ppid() != os.getpid()
    except psutil.NoSuchProcess:  # it ended between the two questions
        return False


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
