"""Names of everything that the suite writes into OUTPUT_DIR and DATA_DIR, folder by folder.

Purge removes and wrap packs only files whose names are here and which the suite has written (`utils/written.py`): add
a line for every new file. Temporary files of `utils/files.py` beside them need no line. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from utils.frameworks import FRAMEWORKS
from utils.housekeeping.footprint import LOCK
from utils.models import NAMES as MODELS
from utils.results.probe_file import NAME as PROBE
from utils.results.store import SUPERSEDED
from utils.results.sweep_file import FOLDER as SWEEPS
from utils.written import LIST, MARKER

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
        kind = next((kind for kind, names in self.files if re.fullmatch(names, whole)), None)
        if unfinished and kind:
            return None if kind.endswith("lock") else "temporary"
        return kind

    def layout_of(self, name: str) -> Layout | None:
        """Return the layout of the folder `name`, None if the suite does not make it here."""
        return next((layout for names, layout in self.folders if re.fullmatch(names, name)), None)


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
_GPU_HOUR = Layout(  # benchmarks/gpu.py
    (("gpu hour", r"parts\.json|summary\.md"),),
    (("facts", Layout((("gpu hour", r"[a-z_]+\.txt"),))), ("logs", Layout((("log", r"[A-Za-z0-9_]+\.log"),)))),
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
_MARKS = tuple(zip(MARKS, map(re.escape, (MARKER, LIST, LOCK)), strict=True))
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
    (("data", r"[0-9]{6,}\.(?:bin|lengths|json)|tokenizer\.json|manifest-[0-9a-f]{16}\.json"), ("data lock", "lock"))
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
    (*_MARKS, ("data", r"\.tprimat_digests\.json")),  # utils/dataset/digest_cache.py
    (
        ("index_cache", _INDEX_CACHE),
        # utils/dataset/place.py: seed and size of generated text, or the stem of a file and 12 digits of its hash
        (r"synth_seed[0-9]+_[0-9]+(?:tokens|documents)|(?s:.+)_[0-9a-f]{12}", _DATA_SET),
    ),
)
