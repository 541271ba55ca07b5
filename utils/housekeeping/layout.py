"""The names of everything that the suite writes into OUTPUT_DIR and DATA_DIR, folder by folder.

What purge removes and wrap packs must have its name here: whoever writes something new adds a line. Standard library
only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from utils.housekeeping.footprint import LOCK, MARKER
from utils.models import NAMES as MODELS
from utils.results.probe_file import NAME as PROBE
from utils.results.store import SUPERSEDED

ARCHIVE = "output.zip"


@dataclass(frozen=True)
class Layout:
    """What the suite writes into one sort of folder; everything else in it is somebody else's."""

    files: tuple[tuple[str, re.Pattern[str]], ...]
    """Kind and names of its files."""
    folders: tuple[tuple[re.Pattern[str], Layout], ...] = ()
    is_named_by_user: bool = False
    """A label can be any word, so a folder is one of ours only where something of ours is in it."""

    def kind_of(self, name: str) -> str | None:
        """Return the kind of a file by its name, None for one that the suite does not write here."""
        return next((kind for kind, names in self.files if names.fullmatch(name)), None)

    def layout_of(self, name: str) -> Layout | None:
        """Return what belongs into the folder `name`, None for one that the suite does not make here."""
        return next((layout for names, layout in self.folders if names.fullmatch(name)), None)


def _names(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


def _below(names: tuple[str, ...], layout: Layout) -> Layout:
    """Return what holds folders of these names, one in the other, with `layout` in the innermost."""
    for name in reversed(names):
        layout = Layout((), ((_names(name), layout),))
    return layout


_JOB = rf"train_(?:amd|nvd|cpu)_(?:mega|prim|nemo|hf)_(?:{'|'.join(MODELS)})_run(?:0|[1-9][0-9]*)"
_ATTEMPT = rf"{_JOB}_attempt[1-9][0-9]*"
_LABEL = r"[A-Za-z0-9._-]+"
_OF_LABEL = rf"(?:{_LABEL}_)?"
_OF_NODE = r"(?:_node[1-9][0-9]*)?"
_DATA_PLOT = r"data_[A-Za-z0-9._-]+\.png"
_COMPARE = r"compare\.(?:png|md|html|json)"
_RANDOM = "[a-z0-9_]{8}"  # of Python's tempfile
_UNIQUE = r"[0-9a-f]{12}\.tmp"  # of utils/files.py
_RESULTS = (
    ("result", _names(rf"{_JOB}\.json")),
    ("comparison", _names(_COMPARE)),
    ("temporary", _names(rf"\.{_JOB}\.json\.(?:{_RANDOM}|reserve)", rf"\.{_COMPARE}\.{_RANDOM}")),
)
_SUPERSEDED = (
    _names(SUPERSEDED),
    Layout((("result", _names(rf"{_ATTEMPT}\.json")), ("temporary", _names(rf"\.{_ATTEMPT}\.json\.{_RANDOM}")))),
)
_PRIMUS_LOGS = Layout((("log", _names(r"(?:debug|info|warning|error|master-\S+)(?:\.\S+)?\.log")),))
_PRIMUS = _below(  # work_group, user_name and exp_name of train/prim/yaml_config.py, then primus/core/utils/logger.py
    ("tprimat", "tprimat", rf"{_OF_LABEL}{_ATTEMPT}{_OF_NODE}", "logs"),
    Layout((), ((_names("pre_trainer"), _below(("rank-[0-9]+",), _PRIMUS_LOGS)), (_names("master"), _PRIMUS_LOGS))),
)
_NODES = Layout(  # train/job/nodes.py, gone when a job of several nodes has ended as it should
    (
        ("temporary", _names(r"(?:start|(?:node|ended)[0-9]+)\.json")),
        ("temporary", _names(rf"\.(?:start|(?:node|ended)[0-9]+)\.json\.{_RANDOM}")),
    )
)
_LOGS = Layout(
    (
        (
            "log",
            _names(
                rf"{_OF_LABEL}{_ATTEMPT}{_OF_NODE}\.(?:log|primus\.log|yaml)",
                rf"{_OF_LABEL}{_JOB}_slurm[0-9]+\.log",
                r"matrix\.log",
            ),
        ),
    ),
    (
        (_names(rf"\.{_OF_LABEL}{_JOB}\.nodes"), _NODES),
        (_names("hf_trainer"), Layout(())),  # the Trainer wants a folder and is told to write nothing into it
        (_names(rf"{_OF_LABEL}{_ATTEMPT}{_OF_NODE}\.primus"), _PRIMUS),
    ),
)
_PROFILES = Layout((("profile", _names(rf"{_OF_LABEL}{_ATTEMPT}(?:_rank[0-9]+)?\.(?:json|json\.gz|html|txt)")),))
OUTPUT_LAYOUT = Layout(
    (
        *_RESULTS,
        ("marker", _names(re.escape(MARKER))),
        ("lock", _names(re.escape(LOCK))),
        ("status", _names(r"status\.json")),
        ("probe", _names(PROBE.pattern)),
        ("plot", _names(_DATA_PLOT)),  # data/prepare.py
        ("archive", _names(re.escape(ARCHIVE))),
        (
            "temporary",
            _names(
                rf"\.(?:\.tprimat|status\.json|output\.zip|{PROBE.pattern})\.{_RANDOM}", rf"\.{_DATA_PLOT}\.{_UNIQUE}"
            ),
        ),
    ),
    (
        _SUPERSEDED,
        (_names("logs"), _LOGS),
        (_names("profiles"), _PROFILES),
        (_names(_LABEL), Layout(_RESULTS, (_SUPERSEDED,), is_named_by_user=True)),
    ),
)
_TOKENIZER = Layout(
    (
        (  # utils/provenance/digests.py, TOKENIZER_FILES, and where they came from
            "data",
            _names(
                r"(?:tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|tekken|source)\.json",
                r"(?:vocab|merges)\.txt",
                r"(?:tokenizer|spiece|sentencepiece\.bpe)\.model",
            ),
        ),
        ("temporary", _names(rf"\.source\.json\.{_RANDOM}")),
    )
)
_PARTS = Layout(  # data/encoding/parts.py, and data/encode.py for the lock and the tokenizer
    (
        ("data", _names(r"[0-9]{6,}\.(?:bin|lengths|json)", r"tokenizer\.json")),
        ("data lock", _names("lock")),
        ("temporary", _names(rf"\.(?:[0-9]{{6,}}\.(?:bin|lengths|json)|tokenizer\.json)\.{_UNIQUE}")),
    )
)
_DATA_SET = Layout(
    (
        ("data", _names(r"text\.(?:bin|idx|json|jsonl|source\.json)")),
        ("temporary", _names(rf"\.text\.(?:bin|idx|jsonl|source\.json)\.{_UNIQUE}", rf"\.text\.json\.{_RANDOM}")),
    ),
    ((_names("tokenizer", rf"\.tokenizer\.{_UNIQUE}"), _TOKENIZER), (_names(r"\.text\.parts"), _PARTS)),
)
_INDEX_CACHE = Layout(  # megatron-core 0.16.1, GPTDataset._build_document_sample_shuffle_indices
    (
        (
            "data",
            _names(
                "[0-9a-f]{32}-GPTDataset-(?:train|valid|test)-"
                r"(?:description\.txt|(?:document|sample|shuffle)_index\.npy)"
            ),
        ),
    )
)
DATA_LAYOUT = Layout(
    (
        ("marker", _names(re.escape(MARKER))),
        ("lock", _names(re.escape(LOCK))),
        ("data", _names(r"digests\.json")),  # utils/dataset/digest_cache.py
        ("temporary", _names(rf"\.(?:\.tprimat|digests\.json)\.{_RANDOM}")),
    ),
    (
        (_names("index_cache"), _INDEX_CACHE),
        # utils/dataset/gpt_dataset.py: seed and size of generated text, or the stem of a file and 12 digits of its hash
        (_names(r"synth_seed[0-9]+_[0-9]+(?:tokens|documents)", r"(?s:.+)_[0-9a-f]{12}"), _DATA_SET),
    ),
)
