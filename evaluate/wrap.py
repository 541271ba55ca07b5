"""Pack the results of every job and label into one file, to send or to keep.

The archive contains results (superseded ones too), logs, comparisons, status.json, manifest.json and SHA256SUMS of
these files. It contains no data, profiles, links or files that the suite did not write. If a file contains a secret,
nothing is packed. The same files give the same bytes. To check an archive: ./shell/validate.sh --bundle output.zip

Usage:   ./shell/run_wrap.sh [--dry-run] [--here] [KEY=VALUE ...]
         --dry-run prints the command that it would start; --here uses no container (also ./shell/wrap.sh)
Reads:   config.env and its overlays, the environment, secrets.env (no packed file may contain HF_TOKEN), OUTPUT_DIR
Writes:  OUTPUT_DIR/output.zip
Exits:   0 packed; 1 a file contains a token, or the archive could not be written; 2 bad input, nothing to pack, or the
         RUNTIME that is named does not work
Example: ./shell/run_wrap.sh OUTPUT_DIR=results

It holds probes and plots too. manifest.json is the list of the files for programs, SHA256SUMS that for `sha256sum -c`;
`utils/housekeeping/inventory.py` decides which files are the suite's. Files of any size are read in pieces. Standard
library only.

manifest.json: `manifest_version`, `tool`, `git_commit` and `git_dirty` of the checkout that packed (null with a reason
in `reasons`), `report_code_sha256` of its code that makes reports, and `files`: for each path its `bytes` and `sha256`.
manifest.json does not list itself; SHA256SUMS lists it too. Neither depends on when or where files were packed.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path

from evaluate.bundle.archive import CHUNK_BYTES, MANIFEST, MANIFEST_VERSION, PACKED, SUMS, Listed, sums
from utils import redact
from utils.arguments import Parser, refusing, run
from utils.errors import ConfigError, ForeignFileError
from utils.files import MODE, written_whole
from utils.housekeeping import inventory
from utils.housekeeping.footprint import ADOPT, OURS, FootprintError, open_file, opened, read_list, read_marker
from utils.housekeeping.inventory import ARCHIVE, ARCHIVE_COMMENT, OUTPUT_LAYOUT, Entry
from utils.provenance import origin
from utils.settings.config import PLATFORM_OPTION, ROOT, folders

OLDEST_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest time of the zip format; with real times, the same files would give another archive each time."""
LONGEST_SECRET_BYTES = 4096
"""Overlap of two pieces of a file in the search for secrets."""
_PROGRESS_DELAY_SECONDS = 2


class ArchiveError(RuntimeError):
    """The archive must not or cannot be written; the message names the file."""


def write(folder: Path, environ: Mapping[str, str]) -> tuple[Path, list[str]]:
    """Write the archive of OUTPUT_DIR atomically; return its path and the paths in it, the two lists last.

    Raises ConfigError if the folder is missing, holds nothing to pack or an output.zip that is not the suite's,
    ArchiveError if it holds a secret, and OSError if a file cannot be read or written.
    """
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(opened(folder))
            read_marker(directory, f"OUTPUT_DIR={folder}")
        except OSError as error:
            raise ConfigError(
                f"OUTPUT_DIR={folder}: cannot be opened as a folder ({error.strerror}); name the folder of the results"
            ) from error
        except FootprintError as error:
            raise ConfigError(f"{error}; else train first") from error
        entries = _to_pack(directory, str(folder))
        if not entries:
            raise ConfigError(
                f"OUTPUT_DIR={folder}: holds no result, log or comparison that the suite wrote; train first, or, "
                f"{ADOPT}"
            )
        (temporary,) = stack.enter_context(written_whole(folder / ARCHIVE, is_ours=_is_archive))
        paths = _pack(directory, entries, temporary, environ)
        with zipfile.ZipFile(temporary) as archive:
            damaged = archive.testzip()
            if damaged is not None or archive.namelist() != paths:
                raise ArchiveError(
                    f"{temporary}: reads back damaged ({damaged or 'names'}); look at the disk and try again"
                )
        temporary.chmod(MODE)
    return folder / ARCHIVE, paths


def _is_archive(path: Path) -> bool:
    with path.open("rb") as file:
        return inventory.has_our_end(file)


def _to_pack(directory: int, where: str) -> list[Entry]:
    """Return what to pack; print what has a name of ours and cannot be packed."""
    to_pack = []
    for entry in inventory.entries(directory, OUTPUT_LAYOUT, read_list(directory, where), is_strict=False):
        if entry.kind not in PACKED:
            continue
        if entry.foreign is None:
            to_pack.append(entry)
        else:
            print(redact.text(f"left out {entry}: {entry.foreign}"), file=sys.stderr)
    return to_pack


def _pack(directory: int, entries: Sequence[Entry], path: Path, environ: Mapping[str, str]) -> list[str]:
    files: dict[str, Listed] = {}
    with_secret: list[str] = []
    started = time.monotonic()
    with zipfile.ZipFile(path, "w") as archive:
        archive.comment = ARCHIVE_COMMENT
        for entry in entries:
            files[entry.path], has_secret = _add(archive, directory, entry, environ)
            if has_secret:
                with_secret.append(redact.text(entry.path, environ))
            # not tqdm: this must run where nothing is installed
            if sys.stderr.isatty() and time.monotonic() - started > _PROGRESS_DELAY_SECONDS:
                end = "\n" if len(files) == len(entries) else ""
                print(f"\rpacking {len(files):,} of {len(entries):,} files", end=end, file=sys.stderr, flush=True)
        manifest = manifest_of(files, ROOT)
        lists = {MANIFEST: manifest, SUMS: sums(files, manifest)}
        for name, content in lists.items():
            archive.writestr(_member(name), content)
    if with_secret:
        raise ArchiveError(
            f"{', '.join(with_secret)}: holds an access token or a password, or has one in its name; nothing was "
            "packed: revoke it, then remove it from there"
        )
    return [*files, *lists]


def _add(archive: zipfile.ZipFile, directory: int, entry: Entry, environ: Mapping[str, str]) -> tuple[Listed, bool]:
    """Pack a file piece by piece; return its entry of the manifest, and whether it or its path holds a secret."""
    member = _member(entry.path)
    # decides whether the header has room for more than 4 GiB
    member.file_size = entry.status.st_size
    digest, size = sha256(), 0
    has_secret = redact.holds_secret(entry.path, environ)
    # a secret may lie across two pieces
    before = b""
    with open_file(directory, entry.path) as source, archive.open(member, "w") as target:
        for piece in iter(partial(source.read, CHUNK_BYTES), b""):
            target.write(piece)
            digest.update(piece)
            size += len(piece)
            if not has_secret:
                has_secret = redact.holds_secret(before + piece, environ)
            before = piece[-LONGEST_SECRET_BYTES:]
    return Listed(size, digest.hexdigest()), has_secret


def _member(path: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(path, OLDEST_TIME)
    member.compress_type = zipfile.ZIP_DEFLATED
    # Unix, whose file mode follows
    member.create_system = 3
    member.external_attr = 0o100644 << 16
    return member


def manifest_of(files: Mapping[str, Listed], root: Path) -> bytes:
    """Return manifest.json of `files`, by path, packed by the checkout `root`."""
    commit, is_dirty = origin.commit(root)
    content = {
        "manifest_version": MANIFEST_VERSION,
        "tool": OURS["tool"],
        "git_commit": commit,
        "git_dirty": is_dirty,
        "reasons": {} if commit else {"git_commit": origin.NO_COMMIT, "git_dirty": origin.NO_COMMIT},
        "report_code_sha256": origin.sha256_report_code(root),
        "files": {path: files[path]._asdict() for path in sorted(files)},
    }
    return (json.dumps(content, indent=1) + "\n").encode()


@refusing((ConfigError, ForeignFileError), (OSError, ArchiveError), interrupted="")
def main(argv: Sequence[str] | None = None) -> int:
    """Write the archive of the configured OUTPUT_DIR."""
    parser = Parser(
        {
            "--platform": PLATFORM_OPTION,
            "settings": {"nargs": "*", "metavar": "KEY=VALUE"},
        },
        prog="python -m evaluate.wrap",
        description=f"Pack results, logs, comparisons and status.json of all jobs and labels into {ARCHIVE} there.",
        epilog="Exits 0 on success; 1 if a file or its path holds a secret or the archive cannot be written; 2 for bad "
        "input or if there is nothing to pack.",
    )
    options = parser.parse_args(argv)
    output_dir, _ = folders(options.platform, arguments=options.settings)
    path, paths = write(output_dir, os.environ)
    print(f"{path}: {len(paths):,} files, {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
