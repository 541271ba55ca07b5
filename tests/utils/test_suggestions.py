"""A word that is nearly a known one gets that one as a suggestion; any other word gets none."""

from __future__ import annotations

import pytest

from utils.suggestions import did_you_mean

KNOWN = ("MBS", "GBS", "TP", "TRAIN_ITERS", "WARMUP_ITERS", "--output", "--help", "llama", "qwen")


@pytest.mark.parametrize(
    ("got", "meant"),
    [
        ("TRAIN_ITER", "TRAIN_ITERS"),
        ("TRIAN_ITERS", "TRAIN_ITERS"),
        ("mbs", "MBS"),
        ("train-iters", "TRAIN_ITERS"),
        ("GSB", "GBS"),
        ("tp", "TP"),
        ("lama", "llama"),
        ("Qwen", "qwen"),
        ("--hlep", "--help"),
        ("--ouput", "--output"),
    ],
)
def test_a_slip_gets_the_known_word(got: str, meant: str) -> None:
    assert did_you_mean(got, KNOWN) == f"; did you mean {meant}?"


@pytest.mark.parametrize("got", ["", "XYZ", "zebra", "--zzz", "MBS"])
def test_a_word_that_is_not_near_and_a_known_one_get_none(got: str) -> None:
    assert did_you_mean(got, KNOWN) == ""


def test_nothing_known_suggests_nothing() -> None:
    assert did_you_mean("MBS", []) == ""
