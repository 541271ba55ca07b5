"""Columns of a table of runs: one name for each key of the schema, and no value under a name that is not its own."""

from __future__ import annotations

import json

import pytest

from evaluate.frames.columns import BOOLEAN, FLOAT, INTEGER, TEXT, TIME, cells, dtypes, names
from example import example_result
from utils.results.schema import OPTIONAL_SECTIONS, SECTIONS


def test_every_key_of_the_schema_has_a_column_of_its_own():
    keys = [(section, key) for section, found in (SECTIONS | OPTIONAL_SECTIONS).items() for key in found]
    assert list(names()) == keys
    assert len(set(names().values())) == len(keys)


@pytest.mark.parametrize(
    ("section", "key", "column", "dtype"),
    [
        ("performance_metrics", "tokens_per_second_per_gpu", "tokens_per_second_per_gpu", FLOAT),
        ("training_config", "precision", "precision", TEXT),
        ("resolved_config", "precision", "resolved_config.precision", TEXT),
        ("resolved_config", "parameter_count", "parameter_count", INTEGER),
        ("resolved_config", "qkv_bias", "qkv_bias", BOOLEAN),
        ("memory_metrics", "source", "memory_metrics.source", TEXT),
        ("provenance", "started_utc", "started_utc", TIME),
        ("conditions", "driver_version", "conditions.driver_version", TEXT),
        ("repeats", "runs", "repeats.runs", TEXT),
    ],
)
def test_a_column_has_the_key_as_its_name_and_the_section_before_it_only_where_another_has_the_key(
    section, key, column, dtype
):
    assert names()[section, key] == column
    assert dtypes()[column] == dtype


def test_nested_objects_lists_and_unknown_keys_are_named_by_their_place():
    found = cells(
        example_result(
            resolved_config__fused_ops={"rms_norm": True},
            resolved_config__of_a_later_version=7,
            provenance__hosts=["a", "b"],
            performance_metrics__loop_seconds=4.5,
        )
    )
    assert found["resolved_config.fused_ops.rms_norm"] is True
    assert found["resolved_config.rope_scaling.factor"] == 8.0
    assert found["resolved_config.of_a_later_version"] == 7
    assert found["provenance.framework_versions.torch"] == "2.13.0"
    assert found["provenance.hosts"] == "a; b"
    assert found["performance_metrics.loop_seconds"] == 4.5


def test_a_key_of_a_file_cannot_take_the_place_of_a_column():
    found = cells(example_result(is_counted=True, file="/etc/passwd", steady_steps=9, run=3))
    assert "is_counted" not in found and "file" not in found and "steady_steps" not in found
    assert found["run"] == 3


def test_reasons_of_missing_values_are_kept_by_column():
    reasons = json.loads(cells(example_result())["reasons"])
    assert reasons["joules"] == "not measured"
    assert reasons["energy_metrics.source"] == "not measured"
    assert reasons["sliding_window"] == "this model attends to every earlier token"


@pytest.mark.parametrize("text", ["now", "yesterday", "2026-13-01T00:00:00+00:00", "9999-12-31T23:59:59-23:59"])
def test_a_text_that_is_no_time_is_missing_with_the_reason(text):
    found = cells(example_result(provenance__started_utc=text))
    assert found["started_utc"] is None
    assert text in json.loads(found["reasons"])["started_utc"]
    honest = cells(example_result())
    assert honest["started_utc"].isoformat() == "2026-11-21T00:00:00+00:00"
