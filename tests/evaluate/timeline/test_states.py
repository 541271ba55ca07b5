"""What differs between two runs: everything on record that may change the speed, each thing once."""

from __future__ import annotations

from typing import Any

import pytest

from evaluate.timeline.states import differences, versions_of
from example import example_result


def changed(**changes: Any) -> list[str]:
    return [one.text for one in differences(example_result(), example_result(**changes))]


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"provenance__framework_versions": {"torch": "2.14.0"}}, ["torch 2.13.0 -> 2.14.0"]),
        ({"provenance__framework_versions": {"torch": "2.13.0", "triton": "3.5"}}, ["triton none -> 3.5"]),
        ({"provenance__environment": {"OMP_NUM_THREADS": "1"}}, ["environment OMP_NUM_THREADS none -> 1"]),
        ({"provenance__git_commit": "1" * 40}, ["code commit 000000000000 -> 111111111111"]),
        ({"provenance__code_sha256": "8" * 64}, ["code 999999999999 -> 888888888888"]),
        (
            {"provenance__git_commit": "1" * 40, "provenance__code_sha256": "8" * 64},
            ["code commit 000000000000 -> 111111111111"],
        ),
        (
            {"provenance__framework_versions": {"torch": "2.14.0"}, "gpu_info__pytorch_version": "2.14.0"},
            ["torch 2.13.0 -> 2.14.0"],
        ),
        ({"resolved_config__attention_backend": "flash"}, ["attention backend torch_sdpa -> flash"]),
        ({"resolved_config__overlap_grad_reduce": True}, ["overlap grad reduce false -> true"]),
    ],
)
def test_each_change_on_record_is_one_line(changes: dict[str, Any], lines: list[str]) -> None:
    assert changed(**changes) == lines


@pytest.mark.parametrize(
    "changes",
    [
        {"run": 3},
        {"provenance__started_utc": "2026-11-22T00:00:00+00:00"},
        {"resolved_config__seed": 43, "training_config__seed": 43},
        {"provenance__framework_versions": None},
        {"provenance__environment": None},
        {"provenance__git_commit": None},
        {"gpu_info__driver_version": "560.1"},  # unknown before
    ],
)
def test_what_is_unknown_or_another_run_is_no_change(changes: dict[str, Any]) -> None:
    assert changed(**changes) == []


def test_an_image_and_its_digest_are_one_line() -> None:
    a = example_result(provenance__image="tprimat:nvd", provenance__image_digest="sha256:" + "a" * 64)
    b = example_result(provenance__image="tprimat:nvd", provenance__image_digest="sha256:" + "b" * 64)
    assert [one.text for one in differences(a, b)] == ["image digest aaaaaaaaaaaa -> bbbbbbbbbbbb"]
    c = example_result(provenance__image="tprimat:new", provenance__image_digest="sha256:" + "b" * 64)
    assert [one.text for one in differences(a, c)] == ["container image tprimat:nvd -> tprimat:new"]


def test_versions_are_packages_driver_and_image() -> None:
    result = example_result(gpu_info__driver_version="560.1", provenance__image="tprimat:nvd")
    assert versions_of(result) == {"torch": "2.13.0", "driver": "560.1", "container image": "tprimat:nvd"}
