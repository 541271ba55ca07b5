"""Work in several processes: results in order, no endless waiting, no process left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import Any

import pytest

from data.encoding import pair, workers


def slow_for_early_parts(part: int) -> tuple[int, int]:
    time.sleep(0.02 if part % 3 == 0 else 0.0)
    return part, os.getpid()


def fail_from_five(part: int) -> int:
    if part == 5:
        time.sleep(0.1)  # so that the later failures are ready first
    if part >= 5:
        raise ValueError(f"part {part}")
    return part


def die_at_four(part: int) -> int:
    if part == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return part


@pytest.mark.parametrize("count", [1, 2, 3])
def test_results_come_in_order_and_workers_end(count: int) -> None:
    results = list(workers.in_order(slow_for_early_parts, range(40), count))
    assert [part for part, _ in results] == list(range(40))
    assert bool({pid for _, pid in results} - {os.getpid()}) == (count > 1)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("function", "count", "error", "said", "kept"),
    [
        (fail_from_five, 1, ValueError, "part 5", 5),
        (fail_from_five, 3, ValueError, "part 5", 5),
        (die_at_four, 2, workers.WorkerError, r"one of 2 was killed.*fewer", None),
    ],
)
def test_the_earliest_error_is_raised_in_its_place_and_a_killed_worker_is_not_waited_for(
    function, count, error, said, kept
) -> None:
    found: list[Any] = []
    with pytest.raises(error, match=said):
        found.extend(workers.in_order(function, range(40), count))
    assert kept is None or found == list(range(kept))
    assert multiprocessing.active_children() == []


def test_parts_are_taken_as_results_are_and_not_all_at_once() -> None:
    parts = iter(range(1000))
    results = workers.in_order(slow_for_early_parts, parts, 2)
    for _ in range(5):
        next(results)
    results.close()
    assert next(parts) <= 5 + 2 * workers.PARTS_AHEAD


@pytest.mark.parametrize(
    ("asked", "cores", "pieces", "started"),
    [(9_999_999, 4, None, 4), (9_999_999, 64, 3, 3), (9_999_999, 64, 0, 1), (3, 64, 100, 3), (1, 64, 100, 1)],
)
def test_no_more_workers_than_cores_and_pieces_of_work(monkeypatch, asked, cores, pieces, started) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert workers.usable(asked, pieces) == started


def test_a_short_text_is_encoded_by_one_process_however_many_are_asked_for(monkeypatch, tmp_path, plain_tokenizer):
    monkeypatch.setattr(workers, "ProcessPoolExecutor", None)
    (tmp_path / "text.jsonl").write_text('{"text": "w1 w2"}\n' * 5)
    assert pair.encode(tmp_path / "text.jsonl", plain_tokenizer, tmp_path / "pair", 9_999_999)["documents"] == 5
