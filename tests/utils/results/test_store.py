"""A result is whole, valid and finite, or it is refused; earlier attempts are kept as they were."""

import json
import math
from pathlib import Path

import pytest

from example import example_result
from utils.results import schema, store
from utils.results.store import ResultError, find, problems, read, result_name, set_aside, validate, write
from utils.settings.keys import KEYS, InResults, Key

SECTION_KEYS = [(section, key) for section, keys in schema.SECTIONS.items() for key in keys]
NOT_FINITE = [math.nan, math.inf, -math.inf]


def changed(section, key, value=None, reason=None):
    result = example_result(**{f"{section}__{key}": value})
    reasons = result[section].setdefault("reasons", {})
    reasons.pop(key, None)
    if reason:
        reasons[key] = reason
    return result


def found(result):
    return "; ".join(problems(result))


def test_the_example_is_valid_and_comes_back_as_it_was_written(tmp_path):
    assert problems(example_result()) == []
    assert write(example_result(), tmp_path / "train_x.json")
    assert read(tmp_path / "train_x.json") == example_result()


@pytest.mark.parametrize(
    ("licences", "is_valid"),
    [
        ({"dataset": "odc-by", "tokenizer": None}, True),
        ({}, True),
        ({"dataset": 3}, False),
        ("mit", False),
        (None, False),
    ],
)
def test_licences_of_the_data_are_texts_or_null_by_name(licences, is_valid):
    result = example_result()
    result["fingerprint"]["licences"] = licences
    assert ("fingerprint.licences" not in found(result)) == is_valid


@pytest.mark.parametrize("section", schema.SECTIONS)
def test_a_key_that_is_left_out_with_a_reason_is_read_as_null(tmp_path, section):
    result = example_result(status="failed", reason="it broke")
    keys = [key for key in schema.SECTIONS[section] if section != "training_config"]
    result[section] = {key: value for key, value in result[section].items() if key not in keys}
    result[section]["reasons"] = {"*": "the training ended early"}
    (tmp_path / "train_x.json").write_text(json.dumps(result))
    assert {key: read(tmp_path / "train_x.json")[section][key] for key in keys} == dict.fromkeys(keys)


@pytest.mark.parametrize(("section", "key"), SECTION_KEYS)
def test_a_value_that_is_missing_without_a_reason_is_a_problem(section, key):
    result = changed(section, key)
    assert f"{section}.{key}: missing" in found(result)
    del result[section][key]
    assert f"{section}.{key}: missing" in found(result)


@pytest.mark.parametrize("key", schema.OPTIONAL_KEYS["energy_metrics"])
def test_a_key_of_later_versions_may_be_left_out_and_is_checked_where_it_is_there(key):
    assert f"energy_metrics.{key}: missing" in found(changed("energy_metrics", key))
    assert problems(changed("energy_metrics", key, reason="the counter was not there")) == []
    assert f"energy_metrics.{key}: got" in found(changed("energy_metrics", key, ["a list"]))


@pytest.mark.parametrize(("section", "key"), SECTION_KEYS)
def test_null_with_a_reason_is_valid_unless_the_value_must_be_known(section, key):
    must_be_known = section == "training_config" or (section, key) in schema.MEASURED_WHEN_OK
    assert bool(problems(changed(section, key, reason="the counter was not there"))) == must_be_known


@pytest.mark.parametrize(("section", "key"), SECTION_KEYS)
def test_a_value_of_another_type_is_a_problem(section, key):
    assert f"{section}.{key}: got" in found(changed(section, key, ["a list"]))


@pytest.mark.parametrize("section", schema.SECTIONS)
def test_a_missing_section_is_a_problem(section):
    result = example_result()
    del result[section]
    assert section in found(result)


@pytest.mark.parametrize("key", schema.IDENTITY)
def test_identity_is_never_missing(key):
    assert found(example_result(**{key: None})).startswith(f"{key}: got None")


def test_one_reason_for_a_whole_section_holds_only_where_the_training_ended_early():
    nothing = {"reasons": {"*": "out of memory before the first step"}}
    early = {"performance_metrics": nothing, "memory_metrics": nothing}
    assert problems(example_result(status="oom", reason="out of memory", **early)) == []
    assert "performance_metrics.steps_per_second: missing without a reason" in found(example_result(**early))


def test_an_empty_reason_is_none():
    result = changed("gpu_info", "gpu_cores")
    result["gpu_info"]["reasons"] = {"gpu_cores": ""}
    assert "gpu_info.reasons" in found(result)


@pytest.mark.parametrize(
    ("status", "reason", "is_valid"),
    [
        ("ok", None, True),
        ("ok", "nearly", False),
        ("oom", "out of memory", True),
        ("nan", "loss nan", True),
        ("timeout", "60 s", True),
        ("failed", None, False),
        ("failed", "", False),
        ("done", None, False),
        (None, "why", False),
    ],
)
def test_every_status_but_ok_says_why(status, reason, is_valid):
    assert (problems(example_result(status=status, reason=reason)) == []) == is_valid


def from_log(**changes):
    return example_result(source="log", **changes)


@pytest.mark.parametrize(
    ("section", "key"), [*schema.MEASURED_WHEN_OK[2:], ("training_config", "seed"), ("training_config", "tp")]
)
def test_a_result_from_a_log_may_leave_out_what_no_log_says_with_a_reason(section, key):
    result = changed(section, key, reason="no log says it")
    assert f"{section}.{key}: missing" in found(result)
    assert problems(result | {"source": "log"}) == []
    assert f"{section}.{key}: missing without a reason" in found(changed(section, key) | {"source": "log"})


@pytest.mark.parametrize(
    ("section", "key"),
    [*schema.MEASURED_WHEN_OK[:2], *(("training_config", key) for key in (*schema.KNOWN_FROM_A_LOG, "max_steps"))],
)
def test_a_result_from_a_log_knows_its_speed_and_what_it_follows_from(section, key):
    assert f"{section}.{key}: missing" in found(changed(section, key, reason="no log says it") | {"source": "log"})


def test_how_many_steps_a_failed_log_was_to_have_may_be_unknown():
    result = changed("training_config", "max_steps", reason="no log says it")
    assert problems(result | {"source": "log", "status": "failed", "reason": "it stops"}) == []
    assert "training_config.max_steps: missing" in found(result | {"status": "failed", "reason": "it stops"})


@pytest.mark.parametrize("key", schema.SAMPLE_DIGITS)
def test_only_what_frameworks_do_not_print_may_be_null_in_a_result_from_a_log(key):
    is_allowed = key in ("grad_norms", "learning_rates")
    assert (problems(from_log(**{key: [None] * 10})) == []) == is_allowed
    assert problems(example_result(**{key: [None] * 10})) != []


def test_steps_are_left_out_by_a_log_only_and_with_a_reason():
    excluded = {"11": "its time is a mean of two"}
    assert problems(from_log(excluded_steps=excluded)) == []
    assert "the recorder measures every step" in found(example_result(excluded_steps=excluded))
    assert "excluded_steps: 2 stands among the steps" in found(from_log(excluded_steps={"2": "a mean"}))
    for wrong in ({"11": ""}, {"eleven": "a mean"}, {"9" * 5000: "a mean"}, [11], None):
        assert "excluded_steps: got" in found(from_log(excluded_steps=wrong))


def test_a_result_comes_from_the_recorder_or_a_log():
    assert "source: got 'hearsay', allowed: recorder, log" in found(example_result(source="hearsay"))


def test_another_schema_version_is_not_read():
    assert "this version reads 1" in found(example_result(schema_version=2))


@pytest.mark.parametrize("key", schema.SAMPLES)
def test_samples_of_unequal_length_are_a_problem(key):
    assert "unequal length" in found(example_result(**{key: example_result()[key][:-1]}))
    assert f"{key}: got None, wanted a list" in found(example_result(**{key: None}))


@pytest.mark.parametrize(
    "steps",
    [[1, 2, 3, 4, 5, 6, 7, 8, 10, 9], [1] * 10, list(range(10)), [1.0, *range(2, 11)], [True, *range(2, 11)]],
    ids=["falling", "repeated", "from zero", "a fraction", "a truth value"],
)
def test_steps_rise_from_1_each_once(steps):
    assert "steps: wanted rising" in found(example_result(steps=steps))


@pytest.mark.parametrize("key", schema.SAMPLE_DIGITS)
@pytest.mark.parametrize("value", [None, "0.5", True, *NOT_FINITE])
def test_a_sample_is_a_finite_number(key, value):
    samples = example_result()[key][:-1] + [value]
    assert f"{key}: got {value!r}, wanted finite numbers" in found(example_result(**{key: samples}))


@pytest.mark.parametrize("value", [None, "a text", [1], [""], [None]])
def test_warnings_are_a_list_of_texts(value):
    assert f"warnings: got {value!r}, wanted a list of texts" in found(example_result(warnings=value))
    assert problems(example_result(warnings=["data: slow"])) == []


@pytest.mark.parametrize("value", [-0.001, 1.001, 23.0])
def test_a_share_is_between_0_and_1(value):
    assert "data_wait_fraction: got" in found(example_result(performance_metrics__data_wait_fraction=value))


def test_waits_for_data_may_be_null_only_where_their_share_is():
    waits = [0.0] * 9 + [None]
    assert "data_wait_seconds: got None" in found(example_result(data_wait_seconds=waits))
    unknown = changed("performance_metrics", "data_wait_fraction", reason="the framework does not tell")
    assert problems(unknown | {"data_wait_seconds": waits}) == []


@pytest.mark.parametrize("status", ["nan", "failed"])
def test_loss_and_norm_may_be_null_only_in_a_result_that_is_not_ok(status):
    samples = {"loss_values": [8.3] * 9 + [None], "grad_norms": [None] * 10}
    assert problems(example_result(status=status, reason="step 10", **samples)) == []
    assert "loss_values: got None" in found(example_result(**samples))
    times = example_result(status=status, reason="step 10", step_times=[0.5] * 9 + [None])
    assert "step_times: got None" in found(times)


@pytest.mark.parametrize("value", [*NOT_FINITE, 10**400, 2**63], ids=str)
@pytest.mark.parametrize("name", ["memory_metrics__avg_memory_allocated_gb", "training_config__lr", "loss_values"])
def test_a_number_that_no_reader_could_use_is_not_written(tmp_path, name, value):
    wrong = example_result(**{name: [8.0] * 9 + [value] if name == "loss_values" else value})
    with pytest.raises(ResultError, match=name.partition("__")[2] or name):
        write(wrong, tmp_path / "train_x.json")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_json_is_not_written_wherever_it_hides(tmp_path):
    for value in (math.nan, math.inf, Path("an object")):
        with pytest.raises(ResultError, match="train_x.json: cannot be written as JSON"):
            write(example_result(resolved_config__extra={"factor": value}), tmp_path / "train_x.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "[" * 100_000, "{", '"text"', "\xff"])
def test_a_file_that_is_no_json_of_finite_numbers_is_refused_with_its_name(tmp_path, text):
    path = tmp_path / "train_x.json"
    whole = json.dumps(example_result(note="here")).replace('"here"', text) if text[0] not in '[{"\xff' else text
    path.write_bytes(whole.encode("latin1"))
    with pytest.raises(ResultError, match="train_x.json"):
        read(path)


def test_a_file_that_breaks_the_schema_is_refused_with_all_its_problems(tmp_path):
    path = tmp_path / "train_x.json"
    path.write_text(json.dumps(example_result(run="one", steps=[])))
    with pytest.raises(ResultError, match="train_x.json: not a valid result: run: got 'one'.*; samples: lists"):
        read(path)
    with pytest.raises(ResultError, match="somewhere"):
        validate({}, "somewhere")


def test_summaries_keep_three_decimals_and_never_fewer_than_three_significant_digits(tmp_path):
    shortened = {
        16384.123456: 16384.123,
        0.4123456: 0.412,
        0.04123456: 0.0412,
        0.000123456: 0.000123,
        -0.04123456: -0.0412,
        0.0: 0.0,
        2.0: 2.0,
        999999999.1236: 999999999.124,
    }
    for value, expected in shortened.items():
        for section, key in (
            ("performance_metrics", "max_step_time_seconds"),
            ("memory_metrics", "avg_memory_allocated_gb"),
            ("energy_metrics", "joules_per_token"),
        ):
            write(changed(section, key, value), tmp_path / "train_x.json")
            assert read(tmp_path / "train_x.json")[section][key] == expected


def test_raw_samples_keep_six_digits_of_times_and_nine_of_the_rest(tmp_path):
    third = 1 / 3
    write(example_result(**{key: [third] * 10 for key in schema.SAMPLE_DIGITS}), tmp_path / "train_x.json")
    stored = read(tmp_path / "train_x.json")
    assert {stored[key][0] for key in ("step_times", "data_wait_seconds")} == {0.333333}
    assert {stored[key][0] for key in ("loss_values", "grad_norms", "learning_rates")} == {0.333333333}


def test_of_several_failures_the_first_stays(tmp_path):
    path = tmp_path / "train_x.json"
    assert write(example_result(status="failed", reason="first"), path, replace=False) is True
    before = path.read_bytes()
    assert write(example_result(status="failed", reason="second"), path, replace=False) is False
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    assert write(example_result(), path) is True
    assert read(path)["status"] == "ok"


def test_results_are_found_below_folders_each_once_without_superseded_ones(tmp_path):
    nested = tmp_path / "best" / "train_b.json"
    kept = tmp_path / store.SUPERSEDED / "train_a_attempt1.json"
    for path in (tmp_path / "train_a.json", nested, kept, tmp_path / "compare.json", tmp_path / ".train_c.json.tmp"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert list(find([tmp_path])) == [nested, tmp_path / "train_a.json"]
    assert list(find([tmp_path, nested])) == [nested, tmp_path / "train_a.json"]
    assert list(find([kept])) == [kept], "what is named is taken"
    with pytest.raises(ResultError, match="nowhere: no such file or folder"):
        list(find([tmp_path / "nowhere"]))


def test_attempts_are_numbered_on_and_keep_their_bytes(tmp_path):
    path = tmp_path / "train_x.json"
    kept = tmp_path / store.SUPERSEDED
    assert set_aside(path) == 1, "nothing there yet"
    for next_attempt in (2, 3, 4):
        path.write_text(f"attempt {next_attempt - 1}")
        assert set_aside(path) == next_attempt
        assert not path.exists()
        assert set_aside(path) == next_attempt, "asking again moves nothing"
    assert [(kept / f"train_x_attempt{n}.json").read_text() for n in (1, 2, 3)] == [f"attempt {n}" for n in (1, 2, 3)]


def test_an_attempt_is_not_overwritten_where_an_earlier_one_was_removed(tmp_path):
    path = tmp_path / "train_x.json"
    for number in (1, 2):
        path.write_text(f"attempt {number}")
        set_aside(path)
    kept = tmp_path / store.SUPERSEDED
    (kept / "train_x_attempt1.json").unlink()
    path.write_text("attempt 3")
    assert set_aside(path) == 4
    assert (kept / "train_x_attempt2.json").read_text() == "attempt 2"


def test_attempts_of_run_10_are_none_of_run_1(tmp_path):
    first, tenth = (tmp_path / result_name("cpu", "hf", "llama", run) for run in (1, 10))
    tenth.touch()
    set_aside(tenth)
    assert set_aside(first) == 1


def test_a_result_from_before_a_setting_existed_gets_the_value_that_ran_then(tmp_path, monkeypatch):
    path = tmp_path / "train_cpu_mega_llama_run1.json"
    store.write(example_result(), path)
    later = Key("later", float, "a number", "a setting of a later version", InResults("later", float, before=0.5))
    monkeypatch.setitem(KEYS, "LATER", later)
    result = store.read(path)
    assert (result["training_config"]["later"], result["resolved_config"]["later"]) == (0.5, 0.5)
