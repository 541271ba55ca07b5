"""Construction of the fast tokenizer, which takes a third of a second: it begins early, beside everything else.

`prebuild` starts a thread; gigatoken releases the interpreter's lock while it builds. Workers that are forked after
`settle` share the memory of the tokenizer until they write to it. The module imports nothing heavy, so that the thread
does not wait for numpy.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from data.engines.sound import Loaded, without_collection

_prebuilt: dict[str, Any] = {}
_threads: list[threading.Thread] = []


def prebuild(path: Path) -> Loaded | None:
    """Begin to build the fast tokenizer of a tokenizer.json; return its content, so that it is not read again.

    Returns None, and builds nothing, for a file that is not a JSON object: deep nesting would crash gigatoken.
    """
    settle(is_wanted=False)
    try:
        with without_collection():
            content = path.read_bytes()
            parsed = orjson.loads(content)
    except (OSError, ValueError, RecursionError):
        return None  # `read_sound` reports the fault
    if not isinstance(parsed, dict):
        return None
    # not a daemon: a thread in foreign code must not be cut off when the interpreter ends
    _threads.append(threading.Thread(target=_prebuild, args=(content,)))
    _threads[0].start()
    return content, parsed


def settle(*, is_wanted: bool) -> None:
    """Wait until the tokenizer is built, so that this process can be forked; drop it unless `is_wanted`."""
    while _threads:
        _threads.pop().join()
    if not is_wanted:
        _prebuilt.clear()


def build(content: bytes) -> Any:
    """Return a new fast tokenizer from the content of a tokenizer.json.

    Raises RuntimeError for one that gigatoken cannot run.
    """
    settle(is_wanted=True)
    prebuilt = _prebuilt.pop(hashlib.sha256(content).hexdigest(), None)
    _prebuilt.clear()  # a tokenizer that was built for other content only takes memory
    return prebuilt or _load(content)


def _load(content: bytes) -> Any:
    from gigatoken.gigatoken_rs import load_hf_json  # importing the whole package takes a third of a second

    return load_hf_json(content)


def _prebuild(content: bytes) -> None:
    with suppress(ImportError, RuntimeError):  # `build` tries again and reports the fault
        _prebuilt[hashlib.sha256(content).hexdigest()] = _load(content)
