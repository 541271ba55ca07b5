"""List the content of a folder that the suite writes into: which entries are the suite's, and why the others are not.

A file is the suite's if the suite writes its name at that place (`OUTPUT_LAYOUT`, `DATA_LAYOUT`), it is a regular file,
and it is on the list of written files (`utils/own_files.py`). To be removed it must also be unchanged since. To be
packed its own content may stand for the list: results that were copied here are packed. In a folder without a list
content decides, as far as it can. Links are never followed, and no folder is entered that has a marker of its own or is
on another file system. Standard library only.

The two layouts have the names of everything that the suite writes into OUTPUT_DIR and DATA_DIR, folder by folder: add a
line for every new file. Temporary files of `utils/files.py` beside them need no line.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from utils.frameworks import FRAMEWORKS
from utils.housekeeping.footprint import DATA, LOCK, FootprintError, open_file, opened, read_marker
from utils.models import NAMES as MODELS
from utils.own_files import LARGEST_BYTES, LIST, MARKER, PNG_CHUNK, State
from utils.results import raw_samples
from utils.results.probe_file import NAME as PROBE
from utils.results.store import SUPERSEDED, result_name
from utils.results.sweep_file import FOLDER as SWEEPS

ARCHIVE_COMMENT = b"tprimat 1"
OnList = Mapping[str, State | None] | None
"""The list of written files, with the folders above them (`utils.own_files.parsed`); None if there is no list."""
PIECE_BYTES, OVERLAP_BYTES = 1 << 20, 1 << 10
ON_LIST = "on the list of files that the suite wrote here"
_JSON = {
    "result": ("", {"schema_version", "identity_sha256", "label", "platform", "framework", "model", "run"}),
    "comparison": ("compare.json", {"comparison_version"}),
    "history": ("history.json", {"history_version"}),
    "probe": ("", {"probe_version"}),
    "status": ("", {"schema_version", "jobs"}),
    "status page": ("status.json", {"schema_version", "jobs"}),
    "sweep": ("", {"sweep_version", "points"}),
    "text": ("text.json", {"tokens", "bin_sha256", "idx_sha256"}),
}
"""For each kind that is recognised by a JSON where there is no list: the name of the JSON that is written beside the
other files of that kind (empty where each file is a JSON itself), and the keys that the JSON has."""
_OF_JOB_LOG = rb"(?m)^" + raw_samples.PREFIX.encode() + rb"|iteration +\d+/ *\d+ \|"
"""A line in the log of a job, which may be that of Primus."""
_OF_MATRIX_LOG = rb"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "
"""The beginning of the log of a matrix."""


@dataclass(frozen=True)
class Entry:
    """One file or folder below a folder of the suite."""

    path: str
    """Relative to that folder; it may hold any character that a file name can."""
    directory: int
    """Descriptor of its parent folder, open until the next entry is taken."""
    name: str
    kind: str | None
    """A kind of `Layout.files`; None for a folder, and for a file that the suite does not write."""
    status: os.stat_result
    foreign: str | None
    """Reason why it is not the suite's; None if it is."""

    @property
    def is_folder(self) -> bool:
        """True for a folder; it comes after its content."""
        return stat.S_ISDIR(self.status.st_mode)

    def __str__(self) -> str:
        """Return the path on one line, with escapes for unusual characters and a slash after a folder."""
        path = f"{self.path}/" if self.is_folder else self.path
        if path.isascii() and path.isprintable():
            return path
        return ascii(path)


def entries(
    directory: int, layout: Layout, listed: OnList, path: str = "", *, is_strict: bool = True
) -> Iterator[Entry]:
    """Yield everything in the open folder `directory`, sorted by path, a folder after its content.

    A folder that is not the suite's is one entry and is not entered. `path` ends with a slash or is empty. Unless
    `is_strict`, a file may have changed since the suite wrote it, or be recognised by its content alone.
    """
    with os.scandir(directory) as scanned:
        folders = {entry.name: entry.is_dir(follow_symlinks=False) for entry in scanned}
    # a folder is sorted as `name/`, so that the paths of the whole listing are in order
    for name in sorted(folders, key=lambda name: f"{name}/" if folders[name] else name):
        kind: str | None = None
        with ExitStack() as stack, suppress(FileNotFoundError):  # removed meanwhile
            # only now, so that what has replaced a file meanwhile is compared with the list
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            inner = layout.layout_of(name)
            if not folders[name]:
                kind = layout.kind_of(name)
                foreign = _why_foreign(directory, path + name, status, kind, listed, is_strict)
            elif inner is None:
                foreign = "a folder that the suite does not make here"
            else:
                foreign = "cannot be opened"
                with suppress(OSError):
                    inside = stack.enter_context(opened(name, directory))
                    foreign = _why_not_entered(directory, inside, inner, path + name, listed, is_strict)
                    if foreign is None:
                        yield from entries(inside, inner, listed, f"{path}{name}/", is_strict=is_strict)
            yield Entry(path + name, directory, name, kind, status, foreign)


def _why_not_entered(
    directory: int, inside: int, layout: Layout, path: str, listed: OnList, is_strict: bool
) -> str | None:
    # a mount inside belongs to whoever mounted it
    if os.fstat(inside).st_dev != os.fstat(directory).st_dev:
        return "another file system is mounted there"
    # else each name in it would be reported as an error of its own
    if not os.access(".", os.X_OK, dir_fd=inside):
        return "cannot be searched (Permission denied)"
    if MARKER in os.listdir(inside):
        try:
            marked = read_marker(inside, "")
        except FootprintError:
            return f"has a {MARKER} file that is damaged or not ours"
        return "prepared data, for --with-data" if marked == DATA else "an OUTPUT_DIR of its own"
    if listed is not None:
        if path in listed:
            return None
        if is_strict:
            return f"nothing in it is {ON_LIST}"
    if not layout.is_named_by_user:
        return None
    for entry in entries(inside, layout, listed, f"{path}/", is_strict=is_strict):
        if entry.kind == "result" and entry.foreign is None:
            return None
    return "nothing in it is the suite's"


def _why_foreign(
    directory: int, path: str, status: os.stat_result, kind: str | None, listed: OnList, is_strict: bool
) -> str | None:
    if stat.S_ISLNK(status.st_mode):
        return "a symbolic link"
    if not stat.S_ISREG(status.st_mode):
        return "no regular file"
    if kind is None:
        return "a name that the suite does not write here"
    if kind in MARKS or kind == "temporary":
        return None
    state = None if listed is None else listed.get(path)
    if state is not None and (not is_strict or state.fits(status)):
        return None
    if listed is not None and is_strict:
        return "changed since the suite wrote it" if state else f"not {ON_LIST}"
    # without a list, and for an archive of copied results, the content decides
    try:
        return _why_unlike(directory, path, kind, is_alone=listed is not None)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        return f"damaged or not the suite's ({getattr(error, 'strerror', None) or error})"


def _why_unlike(directory: int, path: str, kind: str, *, is_alone: bool) -> str | None:
    """Return why the content of a file is not like that of the suite's file of this name; None if it is.

    A file that `is_alone` must show it itself: a JSON beside it, or its name, is not enough.
    """
    name = path.rpartition("/")[2]
    if kind == "archive":
        with open_file(directory, name) as file:
            return None if has_our_end(file) else "a zip file of somebody else, or a damaged one"
    beside, keys = _JSON.get(kind, ("", set()))
    is_told_by_itself = is_alone or name.endswith((".png", ".env"))
    if is_told_by_itself or not beside:
        beside = name
    if beside.endswith(".json") and keys:
        with open_file(directory, beside) as file:
            content = json.loads(file.read(LARGEST_BYTES))
        if not isinstance(content, dict) or not keys <= content.keys():
            return f"{beside} is not the suite's"
        if kind == "result":
            return _why_other_result(content, path)
    elif is_told_by_itself:
        mark = None
        if name.endswith(".png"):
            mark = PNG_CHUNK
        elif kind == "log":
            mark = _OF_MATRIX_LOG if name == "matrix.log" else _OF_JOB_LOG
        if mark is None or not _holds(directory, name, mark):
            return "nothing in it shows that the suite wrote it"
    return None


def _why_other_result(content: Mapping[str, Any], path: str) -> str | None:
    """Return a reason if a result is of another job than its path says; that of a repeated job has an attempt in it."""
    own = result_name(content["platform"], content["framework"], content["model"], content["run"])
    if content["label"]:
        own = f"{content['label']}/{own}"
    # of a repeated job the earlier result is kept in a folder, under the name of its attempt
    if re.sub(rf"\b{SUPERSEDED}/|_attempt[0-9]+(?=\.json$)", "", path) != own:
        return f"holds the result {own}"
    return None


def _holds(directory: int, name: str, mark: bytes) -> bool:
    """Search a file piece by piece: the log of a long training does not fit into memory."""
    before = b""
    with open_file(directory, name) as file:
        while piece := file.read(PIECE_BYTES):
            if re.search(mark, before + piece):
                return True
            # a mark may lie across two pieces
            before = piece[-OVERLAP_BYTES:]
    return False


def has_our_end(file: BinaryIO) -> bool:
    """Recognise an archive of the suite by its comment, at the end behind a record of 22 bytes.

    Source: PKWARE APPNOTE.TXT 6.3.10, 4.3.16.
    """
    file.seek(max(0, os.fstat(file.fileno()).st_size - 22 - len(ARCHIVE_COMMENT)))
    end = file.read()
    return end.startswith(b"PK\5\6") and end.endswith(ARCHIVE_COMMENT)


ARCHIVE = "output.zip"
MARKS = ("marker", "list", "lock")
"""Kinds of the files that purge needs to the end."""
_UNIQUE = r"[0-9a-f]{12}\.tmp"
"""End of the temporary names of utils/files.py, which nobody else uses: such a file needs no line in the list."""


@dataclass(frozen=True)
class Layout:
    """Files and folders that the suite writes into one sort of folder; everything else in it belongs to others."""

    files: tuple[tuple[str, str], ...]
    """Kind of its files, and a regular expression for their names."""
    folders: tuple[tuple[str, Layout], ...] = ()
    """Regular expression for the names of folders in it, and the layout of these folders."""
    is_named_by_user: bool = False
    """A label can be any word, so such a folder is adopted only if it holds a result."""

    def kind_of(self, name: str) -> str | None:
        """Return the kind of a file by its name, None if the suite does not write it here."""
        unfinished = re.fullmatch(rf"\.(.+)\.{_UNIQUE}", name, re.DOTALL)
        whole = unfinished[1] if unfinished else name
        for kind, names in self.files:
            if re.fullmatch(names, whole):
                if not unfinished:
                    return kind
                # a lock is opened under its own name, so this file is somebody else's
                return None if kind.endswith("lock") else "temporary"
        return None

    def layout_of(self, name: str) -> Layout | None:
        """Return the layout of the folder `name`, None if the suite does not make it here."""
        for names, layout in self.folders:
            if re.fullmatch(names, name):
                return layout
        return None


def _nested(names: tuple[str, ...], layout: Layout) -> Layout:
    """Return the layout of folders with these names, each in the one before, with `layout` in the innermost."""
    for name in reversed(names):
        layout = Layout((), ((name, layout),))
    return layout


_JOB = rf"train_(?:amd|nvd|cpu)_(?:{'|'.join(FRAMEWORKS)})_(?:{'|'.join(MODELS)})_run(?:0|[1-9][0-9]*)"
_ATTEMPT = rf"{_JOB}_attempt[1-9][0-9]*"
_LABEL = r"[A-Za-z0-9._-]+"
_OF_LABEL = rf"(?:{_LABEL}_)?"
_OF_NODE = r"(?:_node[1-9][0-9]*)?"
_RESULTS = (
    ("result", rf"{_JOB}\.json"),
    ("comparison", r"compare\.(?:png|md|html|json|csv|parquet)|why\.png"),
    ("history", r"history\.(?:html|json)"),
    ("temporary", rf"\.{_JOB}\.json\.reserve"),
)
_SUPERSEDED = (SUPERSEDED, Layout((("result", rf"{_ATTEMPT}\.json"),)))
_TENSORBOARD = Layout(  # Primus turns it on with a profile; the traces are moved (train/prim/log_report.py)
    (
        (
            "profile",
            r"primus-megatron-exp\[.*\]-rank\[[0-9]+\]\..*\.pt\.trace\.json(?:\.gz)?|rank-[0-9]+\.json(?:\.gz)?",
        ),
        ("log", r"events\.out\.tfevents\..+"),
    )
)
_PRIMUS_LOGS = Layout((("log", r"(?:debug|info|warning|error|master-\S+)(?:\.\S+)?\.log"),))
_PRIMUS = _nested(  # work_group, user_name and exp_name of train/prim/yaml_config.py, then primus/core/utils/logger.py
    ("tprimat", "tprimat", rf"{_OF_LABEL}{_ATTEMPT}{_OF_NODE}"),
    Layout(
        (),
        (
            ("logs", Layout((), (("pre_trainer", _nested(("rank-[0-9]+",), _PRIMUS_LOGS)), ("master", _PRIMUS_LOGS)))),
            ("tensorboard|torch_profile", _TENSORBOARD),
        ),
    ),
)
_NODES = Layout((("temporary", r"(?:start|(?:node|ended)[0-9]+)\.json"),))
"""Of train/job/nodes.py; removed when a job of several nodes ends normally."""
_LOGS = Layout(
    (
        ("log", rf"{_OF_LABEL}{_ATTEMPT}{_OF_NODE}\.(?:log|primus\.log|yaml)"),
        ("log", rf"{_OF_LABEL}{_JOB}_slurm[0-9]+\.log|matrix\.log"),
        ("energy samples", rf"{_OF_LABEL}{_ATTEMPT}{_OF_NODE}\.energy\.jsonl"),  # train/energy/sampler.py
    ),
    (
        (rf"\.{_OF_LABEL}{_JOB}\.nodes", _NODES),
        ("hf_trainer", Layout(())),  # the Trainer requires a folder and is configured to write nothing into it
        (rf"{_OF_LABEL}{_ATTEMPT}{_OF_NODE}\.primus", _PRIMUS),
    ),
)
_GPU_HOUR = Layout(  # benchmarks/gpu.py, benchmarks/hour_report.py
    (("gpu hour", r"parts\.json|summary\.md|gpu_hour\.zip"),),
    (
        ("facts", Layout((("gpu hour", r"[a-z_]+\.txt"),))),
        ("logs", Layout((("log", r"[A-Za-z0-9_]+\.log"),))),
        # no "comparison": an archive can only check one that is in the folder of its results
        ("report", Layout((("gpu hour", r"compare\.(?:png|md|html|json)"),))),
    ),
)
_SWEEPS = Layout((("sweep", r"[A-Za-z0-9._-]+\.(?:json|png|env)"),))  # utils/results/sweep_file.py
_PROFILE = Layout(  # train/profiling/; nsys: shell/profile.sh
    (
        ("profile", r"profile\.json|rank(?:0|[1-9][0-9]*)(?:\.json\.gz|_memory\.pickle)"),
        ("profile", r"nsys_[0-9]{8}T[0-9]{6}Z\.(?:nsys-rep|sqlite|qdstrm)"),
    ),
    (("rocprofv3", Layout((("profile", r"rank[0-9]+_[A-Za-z0-9_]+\.(?:csv|json|pftrace|otf2|db)"),))),),
)
_PROFILES = Layout(
    (("profile", rf"{_OF_LABEL}{_ATTEMPT}(?:_rank[0-9]+)?\.(?:json|json\.gz|html|txt)"),),  # of earlier versions
    ((rf"{_OF_LABEL}{_JOB}(?:_attempt[1-9][0-9]*)?", _PROFILE),),
)
_MARKS = (("marker", re.escape(MARKER)), ("list", re.escape(LIST)), ("lock", re.escape(LOCK)))
OUTPUT_LAYOUT = Layout(
    (
        *_RESULTS,
        *_MARKS,
        ("status", r"status\.json"),
        ("status page", r"status\.html"),  # of earlier versions
        ("probe", PROBE.pattern),
        ("plot", r"data_[A-Za-z0-9._-]+\.png"),  # data/prepare.py
        ("archive", re.escape(ARCHIVE)),
    ),
    (
        _SUPERSEDED,
        ("logs", _LOGS),
        ("profiles", _PROFILES),
        (SWEEPS, _SWEEPS),
        ("gpu_hour", _GPU_HOUR),
        (_LABEL, Layout(_RESULTS, (_SUPERSEDED,), is_named_by_user=True)),
    ),
)
_TOKENIZER = Layout(  # TOKENIZER_FILES of utils/provenance/digests.py, and source.json of data/hub/fetch.py
    (
        (
            "data",
            r"(?:tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|tekken|source)\.json"
            r"|(?:vocab|merges)\.txt|(?:tokenizer|spiece|sentencepiece\.bpe)\.model",
        ),
    )
)
_PARTS = Layout(  # of data/encoding/parts.py; the lock and the tokenizer are of data/encoding/pair.py
    (
        ("data", r"[0-9]{6,}\.(?:bin|lengths|json)|tokenizer\.json|manifest-[0-9a-f]{16}\.json"),
        ("data", r"[0-9]{6,}\.(?:reference|held)"),  # of earlier versions, whose run may have been killed
        ("data lock", "lock"),
    )
)
_DATA_SET = Layout(
    (("text", r"text\.(?:bin|idx|json|jsonl|source\.json)|\.text\.jsonl\.tprimat"),),
    ((rf"tokenizer|\.tokenizer\.{_UNIQUE}", _TOKENIZER), (r"\.text\.parts", _PARTS)),
)
_INDEX_CACHE = Layout(  # megatron-core 0.16.1, GPTDataset._build_document_sample_shuffle_indices
    (
        (
            "data",
            "[0-9a-f]{32}-GPTDataset-(?:train|valid|test)-"
            r"(?:description\.txt|(?:document|sample|shuffle)_index\.npy)",
        ),
    )
)
DATA_LAYOUT = Layout(
    (*_MARKS, ("data", r"\.tprimat_digests\.json")),  # utils/dataset/manifest.py
    (
        ("index_cache", _INDEX_CACHE),
        # utils/dataset/place.py: seed and size of generated text, or the stem of a file and 12 digits of its hash
        (r"synth_seed[0-9]+_[0-9]+(?:tokens|documents)|(?s:.+)_[0-9a-f]{12}", _DATA_SET),
    ),
)
