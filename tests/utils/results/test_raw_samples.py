"""What a trainer puts into its log at the end can be read back, and is the result's own to the last digit."""

from __future__ import annotations

import math

import pytest

from example import example_result
from utils.results import raw_samples, schema


def test_the_lines_hold_every_sample_with_all_digits_and_what_they_are_samples_of():
    given = example_result(step_times=[math.pi / step for step in range(1, 11)], data_wait_seconds=[None] * 10)
    said = [raw_samples.parse(line) for line in raw_samples.lines(given)]
    identity, *sections, samples = said[0], *said[1:6], said[6:]
    assert identity["identity_sha256"] == given["identity_sha256"] and identity["attempt"] == 1
    assert {name for section in sections for name in section} == set(raw_samples.SECTIONS)
    assert sections[1]["training_config"] == given["training_config"]
    assert [sample["step_times"] for sample in samples] == given["step_times"]
    assert [sample["steps"] for sample in samples] == list(range(1, 11))
    assert all(sample.keys() == set(schema.SAMPLES) for sample in samples)


def test_a_line_is_one_line_and_known_as_such():
    lines = list(raw_samples.lines(example_result(gpu_info__device_name="two\nlines")))
    assert all(line.endswith("\n") and line.count("\n") == 1 and raw_samples.is_raw(line) for line in lines)
    assert raw_samples.parse(lines[1])["gpu_info"]["device_name"] == "two\nlines"


@pytest.mark.parametrize("line", ["raw: {", "raw: []", "raw: 1", "raw: " + "[" * 100_000])
def test_a_damaged_line_is_none(line):
    assert raw_samples.parse(line) is None


def test_a_sample_that_is_no_number_is_not_written():
    with pytest.raises(ValueError, match="JSON"):
        list(raw_samples.lines(example_result(loss_values=[math.nan] * 10)))
