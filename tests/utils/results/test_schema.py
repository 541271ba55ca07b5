"""A result is whole, valid and finite, or it is refused with the key that is wrong; it is read as written."""

import json
import math
import re
from pathlib import Path

import pytest
from checkout import ROOT
from housekeeping import make

from evaluate.inputs.discover import find
from example import example_result
from train.job.job import set_aside
from utils.results import performance, schema, store
from utils.results.keys import IDENTITY_KEYS, KEYS, UTC

SECTION_KEYS = [(section, key) for section, keys in schema.SECTIONS.items() for key in keys]
BROKE = {"status": "failed", "reason": "it broke"}
LOG = {"source": "log"}
SAMPLES = tuple(schema.SAMPLE_DIGITS)
ROWS = [(section, key, row) for section, rows in KEYS.items() for key, row in rows.items()]
OPTIONAL = [(section, key) for section, key, row in ROWS if row.is_optional and section == "energy_metrics"]


UNITS = {
    "_seconds": "seconds",
    "_gb": "GB",
    "_watts": "watts",
    "joules": "joules",
    "joules_per_token": "joules",
    "_mhz": "MHz",
    "_hz": "Hz",
    "_celsius": "Celsius",
    "_percent": "%",
    "_utc": UTC,
    "tokens_per_second": "tokens/s",
    "tokens_per_second_per_gpu": "tokens/s",
    "steps_per_second": "steps/s",
}
"""Unit by the end of a name."""


def words_in(*folders):
    """Return every word that stands in quotes in the Python of these folders."""
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return {word for path in files for word in re.findall(r'"(\w+)"', path.read_text(encoding="utf8"))}


def test_a_key_that_nothing_judges_or_shows_is_recorded_for_a_reason_and_all_others_are_read():
    judging = words_in("evaluate/checks", "evaluate/fairness", "evaluate/verdict", "evaluate/metrics")
    judging |= set(performance.KEYS)  # each of which must follow from the samples
    shown = words_in("evaluate")
    for section, key, row in ROWS:
        if row.reason or row.part or section == "training_config":
            continue
        assert key in (shown if row.is_shown else judging), f"nothing reads {section}.{key}; give a reason to record it"
    assert not [key for _, key, row in ROWS if row.reason and (row.part or row.is_shown)]
    assert not [key for _, key, row in ROWS if bool(row.name) != bool(row.part)], "an item has a name and a part"


def test_a_quantity_has_the_unit_that_its_name_ends_with():
    for _, key, row in ROWS:
        ends = [end for end in UNITS if key.endswith(end)]
        if ends:
            assert row.unit == UNITS[max(ends, key=len)], key


def changed(section, key, value=None, reason=None, **others):
    result = example_result(**{f"{section}__{key}": value}, **others)
    reasons = result[section].setdefault("reasons", {})
    reasons.pop(key, None)
    if reason:
        reasons[key] = reason
    return result


def found(result):
    return "; ".join(store.problems(result))


@pytest.mark.parametrize(("section", "key"), [*SECTION_KEYS, *OPTIONAL])
def test_every_value_of_a_section_is_there_or_null_with_a_reason_and_of_its_type(section, key):
    lacking = changed(section, key)
    assert f"{section}.{key}: missing" in found(lacking)
    del lacking[section][key]
    assert (f"{section}.{key}: missing" in found(lacking)) == ((section, key) not in OPTIONAL)
    assert f"{section}.{key}: got" in found(changed(section, key, ["a list"]))
    must_be_known = section == "training_config" or (section, key) in schema.MEASURED_WHEN_OK
    explained = found(changed(section, key, reason="the counter was not there"))
    assert (f"{section}.{key}: missing" in explained) == bool(explained) == must_be_known


@pytest.mark.parametrize("section", schema.SECTIONS)
def test_a_key_that_is_left_out_with_a_reason_is_read_as_null_and_a_missing_section_is_a_problem(tmp_path, section):
    result = example_result(**BROKE)
    keys = [key for key in schema.SECTIONS[section] if section != "training_config"]
    result[section] = {key: value for key, value in result[section].items() if key not in keys}
    result[section]["reasons"] = {"*": "the training ended early"}
    (tmp_path / "train_x.json").write_text(json.dumps(result))
    assert {key: store.read(tmp_path / "train_x.json")[section][key] for key in keys} == dict.fromkeys(keys)
    del result[section]
    assert section in found(result)


# A log may leave out with a reason what no log says, but knows its speed and what it follows from.
FROM_A_LOG = {
    **dict.fromkeys([*schema.MEASURED_WHEN_OK[2:], ("training_config", "seed"), ("training_config", "tp")], True),
    **dict.fromkeys(schema.MEASURED_WHEN_OK[:2], False),
    **dict.fromkeys([("training_config", key) for key in (*schema.KNOWN_FROM_A_LOG, "max_steps")], False),
}


@pytest.mark.parametrize(("section", "key"), FROM_A_LOG)
def test_a_result_from_a_log_may_leave_out_what_no_log_says_and_no_more(section, key):
    may_lack = FROM_A_LOG[section, key]
    result = changed(section, key, reason="no log says it")
    assert f"{section}.{key}: missing" in found(result)
    assert (found(result | LOG) == "") == may_lack
    assert f"{section}.{key}: missing" in found(changed(section, key) | LOG)


WITHOUT_STEPS = changed("training_config", "max_steps", reason="no log says it")
NOTHING = {"reasons": {"*": "out of memory before the first step"}}
EARLY = {"performance_metrics": NOTHING, "memory_metrics": NOTHING}
EMPTY_REASON = changed("gpu_info", "gpu_cores")
EMPTY_REASON["gpu_info"]["reasons"] = {"gpu_cores": ""}
NO_WAITS = {"data_wait_seconds": [0.0] * 9 + [None]}
EXCLUDED = {"11": "its time is a mean of two"}
RULES = [  # result, the problem that it has; None: it is valid
    (example_result(), None),
    *((example_result(status=status, reason="why"), None) for status in ("oom", "nan", "timeout", "failed")),
    *((example_result(status=status, reason=None), "") for status in ("oom", "failed", "done", None)),
    (example_result(status="ok", reason="nearly"), ""),
    (example_result(status="failed", reason=""), ""),
    *((example_result(**{key: None}), f"{key}: got None") for key in IDENTITY_KEYS),
    (example_result(schema_version=2), "this version reads 1"),
    (example_result(source="hearsay"), "source: got 'hearsay', allowed: recorder, log"),
    (EMPTY_REASON, "gpu_info.reasons"),
    *((changed("fingerprint", "licences", one), None) for one in ({"dataset": "odc-by", "tokenizer": None}, {})),
    *((changed("fingerprint", "licences", one), "fingerprint.licences") for one in ({"dataset": 3}, "mit", None)),
    # one reason for a whole section holds only where the training ended early
    (example_result(status="oom", reason="out of memory", **EARLY), None),
    (example_result(**EARLY), "performance_metrics.steps_per_second: missing without a reason"),
    # how many steps a failed log was to have may be unknown
    (WITHOUT_STEPS | LOG | BROKE, None),
    (WITHOUT_STEPS | BROKE, "training_config.max_steps: missing"),
    # samples
    *((example_result(**{key: example_result()[key][:-1]}), "unequal length") for key in schema.SAMPLES),
    *((example_result(**{key: None}), f"{key}: got None, wanted a list") for key in schema.SAMPLES),
    *(
        (example_result(steps=steps), "steps: wanted rising")
        for steps in ([*range(1, 9), 10, 9], [1] * 10, [*range(10)], [1.0, *range(2, 11)], [True, *range(2, 11)])
    ),
    *(
        (example_result(**{key: [*example_result()[key][:-1], value]}), f"{key}: got {value!r}, wanted finite numbers")
        for key in SAMPLES
        for value in (None, "0.5", True, math.nan, math.inf, -math.inf)
    ),
    *((example_result(**{key: [None] * 10}), f"{key}: got None") for key in SAMPLES),
    *(
        (example_result(**LOG, **{key: [None] * 10}), None if key in ("grad_norms", "learning_rates") else key)
        for key in SAMPLES
    ),
    *(
        (example_result(status=status, reason="step 10", loss_values=[8.3] * 9 + [None], grad_norms=[None] * 10), None)
        for status in ("nan", "failed")
    ),
    (example_result(**BROKE, step_times=[0.5] * 9 + [None]), "step_times: got None"),
    (example_result(**NO_WAITS), "data_wait_seconds: got None"),
    (changed("performance_metrics", "data_wait_fraction", reason="it does not tell", **NO_WAITS), None),
    *(
        (example_result(performance_metrics__data_wait_fraction=share), "data_wait_fraction: got")
        for share in (-0.001, 1.001, 23.0)
    ),
    # warnings
    *(
        (example_result(warnings=value), f"warnings: got {value!r}, wanted a list")
        for value in (None, "a text", [1], [""])
    ),
    (example_result(warnings=["data: slow"]), None),
    # steps that are left out
    (example_result(**LOG, excluded_steps=EXCLUDED), None),
    (example_result(excluded_steps=EXCLUDED), "the recorder measures every step"),
    (example_result(**LOG, excluded_steps={"2": "a mean"}), "excluded_steps: 2 stands among the steps"),
    *(
        (example_result(**LOG, excluded_steps=wrong), "excluded_steps: got")
        for wrong in ({"11": ""}, {"eleven": "a mean"}, {"9" * 5000: "a mean"}, [11], None)
    ),
]
PROFILE = "steps 4-5 of rank 0"


def without(*steps, profile=PROFILE, excluded=None, **changes):
    """Return the example without some of its ten steps."""
    result = example_result(training_config__profile=profile, **changes)
    kept = [place for place, step in enumerate(result["steps"]) if step not in steps]
    for key in schema.SAMPLES:
        result[key] = [result[key][place] for place in kept]
    result["excluded_steps"] = dict.fromkeys(map(str, steps), "profiled") if excluded is None else excluded
    return result


def ended_at(last, *excluded):
    """Return the example of a run that failed after the step `last`."""
    left_out = dict.fromkeys(map(str, excluded), "profiled")
    return without(4, 5, *range(last + 1, 11), excluded=left_out, **BROKE)


OF_AN_EARLIER_VERSION = without(4, 5)
del OF_AN_EARLIER_VERSION["training_config"]["profile"]
OTHER_STEPS = f"wanted the steps of training_config.profile: {PROFILE}"
IN_A_LOG = {"3": "a", "4": "profiled", "5": "profiled", "6": "b"}
RULES += [  # a recorded result leaves out exactly the steps of its profile, and none without one
    (without(4, 5), None),
    (without(4, 5, profile=f"{PROFILE} by nsys"), None),
    (without(4, 5, profile="none"), "got 4 to 5 as profiled"),
    (OF_AN_EARLIER_VERSION, "got 4 to 5 as profiled"),
    (without(4, 5, excluded={"4": "slow", "5": "profiled"}), "the recorder measures every step"),
    *((without(*steps), OTHER_STEPS) for steps in ((4,), (5, 6), (3, 4, 5), (4, 5, 6), ())),
    (without(4, 5) | {key: example_result()[key] for key in schema.SAMPLES}, "4 stands among the steps as well"),
    *(
        (without(profile=text), "training_config.profile: got")
        for text in ("yes", "steps 5-4 of rank 0", 7, True, {"a": 1})
    ),
    (ended_at(3), None),
    (ended_at(4, 4), None),
    (ended_at(5, 4, 5), None),
    (ended_at(7, 4, 5), None),
    (without(5, *range(6, 11), excluded={"5": "profiled"}, **BROKE), "got 5 to 5 as profiled"),
    (without(3, 4, 5, 6, excluded=IN_A_LOG, **LOG), None),
    (
        without(3, 4, 5, 6, profile="steps 4-6 of rank 0", excluded=IN_A_LOG, **LOG),
        "wanted the steps of training_config",
    ),
]


@pytest.mark.parametrize(("result", "problem"), RULES)
def test_a_result_has_the_problem_that_its_fault_makes_and_no_other(result, problem):
    if problem is None:
        assert store.problems(result) == []
    else:
        assert store.problems(result) and problem in found(result)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        *(
            ({name: [8.0] * 9 + [value] if name == "loss_values" else value}, name.partition("__")[2] or name)
            for name in ("memory_metrics__avg_memory_allocated_gb", "training_config__lr", "loss_values")
            for value in (math.nan, math.inf, -math.inf, 10**400, 2**63)
        ),
        *(
            ({"resolved_config__extra": {"factor": value}}, "train_x.json: cannot be written as JSON")
            for value in (math.nan, math.inf, Path("an object"))
        ),
    ],
)
def test_what_no_reader_could_use_is_not_written(tmp_path, change, named):
    with pytest.raises(store.ResultError, match=named):
        store.write(example_result(**change), tmp_path / "train_x.json")
    assert list(tmp_path.iterdir()) == []


# A result is read as it was written, or its file is refused; earlier attempts are kept as they were.


@pytest.fixture
def path(tmp_path):
    return tmp_path / "train_cpu_mega_llama_run1.json"


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "[" * 100_000, "{", '"text"', "\xff", None])
def test_a_file_that_is_no_valid_result_of_finite_numbers_is_refused_with_its_name(path, text):
    whole = json.dumps(example_result(note="here", **({} if text else {"run": "one", "steps": []})))
    if text is not None:
        whole = whole.replace('"here"', text) if text[0] not in '[{"\xff' else text
    path.write_bytes(whole.encode("latin1"))
    named = path.name if text else f"{path.name}: not a valid result: run: got 'one'.*; samples: lists"
    with pytest.raises(store.ResultError, match=named):
        store.read(path)


ROUNDED = {  # of summaries three decimals, and never fewer than three significant digits
    16384.123456: 16384.123,
    0.4123456: 0.412,
    0.04123456: 0.0412,
    0.000123456: 0.000123,
    -0.04123456: -0.0412,
    0.0: 0.0,
    2.0: 2.0,
    999999999.1236: 999999999.124,
}
SUMMARIES = ("performance_metrics__max_step_time_seconds", "memory_metrics__avg_memory_allocated_gb")


@pytest.mark.parametrize("value", ROUNDED)
def test_summaries_keep_three_digits_and_samples_six_of_times_and_nine_of_the_rest(path, value):
    samples = {key: [1 / 3] * 10 for key in schema.SAMPLE_DIGITS}
    given = example_result(**dict.fromkeys(SUMMARIES, value), **samples)
    assert store.write(given, path)
    stored = store.read(path)
    for name in SUMMARIES:
        section, _, key = name.partition("__")
        assert stored[section][key] == ROUNDED[value]
    digits = {key: stored[key][0] for key in schema.SAMPLE_DIGITS}
    assert digits == dict.fromkeys(digits, 0.333333333) | dict.fromkeys(("step_times", "data_wait_seconds"), 0.333333)


def test_what_is_written_is_read_and_of_several_failures_the_first_stays(path):
    first, second = (example_result(status="failed", reason=reason) for reason in ("first", "second"))
    assert store.write(first, path, replace=False) and not store.write(second, path, replace=False)
    assert store.read(path) == first and list(path.parent.iterdir()) == [path]
    assert store.write(example_result(), path) is True
    assert store.read(path) == example_result()


def test_results_are_found_below_folders_each_once_without_superseded_ones(tmp_path):
    nested = tmp_path / "best" / "train_b.json"
    kept = tmp_path / "superseded" / "train_a_attempt1.json"
    for path in (tmp_path / "train_a.json", nested, kept, tmp_path / "compare.json", tmp_path / ".train_c.json.tmp"):
        make(tmp_path, path, "file", b"")
    assert list(find([tmp_path])) == list(find([tmp_path, nested])) == [nested, tmp_path / "train_a.json"]
    assert list(find([kept])) == [kept], "what is named is taken"
    with pytest.raises(store.ResultError, match="nowhere: no such file or folder"):
        list(find([tmp_path / "nowhere"]))


def test_attempts_are_numbered_on_and_keep_their_bytes_also_where_an_earlier_one_was_removed(path):
    assert set_aside(path) == 1, "nothing there yet"
    tenth = path.with_name("train_cpu_mega_llama_run10.json")
    tenth.touch()
    set_aside(tenth)
    assert set_aside(path) == 1, "attempts of run 10 are none of run 1"
    kept = [path.parent / "superseded" / f"{path.stem}_attempt{number}.json" for number in (1, 2, 3)]
    for number in (1, 2, 3):
        path.write_text(f"attempt {number}")
        assert [set_aside(path) for _ in range(2)] == [number + 1] * 2, "asking again moves nothing"
        if number == 2:
            kept[0].unlink()
    assert [one.read_text() for one in kept[1:]] == ["attempt 2", "attempt 3"]


def test_a_result_from_before_a_setting_existed_gets_the_value_that_ran_then(path):
    ran_then = {"optimizer_state": "fp32", "gradient_dtype": "fp32", "recompute": "none"}
    result = example_result()
    for section in ("training_config", "resolved_config"):
        result[section] = {key: value for key, value in result[section].items() if key not in ran_then}
    path.write_text(json.dumps(result))
    read = store.read(path)
    for section, settings in (("training_config", ran_then | {"profile": "none"}), ("resolved_config", ran_then)):
        assert read[section].items() >= settings.items()
