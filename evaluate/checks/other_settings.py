"""Rule of settings beyond the schema: what a framework reports under other names agrees with what was asked."""

from __future__ import annotations

import re
from typing import Any

from utils.results.schema import OPTIONAL_KEYS, SECTIONS, Result

OFF = (None, False, 0, 0.0, "", "0", "none", "None", "false", "no", "off", "disabled")
JUDGED = ("tie_word_embeddings", "query_key_norm", "reasons")
"""Keys beyond the schema that the certificate compares itself."""
SUBJECTS = {
    "dropout": ("dropout",),
    "recompute": ("recompute", "activation_checkpoint", "gradient_checkpoint", "checkpoint_activations", "remat"),
    "precision": ("precision", "fp8", "fp4", "int8", "int4", "autocast", "quant", "_dtype", "dtype_", "bf16", "fp16"),
}
"""Words in the name of a setting, by the subject that they show."""
NOT_ABOUT = ("fusion", "shape", "memory", "recompute_modules")
"""Words of switches that change how a step is computed, not what; not with a word of LOW beside them."""
BITS = {"fp32": 32, "bf16": 16}
"""Least number of bits of weights and reduced gradients, by the precision of a training."""
LOW = ("fp8", "fp4", "int8", "int4", "mxfp", "nvfp", "e4m3", "e5m2", "float8", "float4")
"""Words that name a precision below 16 bits."""


def extra_settings(result: Result) -> dict[str, tuple[str, Any]]:
    """Return every setting beyond the schema that is on and may change the work: its subject, empty if the name does
    not show it, and its value, by name."""
    known = {*SECTIONS["resolved_config"], *OPTIONAL_KEYS["resolved_config"], *JUDGED}
    found = {}
    for key, value in result["resolved_config"].items():
        name = str(key).lower()
        is_low = _is_low(name, value)
        if key not in known and not _is_off(value) and (is_low or not any(word in name for word in NOT_ABOUT)):
            of_name = (subject for subject, words in SUBJECTS.items() if any(word in name for word in words))
            found[str(key)] = ("precision" if is_low else next(of_name, ""), value)
    return found


def extra_settings_agree(result: Result) -> list[str]:
    """Return a line for each setting beyond the schema that contradicts the recomputation or precision asked for."""
    asked = result["training_config"]
    least = BITS.get(str(asked.get("precision")), 0)
    lines = [
        f"{key}: ran {value}, and precision was asked to be {asked['precision']}"
        for key in ("parameter_dtype", "gradient_reduce_dtype")
        if (value := result["resolved_config"].get(key)) and _bits(str(value)) < least
    ]
    for key, (subject, value) in extra_settings(result).items():
        if subject == "recompute" and asked.get("recompute") == "none":
            lines.append(f"{key}: ran {value!r}, and recompute was asked to be none")
        if subject == "precision" and asked.get("precision") in ("bf16", "fp32") and _is_low(key, value):
            lines.append(f"{key}: ran {value!r}, and precision was asked to be {asked['precision']}")
    return lines


def _is_off(value: Any) -> bool:
    if isinstance(value, (dict, list)):
        return all(map(_is_off, value.values() if isinstance(value, dict) else value))
    return any(value is off or (type(value) is type(off) and value == off) for off in OFF)


def _bits(dtype: str) -> int:
    """Return the bits of a number of a type: 16 of `torch.bfloat16`, 8 of `float8_e4m3fn`; 32 if the name has none."""
    found = re.search(r"(?:float|fp|bf|int)(\d+)", dtype.lower())
    return int(found[1]) if found else 32


def _is_low(key: str, value: Any) -> bool:
    return any(word in f"{key} {value}".lower() for word in LOW)
