"""A word that is nearly a known one gets that one as a suggestion; any other word gets none."""

from __future__ import annotations

import pytest

from utils.suggestions import did_you_mean

KNOWN = ("MBS", "GBS", "TP", "TRAIN_ITERS", "WARMUP_ITERS", "--output", "--help", "llama", "qwen")


@pytest.mark.parametrize(
    ("got", "known", "meant"),
    [
        ("TRAIN_ITER", KNOWN, "TRAIN_ITERS"),
        ("TRIAN_ITERS", KNOWN, "TRAIN_ITERS"),
        ("mbs", KNOWN, "MBS"),
        ("train-iters", KNOWN, "TRAIN_ITERS"),
        ("GSB", KNOWN, "GBS"),
        ("tp", KNOWN, "TP"),
        ("lama", KNOWN, "llama"),
        ("Qwen", KNOWN, "qwen"),
        ("--hlep", KNOWN, "--help"),
        ("--ouput", KNOWN, "--output"),
        *((far, KNOWN, None) for far in ("", "XYZ", "zebra", "--zzz", "MBS")),
        ("MBS", [], None),
    ],
)
def test_a_slip_gets_the_known_word_and_any_other_word_none(got, known, meant) -> None:
    assert did_you_mean(got, known) == ("" if meant is None else f"; did you mean {meant}?")
