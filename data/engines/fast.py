"""Construction of the fast tokenizer, which takes half a second: the fork server builds it once for all its workers.

The fork server imports this module before the first worker is forked, while the main process still examines the
tokenizer. All workers share the memory of the tokenizer until they write to it. The module imports nothing heavy, so
that starting the server does not wait for numpy.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

VARIABLE = "TPRIMAT_PREBUILT_TOKENIZER"
"""Path of the tokenizer.json, set in the environment of the fork server only."""

_prebuilt: dict[str, Any] = {}


def build(content: bytes) -> Any:
    """Return a new fast tokenizer from the content of a tokenizer.json.

    Raises RuntimeError for one that gigatoken cannot run.
    """
    prebuilt = _prebuilt.pop(hashlib.sha256(content).hexdigest(), None)
    _prebuilt.clear()  # a tokenizer that was built for other content only takes memory
    return prebuilt or _load(content)


def _load(content: bytes) -> Any:
    from gigatoken.gigatoken_rs import load_hf_json  # importing the whole package takes a third of a second

    return load_hf_json(content)


def _prebuild(path: Path) -> None:
    try:
        content = path.read_bytes()
        _prebuilt[hashlib.sha256(content).hexdigest()] = _load(content)
    except (OSError, ImportError, RuntimeError):
        pass  # `build` tries again and reports the fault


if VARIABLE in os.environ:
    _prebuild(Path(os.environ.pop(VARIABLE)))
