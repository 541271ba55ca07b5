"""Rule of settings beyond the schema: what a framework reports under other names agrees with what was asked."""

from __future__ import annotations

from typing import Any

from utils.results.schema import OPTIONAL_KEYS, SECTIONS, Result

OFF = (None, False, 0, 0.0, "", "0", "none", "None", "false", "no", "off", "disabled")
SUBJECTS = {
    "dropout": ("dropout",),
    "recompute": ("recompute", "activation_checkpoint", "gradient_checkpoint", "checkpoint_activations", "remat"),
    "precision": ("precision", "fp8", "fp4", "int8", "int4", "autocast", "quant", "_dtype", "dtype_", "bf16", "fp16"),
}
"""Words in the name of a setting, by the subject that they show."""
NOT_ABOUT = ("fusion", "shape", "memory", "recompute_modules")
"""Words of switches that change how a step is computed, not what."""
LOW = ("fp8", "fp4", "int8", "int4", "mxfp", "nvfp", "e4m3", "e5m2", "float8", "float4")
"""Words that name a precision below 16 bits."""


def extra_settings(result: Result) -> dict[str, tuple[str, Any]]:
    """Return every setting beyond the schema that is on and is about one of SUBJECTS: its subject and value by name."""
    known = SECTIONS["resolved_config"].keys() | OPTIONAL_KEYS["resolved_config"].keys() | {"reasons"}
    found = {}
    for key, value in result["resolved_config"].items():
        subject = None if key in known else _subject(str(key).lower())
        if subject and not _is_off(value):
            found[str(key)] = (subject, value)
    return found


def extra_settings_agree(result: Result) -> list[str]:
    """Return a line for each setting beyond the schema that contradicts the recomputation or precision asked for."""
    asked = result["training_config"]
    lines = []
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


def _subject(key: str) -> str | None:
    if any(word in key for word in NOT_ABOUT):
        return None
    return next((name for name, words in SUBJECTS.items() if any(word in key for word in words)), None)


def _is_low(key: str, value: Any) -> bool:
    text = f"{key} {value}".lower()
    return any(word in text for word in LOW)
