"""The fast tokenizer, which takes half a second to build: workers take one that the server they come from has built.

The server imports this module before the first worker is forked, while the process that starts it is still looking at
the tokenizer; all workers then share its memory until they change it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

VARIABLE = "TPRIMAT_PREBUILT_TOKENIZER"
"""Names the tokenizer.json, in the environment of the server alone."""

PRELOAD = ("data.encoding.worker", "data.engines.fast", "tokenizers")
"""What the server imports once for all workers."""

_prebuilt: dict[str, Any] = {}


def build(content: bytes) -> Any:
    """Return a fast tokenizer that nothing else uses, from the content of a tokenizer.json.

    Raises RuntimeError for one that gigatoken cannot run.
    """
    prebuilt = _prebuilt.pop(hashlib.sha256(content).hexdigest(), None)
    _prebuilt.clear()  # what was built for another tokenizer is in the way
    return prebuilt or _load(content)


def _load(content: bytes) -> Any:
    from gigatoken.gigatoken_rs import load_hf_json  # the package around it imports for a third of a second

    return load_hf_json(content)


def _prebuild(path: Path) -> None:
    try:
        content = path.read_bytes()
        _prebuilt[hashlib.sha256(content).hexdigest()] = _load(content)
    except (OSError, ImportError, RuntimeError):
        pass  # whoever needs it tries again, and says what is wrong


if VARIABLE in os.environ:
    _prebuild(Path(os.environ.pop(VARIABLE)))
