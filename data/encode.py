"""Encode a JSONL file into the `.bin/.idx` pair that Megatron trains from, with a manifest beside it.

    python -m data.encode --input FILE.jsonl --tokenizer FOLDER --output-prefix PREFIX --workers N

The pair is byte for byte what tools/preprocess_data.py of Megatron-LM writes with --append-eod for a Hugging Face
tokenizer: ids of `tokenizer(text)` with its special tokens, an end-of-document token behind each document that has
any token, documents without tokens kept as empty ones, input order whatever the number of workers.
A line that cannot be read ends the run with its file and number. Exits 0; 1 when the work fails; 2 for bad input.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from data.encoder import Encoder, Lines, one_thread_each
from data.files import written_whole
from data.manifest import manifest_of
from data.workers import WorkerError, in_order
from utils.fingerprint import sha256_file
from utils.indexed import (
    DataError,
    UnusableError,
    bin_path,
    idx_path,
    manifest_path,
    write_index,
)
from utils.results import write_json

PART_BYTES = 1 << 20
"""Lines are given to workers in parts of about this size."""
PRELOAD = ("transformers.models.auto.tokenization_auto",)
_BAR_DELAY_SECONDS = 2


def encode(
    input: Path, tokenizer: Path, output_prefix: Path, workers: int = 1, text_key: str = "text"
) -> dict[str, Any]:
    """Write `.bin`, `.idx` and `.json` (the manifest, last) at `output_prefix`, each whole or not at all; return it.

    `tokenizer` is a folder that AutoTokenizer loads. An earlier pair there is replaced, its manifest goes first.
    Raises UnusableError for an input, a tokenizer or a number of workers that cannot be used, DataError for a line
    that cannot be read or an input without any token, and WorkerError where a worker process died.
    """
    if workers < 1:
        raise UnusableError(f"workers: got {workers}, wanted at least 1")
    if not input.is_file():
        raise UnusableError(f"{input}: no such file; name a .jsonl file")
    encoder = Encoder(tokenizer, text_key)
    encoder.load()
    with written_whole(bin_path(output_prefix), idx_path(output_prefix)) as (data, index):
        counts, lengths = _write_tokens(data, input, encoder, workers)
        _write_documents(index, input, encoder, lengths)
        manifest = manifest_of(
            encoder,
            documents=len(lengths),
            sequences=int((lengths > 0).sum()),
            tokens=int(lengths.sum()),
            idx_sha256=sha256_file(index),
            **counts,
        )
        # from here to the new manifest the pair counts as unfinished
        manifest_path(output_prefix).unlink(missing_ok=True)
    write_json(manifest, manifest_path(output_prefix))
    return manifest


def _write_tokens(path: Path, input: Path, encoder: Encoder, workers: int) -> tuple[dict[str, Any], np.ndarray]:
    read, written = hashlib.sha256(), hashlib.sha256()
    lengths, bytes_of_text, size = [np.zeros(0, dtype=np.int64)], 0, input.stat().st_size
    bar = tqdm(
        desc=f"encode {input.name}", total=size, unit="B", unit_scale=True, delay=_BAR_DELAY_SECONDS, disable=None
    )
    # closed here and now when writing fails, which ends the workers
    results = closing(in_order(encoder, _parts(input, read), workers, PRELOAD))
    with path.open("wb") as file, bar, results as parts:
        for part in parts:
            file.write(part.tokens)
            written.update(part.tokens)
            lengths.append(part.lengths)
            bytes_of_text += part.bytes_of_text
            bar.update(part.bytes_read)
    return {
        "bytes_of_text": bytes_of_text,
        "source": {"name": input.name, "sha256": read.hexdigest(), "bytes": size},
        "bin_sha256": written.hexdigest(),
    }, np.concatenate(lengths)


def _write_documents(path: Path, input: Path, encoder: Encoder, lengths: np.ndarray) -> None:
    if not lengths.any():
        raise DataError(f"{input}: {len(lengths):,} documents and no token in any; name a file that holds text")
    is_sequence = lengths > 0
    write_index(path, encoder.dtype, lengths[is_sequence], np.append(0, np.cumsum(is_sequence)))


def _parts(path: Path, digest: Any) -> Iterator[Lines]:
    """Yield the lines of a file in parts; `digest` takes in every byte of it."""
    number = 1
    with path.open("rb") as file:
        while lines := file.readlines(PART_BYTES):
            for line in lines:
                digest.update(line)
            yield Lines(path, number, lines)
            number += len(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m data.encode", description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, required=True, help="JSONL file, one document a line")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder that transformers.AutoTokenizer loads")
    parser.add_argument("--output-prefix", type=Path, required=True, help="path to write to, without .bin / .idx")
    parser.add_argument("--workers", type=int, default=1, help="processes that tokenize (default: 1)")
    parser.add_argument("--text-key", default="text", help="key of the text in each line (default: text)")
    options = parser.parse_args(arguments)
    one_thread_each()
    # an ordinary `kill` ends the run like any error: workers stopped, nothing half-written
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        manifest = encode(
            options.input, options.tokenizer, options.output_prefix, options.workers, text_key=options.text_key
        )
    except UnusableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (DataError, WorkerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; nothing was written", file=sys.stderr)
        return 128 + signal.SIGINT
    print(json.dumps(manifest, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
