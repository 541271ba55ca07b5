"""Schema of a result: the rules that each key has to satisfy, and the rules between keys.

keys.py declares the keys. Standard library only, so that a result can be checked on any machine. A JSON-Schema package
is not used for that reason, and because half of the rules span several keys (equal lengths, a reason beside every
null). A missing measurement is `null`, with its reason in the `reasons` map of its section.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from utils.errors import quoted
from utils.results.keys import IDENTITY_KEYS, KEYS, SAMPLE_KEYS, SECTIONS_OF_SOME, Contents, Kind, ResultKey
from utils.settings import profiling
from utils.settings.keys import InResults, Number, in_results

SCHEMA_VERSION = 1
YEARS = range(2000, 2200)
"""Of every time on record; another is a slip or a machine whose clock was never set."""
STATUSES = ("ok", "oom", "failed", "timeout", "nan")


def _required(section: str) -> dict[str, Kind]:
    """Return the type of each key that a section must have."""
    return {key: row.kind for key, row in KEYS[section].items() if not row.is_optional}


SECTIONS = {section: _required(section) for section in KEYS if section not in SECTIONS_OF_SOME}
"""Required keys of each section, with their types."""
OPTIONAL_SECTIONS = {section: _required(section) for section in SECTIONS_OF_SOME}
SAMPLES = tuple(SAMPLE_KEYS)
SAMPLE_DIGITS = {key: row.digits for key, row in SAMPLE_KEYS.items() if row.digits is not None}
SOURCES = ("recorder", "log", "earlier", "mlperf")
"""Allowed values of `source`; the default is `recorder`. A result read from a framework's log may leave out more, each
with its reason: values that no log contains (KNOWN_FROM_A_LOG must be known), and iterations whose printed time is not
their own (`excluded_steps`, reasons by step number). The same holds for an `earlier` format of this kind of suite
(evaluate/inputs/earlier.py) and for MLPerf (evaluate/inputs/mlperf_logs.py); these may also lack their losses."""
LONGEST_NAME = 1000
"""Characters of an identity, a device or a host; a file name has 255 at most."""
KNOWN_FROM_A_LOG = ("global_batch_size", "sequence_length", "num_gpus")
"""Settings that are needed to derive the throughput from a log; an ok result also has `max_steps`."""
LARGEST_INTEGER = 2**63 - 1
"""JSON has no limit, but other readers of the file have this one; every count here is far below it."""
MEASURED_WHEN_OK = (
    ("performance_metrics", "avg_step_time_seconds"),
    ("performance_metrics", "tokens_per_second_per_gpu"),
    ("resolved_config", "parameter_count"),
    ("fingerprint", "token_stream_sha256"),
)


def unknown(section: str, reason: str) -> dict[str, Any]:
    """Return a section of which nothing is known, with one reason for every key."""
    keys = _required(section)
    return {**dict.fromkeys(keys), "reasons": dict.fromkeys(keys, reason)}


def with_later_settings(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with each setting that is newer than the result, at the value that was used then.

    A result that was extracted from a log of any origin (`source`) gets null and a reason instead, of a setting that a
    trainer reads back.
    """
    is_ours = result.get("source", "recorder") == "recorder"
    for place in in_results().values():
        if place.before is None:
            continue
        if place.kind is not None:
            _add_setting(result, "training_config", place, is_ours=is_ours)
            _add_setting(result, "resolved_config", place, is_ours=is_ours)
        elif is_ours:
            _add_setting(result, "training_config", place, is_ours=True)
    return result


def _add_setting(result: dict[str, Any], name: str, place: InResults, *, is_ours: bool) -> None:
    """Add a setting to a section that neither has it nor says why it is missing."""
    section = result.get(name)
    if not isinstance(section, dict) or place.key in section:
        return
    # a null that is explained was not read back, and no value that ran then takes its place
    reasons = section.get("reasons")
    if isinstance(reasons, dict) and (place.key in reasons or "*" in reasons):
        return
    if is_ours:
        section[place.key] = place.before(section) if callable(place.before) else place.before
        return
    section[place.key] = None
    if isinstance(reasons, dict):
        reasons[place.key] = "the setting is newer than this result"


def problems(result: Mapping[str, Any]) -> list[str]:
    """Return every violation of the schema in `result`, one line each; an empty list means that it is valid."""
    version = result.get("schema_version")
    if version != SCHEMA_VERSION:
        return [f"schema_version: got {quoted(version)}, this version reads {SCHEMA_VERSION}"]
    is_ok = result.get("status") == "ok"
    is_foreign = result.get("source", "recorder") != "recorder"
    lines = [*_top_problems(result), *_long_names(result)]
    lines += _excluded_problems(result, is_ok=is_ok, is_foreign=is_foreign)
    for section in SECTIONS:
        lines += _section_problems(section, result.get(section), is_ok=is_ok, is_foreign=is_foreign)
    # only the recorder writes these, so nothing in them may be missing without a reason
    for section in SECTIONS_OF_SOME:
        if section in result:
            lines += _section_problems(section, result[section], is_ok=True, is_foreign=False)
    return [*lines, *_sample_problems(result)]


def _top_problems(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of the keys outside of the sections, and of the one key whose range the schema limits."""
    status, reason = result.get("status"), result.get("reason")
    if status not in STATUSES:
        yield f"status: got {quoted(status)}, allowed: {', '.join(STATUSES)}"
    if status == "ok" and reason is not None:
        yield f"reason: got {quoted(reason)}, an ok result has none"
    if status != "ok" and not is_text(reason):
        yield f"reason: got {quoted(reason)}, a result that is not ok says why"
    for key, row in IDENTITY_KEYS.items():
        value = result.get(key)
        if not _is_instance(value, row.kind):
            yield f"{key}: got {quoted(value)}, wanted {_type_name(row.kind)}"
    warnings = result.get("warnings")
    if not isinstance(warnings, list) or not all(map(is_text, warnings)):
        yield f"warnings: got {quoted(warnings)}, wanted a list of texts"
    source = result.get("source", "recorder")
    if source not in SOURCES:
        yield f"source: got {quoted(source)}, allowed: {', '.join(SOURCES)}"
    waiting = _data_wait_fraction(result)
    if _is_instance(waiting, Number) and not 0 <= waiting <= 1:
        yield f"performance_metrics.data_wait_fraction: got {quoted(waiting)}, wanted 0 to 1"


def _excluded_problems(result: Mapping[str, Any], *, is_ok: bool, is_foreign: bool) -> list[str]:
    excluded, steps = result.get("excluded_steps", {}), result.get("steps")
    if not isinstance(excluded, dict) or not all(_is_step(step) and is_text(excluded[step]) for step in excluded):
        return [f"excluded_steps: got {quoted(excluded)}, wanted texts by step number"]
    if not is_foreign and set(excluded.values()) - {profiling.PROFILED}:
        return ["excluded_steps: the recorder measures every step that is not profiled; wanted no other reason"]
    measured: set[int] = set()
    if isinstance(steps, list):
        measured = {step for step in steps if isinstance(step, int)}
    lines = [f"excluded_steps: {key} stands among the steps as well" for key in excluded if int(key) in measured]
    text = _section(result, "training_config").get("profile")
    if text is None and is_foreign:
        return lines  # a log does not hold the setting
    return lines + _profile_problems(text, excluded, measured, is_ok=is_ok)


def _is_step(key: Any) -> bool:
    # 18 digits, because int() of a text of thousands of digits raises
    return str(key).isdecimal() and len(str(key)) <= 18


def _profile_problems(text: Any, excluded: Mapping[str, str], measured: set[int], *, is_ok: bool) -> list[str]:
    """Check that exactly the steps of `training_config.profile` are excluded as profiled, as far as the run came."""
    try:
        profile = None if text is None else profiling.parse(text)
    except ValueError:
        form = f"{profiling.NO_PROFILE}, or a text such as steps 11-13 of rank 0"
        return [f"training_config.profile: got {quoted(text)}, wanted {form}"]
    marked = sorted(int(step) for step, reason in excluded.items() if reason == profiling.PROFILED)
    steps = range(0) if profile is None else profile.steps
    if not is_ok:  # it may have ended before or in the profile
        last = max((*measured, *map(int, excluded)), default=0)
        steps = range(steps.start, min(steps.stop, last + 1))
    # not compared as lists: a text may name a profile of 1e12 steps
    if len(marked) == len(steps) and all(step in steps for step in marked):
        return []
    shown = f"{marked[0]} to {marked[-1]}" if marked else "none"
    return [f"excluded_steps: got {shown} as profiled, wanted the steps of training_config.profile: {text or 'none'}"]


def _section_problems(section: str, value: Any, *, is_ok: bool, is_foreign: bool) -> list[str]:
    if not isinstance(value, dict):
        return [f"{section}: got {type(value).__name__}, wanted an object"]
    reasons = value.get("reasons", {})
    if not isinstance(reasons, dict) or not all(map(is_text, reasons.values())):
        return [f"{section}.reasons: got {quoted(reasons)}, wanted texts by key"]
    # a training that ended early explains a whole section at once; a complete one explains every null
    has_reason_for_all = "*" in reasons and not is_ok
    lines = []
    for key, row in KEYS[section].items():
        if row.is_optional and key not in value:
            continue
        if value.get(key) is not None:
            problem = _value_problem(row, value[key])
        elif _must_be_measured(section, key, is_ok=is_ok, is_foreign=is_foreign):
            problem = "missing in a result that says ok"
        elif section == "training_config" and not (is_foreign and _may_lack(key, is_ok=is_ok)):
            problem = "missing; a setting is always known"
        elif row.needs_reason and key not in reasons and not has_reason_for_all:
            problem = "missing without a reason"
        else:
            continue
        if problem:
            lines.append(f"{section}.{key}: {problem}")
    return lines


def _must_be_measured(section: str, key: str, *, is_ok: bool, is_foreign: bool) -> bool:
    """Return whether a result needs the value itself. Of a log only the speed must be known."""
    return is_ok and (section, key) in MEASURED_WHEN_OK and (section == "performance_metrics" or not is_foreign)


def _may_lack(setting: str, *, is_ok: bool) -> bool:
    """Return whether a result from a log may lack a setting. A training that failed may not say how long it was."""
    return setting not in KNOWN_FROM_A_LOG and not (is_ok and setting == "max_steps")


def _value_problem(row: ResultKey, value: Any) -> str:
    """Return what is wrong with a value that is there; empty if nothing is."""
    if not _is_instance(value, row.kind):
        return f"got {quoted(value)}, wanted {_type_name(row.kind)}"
    if row.contents is not None and not _has_contents(value, row.contents):
        return f"got {quoted(value)}, wanted {row.contents.words}"
    return ""


def _has_contents(value: Any, contents: Contents) -> bool:
    """Return whether all values inside of an object or a list are as they have to be."""
    if contents.is_complete:
        return bool(value) and all(map(is_text, value))
    inner = value.values() if isinstance(value, dict) else value
    return all(entry is None or _is_instance(entry, contents.kind) for entry in inner)


def time_of(text: object) -> datetime:
    """Return a time on record in UTC, which a text without a zone is in; raise ValueError if it is no time of YEARS."""
    time = datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    if time.year not in YEARS:
        raise ValueError(f"the year {time.year}")
    if time.tzinfo is None:
        return time.replace(tzinfo=timezone.utc)
    return time.astimezone(timezone.utc)


def _long_names(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each name that is too long for a table."""
    # names become columns of tables and parts of file names
    names = {key: result.get(key) for key in IDENTITY_KEYS}
    for key, value in _section(result, "gpu_info").items():
        names[f"gpu_info.{key}"] = value
    names["provenance.host"] = _section(result, "provenance").get("host")
    for key, name in names.items():
        if isinstance(name, str) and len(name) > LONGEST_NAME:
            yield f"{key}: got a text of {len(name):,} characters, wanted at most {LONGEST_NAME:,}"


def _sample_problems(result: Mapping[str, Any]) -> list[str]:
    lists: dict[str, Any] = {key: result.get(key) for key in SAMPLES}
    wrong = [key for key, values in lists.items() if not isinstance(values, list)]
    if wrong:
        return [f"{key}: got {quoted(lists[key])}, wanted a list" for key in wrong]
    lines = []
    lengths = {key: len(values) for key, values in lists.items()}
    if len(set(lengths.values())) != 1:
        lines.append(f"samples: lists of unequal length {lengths}")
    steps = lists["steps"]
    if not all(_is_instance(step, int) and step >= 1 for step in steps) or sorted(set(steps)) != steps:
        lines.append("steps: wanted rising step numbers from 1, each once")
    may_be_null = _samples_that_may_be_null(result)
    for key in SAMPLE_DIGITS:
        # nearly every list, checked in a tenth of the time
        if set(map(type, lists[key])) <= {float} and all(map(math.isfinite, lists[key])):
            continue
        wanted = "finite numbers or null" if key in may_be_null else "finite numbers"
        for value in lists[key]:
            is_good = key in may_be_null if value is None else _is_instance(value, Number)
            if not is_good:
                lines.append(f"{key}: got {quoted(value)}, wanted {wanted}")
                break
    return lines


def _samples_that_may_be_null(result: Mapping[str, Any]) -> set[str]:
    is_ok, source = result.get("status") == "ok", result.get("source", "recorder")
    keys = set()
    if _data_wait_fraction(result) is None:  # the framework cannot measure it
        keys.add("data_wait_seconds")
    # of a run that is not ok: not finite, or not on the rank that failed
    if not is_ok or source in ("earlier", "mlperf"):
        keys.add("loss_values")
    if not is_ok or source != "recorder":  # not every framework prints them
        keys.add("grad_norms")
    if source != "recorder":
        keys.add("learning_rates")
    return keys


def _data_wait_fraction(result: Mapping[str, Any]) -> Any:
    return _section(result, "performance_metrics").get("data_wait_fraction")


def _section(result: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a section of a result; an empty one in place of anything but an object."""
    section = result.get(name)
    return section if isinstance(section, dict) else {}


def is_text(value: Any) -> bool:
    """Check for a text that is not empty."""
    return isinstance(value, str) and value != ""


def _is_instance(value: Any, kind: Kind) -> bool:
    if isinstance(value, bool):  # which Python counts as an int
        return kind is bool or (isinstance(kind, tuple) and bool in kind)
    # before math.isfinite, which raises for an int that no float holds
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        return False
    return isinstance(value, kind) and not (isinstance(value, float) and not math.isfinite(value))


def _type_name(kind: Kind) -> str:
    return "finite number" if kind == Number else str(getattr(kind, "__name__", kind))


Result = Mapping[str, Any]

NO_ENERGY = "not measured: no sampler of power ran beside this job"
ENERGY_RELATIVE = 0.05
"""Largest difference of two sources of one energy. Beyond it, one counts something else, such as one die of two."""
LEAST_HERTZ = 10.0
"""Samples a second of power, below which no energy is given."""

SLOWDOWNS = frozenset(
    {
        # NVIDIA: NVML, nvmlClocksEventReasons
        "hw_slowdown",
        "sw_thermal_slowdown",
        "hw_thermal_slowdown",
        "hw_power_brake_slowdown",
        # AMD: amd-smi metric
        "prochot",
        "socket_thermal",
        "vr_thermal",
        "hbm_thermal",
        "throttled",
    }
)
"""Throttle reasons that a healthy, cooled GPU never reports. A reached power cap is not among them: a fully loaded GPU
runs at its cap."""
