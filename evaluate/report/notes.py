"""Notes on a group: observations that a reader needs before trusting its numbers. They are not verdicts.

The thresholds only decide which observation deserves a line. The certificate (`evaluate/fairness/`) decides whether two
systems did the same work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from evaluate.report.groups import ENOUGH_RUNS, Group, Row, Spread
from evaluate.report.tables import plain
from utils.results.resolved_names import RESOLVED_NAMES
from utils.settings.keys import names_of

INITIAL_LOSS_RELATIVE = 1e-3
"""Equal weights and an equal first batch give an equal first loss, up to rounding far below a thousandth."""
FINAL_LOSS_RELATIVE = 0.02
"""A coarse screen for loss curves that diverged; the band of an equivalence test is much narrower."""
ENERGY_KINDS = {
    "gpu_counter": "GPU counter, not the wall",
    "gpu_power": "GPU power, integrated, not the wall",
    "cpu_rapl": "CPU RAPL, not the wall",
}
"""`method` of `energy_metrics`, in words."""
_BY_OTHER_MEANS = (
    *("micro_batch_size", "gradient_accumulation", "global_batch_size", "sequence_length", "precision", "seed"),
    *("tp", "pp", "cp", "dp"),
)
"""Rows of the settings map that the name of a group or row already shows, or that distinguish results."""
_ASKED = tuple(key for key in names_of("work") if key not in _BY_OTHER_MEANS)
MUST_MATCH = {
    "training_config": (*_ASKED, "init", "init_std"),
    "resolved_config": (
        *("parameter_count", "parameters_without_weight_decay", "parameter_dtype"),
        *(key for key in RESOLVED_NAMES if key not in (*_BY_OTHER_MEANS, *_ASKED, "init", "init_std")),
    ),
    "fingerprint": (
        "tokenizer_sha256",
        "model_config_sha256",
        "token_stream_sha256",
        "initial_weights_sha256",
    ),
    "memory_metrics": ("source",),
}
"""The work, and the source of the memory figures: equal in every row of a group; a dot leads into a nested object."""


@lru_cache(maxsize=256)
def notes(group: Group) -> list[str]:
    """Return one line for each observation about `group`. Cached: several reports show them."""
    return [
        *_few_runs(group),
        *_loss_notes(group),
        *_differences(group),
        *_energy_sources(group),
        *_licences(group),
        *_warnings(group),
    ]


def _few_runs(group: Group) -> Iterator[str]:
    few = [f"{row.name} ({len(row.counted)})" for row in group.rows if 0 < len(row.counted) < ENOUGH_RUNS]
    if few:
        yield f"fewer than five runs: {', '.join(few)}; the spread between runs is hardly known"


def _loss_notes(group: Group) -> Iterator[str]:
    screens: tuple[tuple[str, Callable[[Row], Spread | None], float], ...] = (
        ("initial losses", lambda row: row.first_loss, INITIAL_LOSS_RELATIVE),
        ("final losses", lambda row: row.last_loss, FINAL_LOSS_RELATIVE),
    )
    for name, loss_of, allowed in screens:
        means = [(loss.mean, row.name) for row in group.rows if (loss := loss_of(row)) is not None]
        (low, low_name), (high, high_name) = min(means, default=(1.0, "")), max(means, default=(1.0, ""))
        if (high - low) / low > allowed:
            sides = f"{low_name} {low:.5g}, {high_name} {high:.5g}"
            yield f"{name} differ by {(high - low) / low:.2%}, above {allowed:.1%}: {sides}; is it the same training?"


def _differences(group: Group) -> Iterator[str]:
    """Yield what differs between results of one seed; another seed draws other weights and another order by design."""
    for section, keys in MUST_MATCH.items():
        for key in keys:
            by_seed: dict[int, dict[str, dict[str, None]]] = {}
            for row in group.rows:
                for entry in row.counted:
                    value, seed = _value(entry.result[section], key), entry.result["training_config"]["seed"]
                    if value is not None:
                        by_seed.setdefault(seed, {}).setdefault(_shown(key, value), {})[row.name] = None
            for values in by_seed.values():
                if len(values) > 1:
                    sides = "; ".join(f"{value} ({', '.join(names)})" for value, names in values.items())
                    in_map = (
                        f" (settings map: {RESOLVED_NAMES[key]})"
                        if section == "resolved_config" and key in RESOLVED_NAMES
                        else ""
                    )
                    yield f"{section}.{key} differs: {sides}{in_map}"
                    break


def _energy_sources(group: Group) -> Iterator[str]:
    """Yield a line if the energies of a group are of different kinds, such as a counter and integrated power.

    Results of earlier versions have no `method`; their source is the kind.
    """
    kinds: dict[str, dict[str, None]] = {}
    for row in group.rows:
        for entry in row.counted:
            energy = entry.result["energy_metrics"]
            if energy["joules_per_token"] is not None:
                kind = ENERGY_KINDS.get(energy.get("method") or "", energy["source"])
                kinds.setdefault(str(kind), {})[row.name] = None
    if len(kinds) > 1:
        sides = "; ".join(f"{kind} ({', '.join(names)})" for kind, names in kinds.items())
        yield plain(f"energy is not comparable: {sides}")


def _licences(group: Group) -> Iterator[str]:
    """Yield the licences of the data, of each name once; results of earlier versions record none."""
    found: dict[str, dict[str, None]] = {}
    for entry in (entry for row in group.rows for entry in row.counted):
        for name, licence in (entry.result["fingerprint"].get("licences") or {}).items():
            if licence:
                found.setdefault(name, {})[licence] = None
    if found:
        yield plain("licences: " + "; ".join(f"{name} {', '.join(known)}" for name, known in sorted(found.items())))


def _value(section: Any, key: str) -> Any:
    for name in key.split("."):
        section = section.get(name) if isinstance(section, dict) else None
    return section


def _warnings(group: Group) -> Iterator[str]:
    for row in group.rows:
        runs: dict[str, list[int]] = {}
        for entry in row.counted:
            for warning in entry.findings.warnings:
                runs.setdefault(warning, []).append(entry.result["run"])
        for warning, numbers in runs.items():
            yield plain(f"{row.name}, run {', '.join(map(str, sorted(numbers)))}: {warning}")


def _shown(key: str, value: Any) -> str:
    if key.endswith("sha256"):
        return plain(value[:12])
    return plain(value if isinstance(value, str) else json.dumps(value, sort_keys=True))
