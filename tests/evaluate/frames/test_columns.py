"""Columns of a table of runs: one name for each key of a result, and no value under a name that is not its own."""

from __future__ import annotations

import json
import math

import pytest
from reports import save

from evaluate import frame
from example import example_result


def loaded(folder, **changes):
    """Return the only row of a table, as a dictionary, and the table."""
    save(folder, example_result(**changes))
    table = frame.load(folder)
    return table.iloc[0].to_dict(), table


@pytest.mark.parametrize(
    ("section", "key", "column", "dtype"),
    [
        ("performance_metrics", "tokens_per_second_per_gpu", "tokens_per_second_per_gpu", "float64"),
        ("training_config", "precision", "precision", "string"),
        ("resolved_config", "precision", "resolved_config.precision", "string"),
        ("resolved_config", "parameter_count", "parameter_count", "Int64"),
        ("resolved_config", "qkv_bias", "qkv_bias", "boolean"),
        ("memory_metrics", "source", "memory_metrics.source", "string"),
    ],
)
def test_a_column_has_the_key_as_its_name_and_the_section_before_it_only_where_another_has_the_key(
    tmp_path, section, key, column, dtype
):
    row, table = loaded(tmp_path)
    assert str(table[column].dtype) == dtype and row[column] == example_result()[section][key]


def test_columns_of_sections_that_no_result_has_are_there_too(tmp_path):
    _, table = loaded(tmp_path)
    assert {"conditions.driver_version", "repeats.runs"} <= set(table.columns) and len(set(table.columns)) == len(
        table.columns
    )


def test_nested_objects_lists_and_unknown_keys_are_named_by_their_place(tmp_path):
    found, _ = loaded(
        tmp_path,
        resolved_config__fused_ops={"rms_norm": True},
        resolved_config__of_a_later_version=7,
        provenance__hosts=["a", "b"],
        performance_metrics__loop_seconds=4.5,
    )
    assert found["resolved_config.fused_ops.rms_norm"] is True
    assert found["resolved_config.rope_scaling.factor"] == 8.0
    assert found["resolved_config.of_a_later_version"] == 7
    assert found["provenance.framework_versions.torch"] == "2.13.0"
    assert found["provenance.hosts"] == "a; b"
    assert found["performance_metrics.loop_seconds"] == 4.5


def test_a_key_of_a_file_cannot_take_the_place_of_a_column(tmp_path):
    found, _ = loaded(tmp_path, is_counted="yes", file="/etc/passwd", steady_steps=9, run=3)
    assert found["is_counted"] is True and found["file"].startswith(str(tmp_path)) and found["steady_steps"] == 7
    assert found["run"] == 3


def test_reasons_of_missing_values_are_kept_by_column(tmp_path):
    found, _ = loaded(tmp_path)
    reasons = json.loads(found["reasons"])
    assert math.isnan(found["joules"]) and reasons["joules"] == reasons["energy_metrics.source"] == "not measured"
    assert reasons["sliding_window"] == "this model attends to every earlier token"


@pytest.mark.parametrize("text", ["now", "yesterday", "2026-13-01T00:00:00+00:00", "9999-12-31T23:59:59-23:59"])
def test_a_text_that_is_no_time_is_missing_with_the_reason(tmp_path, text):
    found, table = loaded(tmp_path, provenance__started_utc=text)
    assert table.started_utc.isna().all() and text in json.loads(found["reasons"])["started_utc"]
    honest, _ = loaded(tmp_path / "honest")
    assert honest["started_utc"].isoformat() == "2026-11-21T00:00:00+00:00"
