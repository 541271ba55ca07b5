"""Encode JSONL files into the `.bin/.idx` pair that Megatron trains from, with a manifest beside it.

    python -m data.encode --input FILE.jsonl [FILE.jsonl ...] --tokenizer FOLDER --output-prefix PREFIX --workers N

The pair is byte for byte what tools/preprocess_data.py of Megatron-LM writes with --partitions 1 --append-eod for a
Hugging Face tokenizer: ids of `tokenizer(text)` with its special tokens, an end-of-document token behind each document
that has any token, documents without tokens kept as empty ones, input order whatever engine and number of workers.
A run that was killed goes on where it was when it is started again. A line that cannot be read ends the run with its
file and number, or is counted (--on-bad-line skip). Many machines: data/scale_out.py.
Exits 0; 1 when the work fails; 2 for bad input.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from data.backend import Backend, load_backend
from data.encoder import one_thread_each
from data.engines import ENGINES, EngineSpec, choose
from data.files import written_whole
from data.guard import Guard
from data.join import PRELOAD, Totals, join
from data.manifest import manifest_of
from data.parts import finished, folder_of, replace_file
from data.worker import Job
from data.workers import WorkerError, start_early
from utils.fingerprint import sha256_file, sha256_json, sha256_tokenizer
from utils.indexed import (
    DataError,
    UnusableError,
    bin_path,
    idx_path,
    manifest_path,
    write_index,
)
from utils.results import write_json

ON_BAD_LINE = ("error", "skip")
EXECUTORS = ("local", "datatrove", "slurm")
LIBRARIES = ("tokenizers", "transformers", "gigatoken")


def encode(
    input: Path | Sequence[Path],
    tokenizer: Path,
    output_prefix: Path,
    workers: int = 1,
    text_key: str = "text",
    *,
    engine: str = "auto",
    on_bad_line: str = "error",
    extra_manifest: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write `.bin`, `.idx` and `.json` (the manifest, last) at `output_prefix`, each whole or not at all; return it.

    `tokenizer` is a folder that AutoTokenizer loads. An earlier pair there is replaced, its manifest goes first.
    `extra_manifest` is added to the manifest. Parts that an earlier run of the same work finished are taken.
    Raises UnusableError for an input, a tokenizer, an engine or a number of workers that cannot be used, DataError for
    a line that cannot be read, an input that changed meanwhile or one without any token, and WorkerError where a worker
    process died.
    """
    inputs = [input] if isinstance(input, Path) else list(input)
    _check_arguments(inputs, workers, on_bad_line)
    if workers > 1:
        start_early(PRELOAD)
    backend = load_backend(tokenizer)
    name, guard = choose(engine, backend)
    with _working_folder(output_prefix) as folder:
        job = _job(folder, backend, name, guard, text_key, skips_bad_lines=on_bad_line == "skip")
        with written_whole(bin_path(output_prefix), idx_path(output_prefix)) as (data, index):
            totals = join(data, inputs, job, workers)
            _write_documents(index, inputs, backend, totals)
            manifest = _manifest(backend, name, inputs, totals, sha256_file(index)) | dict(extra_manifest or {})
            # from here to the new manifest the pair counts as unfinished
            manifest_path(output_prefix).unlink(missing_ok=True)
        write_json(manifest, manifest_path(output_prefix))
    return manifest


def job_of(
    input: Sequence[Path],
    tokenizer: Path,
    output_prefix: Path,
    text_key: str = "text",
    *,
    engine: str = "auto",
    on_bad_line: str = "error",
) -> Job:
    """Return what `encode` with these arguments does to each part, for a task that makes some of them."""
    _check_arguments(list(input), 1, on_bad_line)
    backend = load_backend(tokenizer)
    name, guard = choose(engine, backend)
    return _job(folder_of(output_prefix), backend, name, guard, text_key, skips_bad_lines=on_bad_line == "skip")


def _job(
    folder: Path, backend: Backend, engine: str, guard: Guard | None, text_key: str, *, skips_bad_lines: bool
) -> Job:
    """Return the job of a run, after laying its tokenizer.json into the folder of its part files."""
    path = backend.folder
    if backend.content is not None:
        path = folder / "tokenizer.json"
        replace_file(path, backend.content)
    identity = {
        "tokenizer": sha256_tokenizer(backend.folder),
        "content": hashlib.sha256(backend.content or b"").hexdigest(),
        "eod": backend.eod,
        "vocabulary_size": backend.vocabulary_size,
        "text_key": text_key,
        "on_bad_line": skips_bad_lines,
        "versions": {name: metadata.version(name) for name in LIBRARIES if name != "gigatoken" or engine == name},
    }
    return Job(
        folder=folder,
        engine=EngineSpec(engine, path, guard),
        tokenizer_folder=backend.folder,
        vocabulary_size=backend.vocabulary_size,
        eod=backend.eod,
        text_key=text_key,
        skips_bad_lines=skips_bad_lines,
        identity=sha256_json(identity),
    )


def _write_documents(path: Path, inputs: list[Path], backend: Backend, totals: Totals) -> None:
    lengths = np.concatenate(totals.lengths)
    if not lengths.any():
        raise DataError(
            f"{' '.join(map(str, inputs))}: {len(lengths):,} documents and no token in any; name a file that holds text"
        )
    is_sequence = lengths > 0
    write_index(path, backend.dtype, lengths[is_sequence], np.append(0, np.cumsum(is_sequence)))


def _manifest(backend: Backend, engine: str, inputs: list[Path], totals: Totals, idx_sha256: str) -> dict[str, Any]:
    files = [
        {"name": path.name, "sha256": digest.hexdigest(), "bytes": path.stat().st_size}
        for path, digest in zip(inputs, totals.read, strict=True)
    ]
    lengths = np.concatenate(totals.lengths)
    return manifest_of(
        backend,
        documents=len(lengths),
        sequences=int((lengths > 0).sum()),
        tokens=int(lengths.sum()),
        bytes_of_text=totals.bytes_of_text,
        source=files[0] if len(files) == 1 else _joined_source(files),
        bin_sha256=totals.written.hexdigest(),
        idx_sha256=idx_sha256,
        engine={"name": engine, "documents_by_reference": totals.guarded} if engine != "hf" else {"name": engine},
        bad_lines=totals.bad_lines,
    )


def _joined_source(files: list[dict[str, Any]]) -> dict[str, Any]:
    digest = hashlib.sha256("".join(file["sha256"] + "\n" for file in files).encode("ascii")).hexdigest()
    size = sum(file["bytes"] for file in files)
    return {"name": f"{len(files)} files", "sha256": digest, "bytes": size, "files": files}


def _check_arguments(inputs: list[Path], workers: int, on_bad_line: str) -> None:
    if workers < 1:
        raise UnusableError(f"workers: got {workers}, wanted at least 1")
    if on_bad_line not in ON_BAD_LINE:
        raise UnusableError(f"on bad line: got {on_bad_line!r}, wanted one of {', '.join(ON_BAD_LINE)}")
    if len(set(inputs)) != len(inputs) or not inputs:
        raise UnusableError(f"input: got {len(inputs)} files, one of them twice; name each once")
    for path in inputs:
        if not path.is_file():
            raise UnusableError(f"{path}: no such file; name a .jsonl file")


@contextmanager
def _working_folder(prefix: Path) -> Iterator[Path]:
    """Yield the folder of the part files, locked; it goes when the work is done or cannot be done.

    Finished parts stay where the run was interrupted or a worker or the disk failed: the next run takes them.
    Raises UnusableError where another run is writing the same pair.
    """
    folder = folder_of(prefix)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UnusableError(f"{prefix}: another run is writing it; wait for it or name another prefix") from error
        try:
            yield folder
        except (WorkerError, OSError, KeyboardInterrupt, SystemExit):
            if not finished(folder):
                shutil.rmtree(folder, ignore_errors=True)  # what is left says nothing and costs nothing
            raise
        except DataError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = _parser().parse_args(arguments)
    one_thread_each()
    # an ordinary `kill` ends the run like any error: workers stopped, nothing half-written
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        manifest = _run(options)
    except UnusableError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (DataError, WorkerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; finished parts are kept, the same command goes on with them", file=sys.stderr)
        return 128 + signal.SIGINT
    print(json.dumps(manifest, indent=1))
    return 0


def _run(options: argparse.Namespace) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "input": [path.absolute() for path in options.input],
        "tokenizer": options.tokenizer.absolute(),
        "output_prefix": options.output_prefix.absolute(),
        "text_key": options.text_key,
        "engine": options.engine,
        "on_bad_line": options.on_bad_line,
    }
    if options.executor == "local":
        return encode(**arguments, workers=options.workers)
    from data import scale_out  # it imports this module

    if options.executor == "datatrove":
        return scale_out.run_tasks(arguments, options.tasks, options.workers)
    if options.slurm_partition is None:
        raise UnusableError("--executor slurm needs --slurm-partition; `sinfo` lists those of this cluster")
    slurm = scale_out.SlurmOptions(options.slurm_partition, options.slurm_time, tuple(options.slurm_option))
    return {"submitted": scale_out.submit(arguments, options.tasks, slurm), "output_prefix": str(options.output_prefix)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m data.encode", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--input", type=Path, required=True, nargs="+", help="JSONL files, one document a line, in this order")
    add("--tokenizer", type=Path, required=True, help="folder that transformers.AutoTokenizer loads")
    add("--output-prefix", type=Path, required=True, help="path to write to, without .bin / .idx")
    add("--workers", type=int, default=1, help="processes that tokenize (default: 1)")
    add("--text-key", default="text", help="key of the text in each line (default: text)")
    add(
        "--engine",
        choices=ENGINES,
        default=os.environ.get("ENCODER", "auto"),
        help="same bytes by either: hf is the reference, gigatoken many times as fast (default: auto, the fast one "
        "where it is installed and proven for the tokenizer)",
    )
    add("--on-bad-line", choices=ON_BAD_LINE, default="error", help="end with its number, or count (default: error)")
    add("--executor", choices=EXECUTORS, default="local", help="what starts the work, see data/scale_out.py")
    add("--tasks", type=int, default=1, help="tasks of --executor datatrove or slurm (default: 1)")
    add("--slurm-partition", help="partition that tasks run in")
    add("--slurm-time", default="04:00:00", help="longest time of a task, [days-]hours:minutes:seconds")
    add("--slurm-option", action="append", default=[], metavar="NAME=VALUE", help="another option of sbatch")
    return parser


if __name__ == "__main__":
    sys.exit(main())
