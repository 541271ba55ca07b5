"""Write a `.bin/.idx` pair from JSONL files, with a manifest beside it: each whole or not at all, the manifest last."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from data.encoding.join import Totals, join
from data.encoding.parts import folder_of, has_finished_parts, is_parts_folder, most_parts
from data.encoding.worker import EncodeJob
from data.encoding.workers import start_workers, usable
from data.hub.licences import OWN_TEXT, OWN_TOKENIZER
from data.reading.sources import require_each_once
from data.reading.tokenizer import Encoder
from utils.dataset.indexed import DTYPES, HEADER, MAGIC, VERSION, bin_path, idx_path, manifest_path, pointers
from utils.dataset.manifest import MANIFEST_VERSION, joined, name_of
from utils.errors import DataError, UnusableError
from utils.files import write_whole, written_whole
from utils.own_files import anything, content_of, json_with, note, require_apart, require_ours
from utils.provenance.digests import TOKENIZER_FILES, sha256_file, sha256_json, sha256_tokenizer
from utils.results.store import write_json
from utils.settings.keys import ON_BAD

NO_JSONL = (".parquet", ".gz", ".zst", ".txt", ".csv", ".tsv", ".zip")
"""Endings of files that data.clean reads, or that nothing here reads."""
ENGINE = {"name": "hf"}
"""Encoder of a pair, for its manifest; a pair that an earlier version encoded may have another with the same ids."""
is_manifest = json_with("format_version", "documents", "sequences", "tokens", "bin_sha256", "idx_sha256")
"""Recogniser of a manifest of any version."""


def encode(
    input: Path | Sequence[Path],
    tokenizer: Path,
    output_prefix: Path,
    workers: int = 1,
    text_key: str = "text",
    *,
    on_bad_line: str = "error",
    extra_manifest: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write `.bin`, `.idx` and `.json` (the manifest, last) at `output_prefix`, each whole or not at all.

    Returns the manifest. `tokenizer` is a folder that AutoTokenizer loads. No more than `workers` processes encode, and
    no more than there are cores or parts. An earlier pair is replaced; its manifest is removed first. `extra_manifest`
    is added to the manifest; by default it states that text and tokenizer are the user's own. Parts that an earlier run
    of the same work finished are reused. SHA-256 of `.bin` is computed while it is written.
    Raises UnusableError for an unusable input, tokenizer or number of workers, and as `check_places`; DataError
    for a bad line, an input that changed during the run or one without any token, and WorkerError if a worker process
    died.
    """
    inputs = [input] if isinstance(input, Path) else list(input)
    _check_arguments(inputs, workers, on_bad_line)
    check_places(inputs, tokenizer, output_prefix)
    workers = usable(workers, most_parts(inputs))
    if workers > 1:
        # before transformers is imported here, so that both happen at once
        start_workers()
    encoder = Encoder(tokenizer, text_key)
    # before anything is written, because it refuses an unusable tokenizer
    content = encoder.for_tokenizers()
    with _working_folder(output_prefix) as folder:
        job = _job(folder, encoder, content, on_bad_line)
        pair = bin_path(output_prefix), idx_path(output_prefix)
        with written_whole(*pair, is_ours=partial(_is_ours, output_prefix)) as (data, index):
            totals = join(data, inputs, job, workers)
            lengths = np.concatenate(totals.lengths)
            _write_documents(index, inputs, encoder, lengths)
            manifest = _manifest(encoder, inputs, totals, lengths, sha256_file(index))
            manifest |= extra_manifest or {}
            _move_manifest(manifest, output_prefix)
        # the last file: a pair without a manifest counts as unfinished
        write_json(manifest, manifest_path(output_prefix))
    return manifest


def check_places(inputs: Sequence[Path], tokenizer: Path, output_prefix: Path) -> None:
    """Check, before anything is written, that no file of a user is in the place of an output.

    Raises UnusableError if an output is also an input or a file of the tokenizer, and ForeignFileError if it exists and
    data.encode did not write it.
    """
    pair = [bin_path(output_prefix), idx_path(output_prefix)]
    manifest = manifest_path(output_prefix)
    folder = folder_of(output_prefix)
    read = [*inputs, tokenizer, *tokenizer.glob("*")]
    # transformers would read a file with one of these names, although it is not there yet
    read += [tokenizer / name for name in TOKENIZER_FILES]
    # the folder of the parts must not be the folder of an input
    read += [path.resolve().parent for path in inputs]
    require_apart([*pair, manifest, folder], read)
    require_ours(is_manifest, manifest)
    require_ours(is_parts_folder, folder, is_folder=True)
    require_ours(partial(_is_ours, output_prefix), *pair)


def _is_ours(prefix: Path, path: Path) -> bool:
    """Recognise a file of an earlier pair by its manifest, which is in the working folder if a run was killed."""
    manifests = [manifest_path(prefix), *folder_of(prefix).glob("manifest-*.json")]
    return any(_is_described(path, manifest) for manifest in manifests)


def _is_described(path: Path, manifest: Path) -> bool:
    """Recognise a `.bin` or `.idx` that `data.encode` wrote: it has the size that `manifest` records.

    A pair of another program is not the suite's, although `data.verify` can write a manifest for it, which names no
    input.
    """
    if not manifest.exists() or not is_manifest(manifest):
        return False
    known = json.loads(content_of(manifest))
    if known.get("input") is None:
        return False
    size = known["bin_bytes"]
    if path.suffix != ".bin":
        # a sequence has its length (4 bytes) and its place (8), a document the number of its first sequence (8)
        size = HEADER.size + 12 * known["sequences"] + 8 * (known["documents"] + 1)
    return bool(path.stat().st_size == size)


def _move_manifest(manifest: dict[str, Any], prefix: Path) -> None:
    """Take an earlier manifest away, so that the pair counts as unfinished until the new one is written.

    Both are kept in the working folder, by which `_is_ours` recognises the files of a run that is killed meanwhile.
    """
    folder = folder_of(prefix)
    earlier = manifest_path(prefix)
    write_json(manifest, folder / f"manifest-{sha256_json(manifest)[:16]}.json", is_ours=anything)
    if earlier.exists():
        earlier.replace(folder / f"manifest-{sha256_file(earlier)[:16]}.json")


def job_of(
    input: Sequence[Path],
    tokenizer: Path,
    output_prefix: Path,
    text_key: str = "text",
    *,
    on_bad_line: str = "error",
) -> EncodeJob:
    """Return the job that `encode` with these arguments runs on each part, for a task that encodes some of them."""
    _check_arguments(list(input), 1, on_bad_line)
    encoder = Encoder(tokenizer, text_key)
    return _job(folder_of(output_prefix), encoder, encoder.for_tokenizers(), on_bad_line)


def _job(folder: Path, encoder: Encoder, content: str | None, on_bad_line: str) -> EncodeJob:
    """Return the job of a run, after writing `content`, its tokenizer.json, into the folder of the part files."""
    path = encoder.folder
    if content is not None:
        path = folder / "tokenizer.json"
        write_whole(path, content, is_ours=anything, fsync=False)
    skips_bad_lines = on_bad_line == "skip"
    # all that determines the bytes of a part: one that was made with another identity is made again
    identity = {
        "tokenizer": sha256_tokenizer(encoder.folder),
        "content": content,
        "eod": encoder.eod,
        "vocabulary_size": encoder.vocabulary_size,
        "text_key": encoder.text_key,
        "on_bad_line": skips_bad_lines,
        "versions": _versions(),
    }
    return EncodeJob(
        folder=folder,
        tokenizer=path,
        tokenizer_folder=encoder.folder,
        vocabulary_size=encoder.vocabulary_size,
        eod=encoder.eod,
        text_key=encoder.text_key,
        skips_bad_lines=skips_bad_lines,
        identity=sha256_json(identity),
    )


def _write_documents(path: Path, inputs: list[Path], encoder: Encoder, lengths: npt.NDArray[np.int64]) -> None:
    """Write the `.idx` of documents with these numbers of tokens; an empty document has no sequence."""
    is_sequence = lengths > 0
    if not is_sequence.any():
        names = " ".join(str(path) for path in inputs)
        raise DataError(f"{names}: the {len(lengths):,} documents contain no token; name a file with text")
    write_index(path, encoder.dtype, lengths[is_sequence], np.append(0, np.cumsum(is_sequence)))


def write_index(
    path: Path, dtype: np.dtype[Any], sequence_lengths: npt.ArrayLike, document_indices: npt.ArrayLike
) -> None:
    """Write an `.idx` to `path`; see `utils.dataset.indexed.Index` for the arguments.

    Raises DataError for a sequence of more than 2^31 - 1 tokens.
    """
    wide = np.asarray(sequence_lengths, dtype=np.int64)
    if wide.size and wide.max() > np.iinfo(np.int32).max:
        raise DataError(f"{path}: a document of {wide.max():,} tokens, an .idx holds at most 2^31 - 1; split it")
    lengths = wide.astype("<i4")
    indices = np.asarray(document_indices, dtype="<i8")
    (code,) = (code for code, known in DTYPES.items() if known == dtype)
    with path.open("wb") as file:
        file.write(HEADER.pack(MAGIC, VERSION, code, len(lengths), len(indices)))
        file.write(lengths.tobytes())
        file.write(pointers(lengths, dtype.itemsize).astype("<i8").tobytes())
        file.write(indices.tobytes())


def _manifest(
    encoder: Encoder, inputs: list[Path], totals: Totals, lengths: npt.NDArray[np.int64], idx_sha256: str
) -> dict[str, Any]:
    files = []
    for path, digest, size in zip(inputs, totals.read, totals.sizes, strict=True):
        files.append({"name": name_of(path), "sha256": digest.hexdigest(), "bytes": size})
    return manifest_of(
        encoder,
        documents=len(lengths),
        sequences=int(np.count_nonzero(lengths)),
        tokens=int(lengths.sum()),
        bytes_of_text=totals.bytes_of_text,
        source=files[0] if len(files) == 1 else joined(files),
        bin_sha256=totals.written.hexdigest(),
        idx_sha256=idx_sha256,
        engine=ENGINE,
        bad_lines=totals.bad_lines,
    )


def _check_arguments(inputs: list[Path], workers: int, on_bad_line: str) -> None:
    if workers < 1:
        raise UnusableError(f"workers: got {workers}, wanted at least 1")
    if on_bad_line not in ON_BAD:
        raise UnusableError(f"on bad line: got {on_bad_line!r}, wanted one of {', '.join(ON_BAD)}")
    for path in inputs:
        if not path.is_file():
            raise UnusableError(f"{path}: no such file; name a .jsonl file")
        if path.suffix in NO_JSONL:
            raise UnusableError(
                f"{path}: got a {path.suffix} file, wanted .jsonl; convert it: python -m data.clean {path} --output "
                f"{path.with_suffix('.jsonl').name}, or prepare it: ./shell/run_data.sh DATASET={path}"
            )
    require_each_once(inputs)


@contextmanager
def _working_folder(prefix: Path) -> Iterator[Path]:
    """Yield the locked folder of the part files; it is removed when the work is done or cannot succeed.

    Finished parts are kept if the run was interrupted or if a worker or the disk failed; the next run reuses them.
    Raises UnusableError while another run is writing the same pair.
    """
    folder = folder_of(prefix)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as lock:
        note(folder / "lock", grows=True)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UnusableError(
                f"{prefix}: another run is writing this pair; wait for it or name another prefix"
            ) from error
        try:
            yield folder
        except BaseException as error:
            if isinstance(error, DataError) or not has_finished_parts(folder):
                # anything left behind is harmless
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder)


def manifest_of(
    tokenizer: Encoder,
    *,
    documents: int,
    sequences: int,
    tokens: int,
    bytes_of_text: int | None,
    source: dict[str, Any] | None,
    bin_sha256: str,
    idx_sha256: str,
    engine: dict[str, Any] | None = None,
    bad_lines: int | None = None,
) -> dict[str, Any]:
    """Return the manifest of a pair whose documents end with the tokenizer's end-of-document token.

    `source` is name, sha256 and size of the input, `bad_lines` the number of skipped lines. These two, `bytes_of_text`
    and `engine` are None if another program encoded the pair. Text and tokenizer count as the user's own, without a
    licence on record, unless the caller replaces `source` and `tokenizer_source`.
    The same pair has the same manifest: it contains no time, no path and no name of a machine.
    """
    return {
        "format_version": MANIFEST_VERSION,
        "documents": documents,
        "sequences": sequences,
        "tokens": tokens,
        "bytes_of_text": bytes_of_text,
        "dtype": str(tokenizer.dtype),
        "vocab_size": tokenizer.vocabulary_size,
        "eod_token_id": tokenizer.eod,
        "append_eod": True,
        "tokenizer": {"class": type(tokenizer.tokenizer).__name__, "sha256": sha256_tokenizer(tokenizer.folder)},
        "input": source,
        "engine": engine,
        "bad_lines": bad_lines,
        "bin_sha256": bin_sha256,
        "idx_sha256": idx_sha256,
        "bin_bytes": tokens * tokenizer.dtype.itemsize,
        "versions": {"numpy": metadata.version("numpy")} | _versions(),
        "source": OWN_TEXT,
        "tokenizer_source": OWN_TOKENIZER,
    }


def _versions() -> dict[str, str]:
    return {name: metadata.version(name) for name in ("tokenizers", "transformers")}
