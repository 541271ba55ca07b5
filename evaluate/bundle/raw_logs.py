"""A result of an archive compared with its raw log: every sample and every setting.

The suite's trainers end their log with their raw samples (utils/results/raw_samples.py). These must equal those of the
result to the last digit; the summary of a result follows from its own samples (evaluate/checks/consistency.py). The log
of Primus is read as train/prim/log_report.py reads it. Values that are in no log (energy, dates, the host) are not
checked.
"""

from __future__ import annotations

import io
import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from evaluate.bundle.archive import UNREADABLE, Bundle
from utils import frameworks
from utils.logs.reader import LogFormatError, read_log
from utils.results import raw_samples, schema, store
from utils.settings import profiling

LONGEST_LINE = 1 << 20
OF_PRIMUS = {
    "world_size": "num_gpus",
    "global_batch_size": "global_batch_size",
    "total_steps": "max_steps",
    "sequence_length": "sequence_length",
}
"""Facts of a log of Primus, with their keys in `training_config`."""


def check(bundle: Bundle, result: Mapping[str, Any]) -> list[str]:
    """Return the faults of a result against its logs, one for each node; an ok result must have logs.

    For Primus they are those that Primus writes.
    """
    if result["provenance"].get("logs"):
        return ["was extracted from a log that is not in the archive: no sample can be checked"]
    run = store.result_name(*(result[key] for key in ("platform", "framework", "model", "run"))).removesuffix(".json")
    label = f"{result['label']}_" if result["label"] else ""
    stem = f"logs/{label}{run}_attempt{result['attempt']}"
    # Primus prints no raw samples: its own log is read as train/prim/log_report.py reads it
    is_primus = frameworks.of(result["framework"]).starts_its_ranks
    ending = ".primus.log" if is_primus else ".log"
    pattern = re.compile(rf"{re.escape(stem)}(_node[0-9]+)?{re.escape(ending)}")
    names = list(filter(pattern.fullmatch, bundle.of_kind("log")))
    if not names:
        missing = f"{stem}{ending}: is missing: no sample of this result can be checked"
        return [missing] if result["status"] == "ok" else []
    try:
        check_log = _check_primus_log if is_primus else _check_own_log
        return list(check_log(bundle, result, names))
    except UNREADABLE as error:
        return [f"{', '.join(names)}: cannot be read ({error})"]


def _check_own_log(bundle: Bundle, result: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    facts: dict[str, Any] = {}
    samples: dict[str, list[Any]] = {key: [] for key in schema.SAMPLES}
    for place, content in _raw_lines(bundle, names):
        if content is None:
            yield f"{place}: damaged line of raw samples"
        elif content.keys() == samples.keys():
            for key, value in content.items():
                samples[key].append(value)
        else:
            facts |= content
    where = names[0] if len(names) == 1 else f"{names[0]} and those of the other nodes"
    has_sections = all(isinstance(facts.get(section), dict) for section in raw_samples.SECTIONS)
    if has_sections and facts.keys() >= set(raw_samples.IDENTITY) and samples["steps"]:
        yield from _facts(facts, result, where)
        yield from _samples(store.rounded(samples), result, where)
    elif result["status"] == "ok":
        yield f"{where}: no complete raw samples of this run: none can be checked"


def _raw_lines(bundle: Bundle, names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield the place and the content of each line of raw samples, None if it is damaged.

    A line may begin with output of other ranks.
    """
    for name in names:
        with bundle.archive.open(name) as raw:
            text = io.TextIOWrapper(raw, encoding="utf8", errors="replace")
            for number, line in enumerate(iter(partial(text.readline, LONGEST_LINE), ""), 1):
                # ranks share a terminal, so another rank may have begun the line
                start = line.find(raw_samples.PREFIX + "{")
                if start >= 0:
                    yield f"{name}:{number}", parsed(line[start:])


def parsed(line: str) -> dict[str, Any] | None:
    """Return the content of a line of raw samples, None if it is damaged."""
    try:
        content = json.loads(line.removeprefix(raw_samples.PREFIX))
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _facts(logged: Mapping[str, Any], result: Mapping[str, Any], where: str) -> Iterator[str]:
    """Compare identity, and the settings that the log has."""
    for key in raw_samples.IDENTITY:
        yield from _difference(key, result.get(key), logged[key], where)
    for section in raw_samples.SECTIONS:
        for key, value in store.rounded({section: logged[section]})[section].items():
            yield from _difference(f"{section}.{key}", result[section].get(key), value, where)


def _samples(logged: Mapping[str, Any], result: Mapping[str, Any], where: str) -> Iterator[str]:
    for key, values in logged.items():
        stored = result[key]
        wrong = [index for index, pair in enumerate(zip(stored, values, strict=False)) if not _is_same(*pair)]
        if len(stored) != len(values):
            yield f"{key}: the result has {len(stored)}, the log {len(values)} ({where})"
        elif wrong:
            first = wrong[0]
            difference = f"the result has {stored[first]}, the log {values[first]}"
            if len(wrong) > 1:
                difference += f", and {len(wrong) - 1} more"
            yield f"{key}: step {result['steps'][first]}: {difference} ({where})"


def _check_primus_log(bundle: Bundle, result: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    config = result["training_config"]
    with tempfile.TemporaryDirectory() as folder:
        paths = [bundle.extract(name, Path(folder)) for name in names]
        try:
            log = read_log(paths, result["framework"])
        except LogFormatError as error:
            yield f"{names[0]}: {error}"
            return
    for name, key in OF_PRIMUS.items():
        fact = log.fact(name)
        if fact is not None:
            yield from _difference(f"training_config.{key}", config[key], fact, names[0])
    profile = profiling.parse(config.get("profile") or profiling.NO_PROFILE)
    excluded = profile.excluded_by_primus if profile else {}
    lacking = frameworks.of(result["framework"]).log_lacks
    logged = {key: values for key, values in log.samples(excluded).items() if key not in lacking}
    yield from _samples(store.rounded(logged), result, names[0])


def _difference(key: str, stored: Any, logged: Any, where: str) -> Iterator[str]:
    if not _is_same(stored, logged):
        yield f"{key}: the result has {json.dumps(stored)}, the log {json.dumps(logged)} ({where})"


def _is_same(stored: Any, logged: Any) -> bool:
    # both went through a text, which may change the last bit
    if isinstance(stored, float) and isinstance(logged, float):
        return math.isclose(stored, logged, rel_tol=1e-12, abs_tol=1e-300)
    return bool(stored == logged)
