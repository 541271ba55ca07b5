"""Ranges of integers that an operator may get: an index beyond its table would end the process or damage the device.

Integers that choose no place (masks, counts, seeds) are 1 or 2, which no operator divides by zero with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
ORDINARY = (1, 3)
"""First integer and first one beyond, of integers that choose no place."""
ALONG_A_DIMENSION = (
    *("index_select", "gather", "index_add", "index_add_", "index_copy", "index_copy_"),
    *("scatter", "scatter_", "scatter_add", "scatter_add_"),
)
IN_EVERY_DIMENSION = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put")
LOSSES = ("nll_loss_forward", "nll_loss_backward")
_CHOOSES = re.compile(
    r"index|gather|scatter|embedding|nll_|take|put_|bincount|one_hot|search|bucket|segment|repeat_inter|jagged|nested"
    r"|varlen|ragged|offset|sparse|_csr|unique|grouped"
)


class UnsafeError(ValueError):
    """The integers of a call choose places, and no range is known that is safe."""


def beyond(name: str, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return, for each argument of integers that choose a place, the first integer beyond; of a list, one for each.

    `name` is that of the operator without namespace and overload, `named` its described arguments
    (train/rehearsal/calls.py) by their names in its schema. Raises UnsafeError.
    """
    try:
        if name == "embedding":
            return {"indices": named["weight"]["shape"][0]}
        if name == "embedding_dense_backward":
            return {"indices": named["num_weights"]}
        if name in ALONG_A_DIMENSION:
            return {"index": named["self"]["shape"][named["dim"]]}
        if name in IN_EVERY_DIMENSION:
            _require_no_mask(named["indices"])
            return {"indices": named["self"]["shape"]}
        if name in LOSSES:
            shape = named["self"]["shape"]
            return {"target": shape[1] if len(shape) > 1 else shape[0]}
    except (LookupError, TypeError) as error:
        raise UnsafeError(f"its integers choose places, and {error} leaves their range unknown") from error
    if _CHOOSES.search(name) and any(_is_integer(one) for one in _leaves(list(named.values()))):
        raise UnsafeError("its integers choose places, and no safe range is known for this operator")
    return {}


def _require_no_mask(indices: Any) -> None:
    """Raise UnsafeError for a mask, whose number of places depends on its values."""
    if any(isinstance(one, dict) and one.get("dtype") == "bool" for one in indices):
        raise UnsafeError("a mask chooses its places")


def _is_integer(found: Any) -> bool:
    return isinstance(found, dict) and "shape" in found and found["dtype"] in INTEGERS and 0 not in found["shape"]


def _leaves(found: list[Any]) -> list[Any]:
    return [leaf for one in found for leaf in (_leaves(one) if isinstance(one, list) else [one])]
