"""Through the command line: sides that do not differ are never called different, and too few runs decide nothing.

Each model of one comparison is one trial, so that a single call of evaluate.compare judges all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sides

from evaluate.compare import main
from utils.results import store

MODELS = 4
Side = tuple[int, ...]
"""Runs on each machine."""


def save(
    folder: Path,
    platform: str,
    machines: Side,
    seconds: float,
    noise: float,
    random: np.random.Generator,
    **changes: Any,
) -> None:
    """Write the runs of one side: `noise` is the relative spread between restarts."""
    number = 0
    for machine, count in enumerate(machines):
        for _ in range(count):
            number += 1
            one = seconds * float(np.exp(random.normal(0, noise)))
            result = sides.run(platform, number, one, host=f"{platform}-{machine}", **changes)
            name = "_".join(str(changes.get(key, "")) for key in ("model", "framework"))
            store.write(result, folder / f"train_{platform}_{name}_{number}.json")


def verdicts(folder: Path, *options: str, code: int = 0) -> list[dict[str, Any]]:
    assert main([str(folder), "--format", "json", *options]) == code
    return list(json.loads((folder / "compare.json").read_text())["verdicts"])


def trials(
    folder: Path, a: Side, b: Side, noise: float, ratio: float = 1.0, **changes: Any
) -> Iterator[dict[str, Any]]:
    """Yield the verdicts on MODELS pairs with the same truth, with the default band and with none."""
    random = np.random.default_rng([sum(a), sum(b), round(1000 * noise)])
    for number in range(MODELS):
        save(folder, "nvd", a, 1.0, noise, random, model=f"m{number}", **changes)
        save(folder, "amd", b, 1.0 / ratio, noise, random, model=f"m{number}", **changes)
    for band in ("0.03", "0"):
        found = verdicts(folder, "--band", band)
        assert len(found) == MODELS
        yield from found


@pytest.mark.parametrize(
    ("a", "b", "noise"),
    [
        ((1,), (1,), 0.01),
        ((1,), (1,), 0.03),
        ((5,), (1,), 0.02),
        ((5,), (1,), 0.03),
        ((5,), (1, 1), 0.02),
        ((2,), (10,), 0.02),
    ],
)
def test_equal_sides_with_too_few_runs_are_never_called_different(
    tmp_path: Path, a: Side, b: Side, noise: float
) -> None:
    for found in trials(tmp_path, a, b, noise):
        assert found["verdict"] in ("undecided", "tie"), found["sentence"]
        assert (found["interval"] is None) == (1 in (sum(a), sum(b)))
        assert found["verdict"] == "tie" or found["would_decide"] in found["sentence"]
        assert found["interval"] is None or found["interval"][0] < found["ratio"] < found["interval"][1]


def test_steps_at_two_levels_in_single_runs_decide_nothing(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    for platform in ("nvd", "amd"):
        for number in range(MODELS):
            levels = np.where(np.cumsum(random.random(sides.STEPS) < 0.05) % 2, 1.0, 1.04)
            times = [round(float(one), 6) for one in levels * (1 + random.normal(0, 0.002, sides.STEPS))]
            save(tmp_path, platform, (1,), 1.0, 0.0, random, model=f"m{number}", step_times=times)
    assert {found["verdict"] for found in verdicts(tmp_path, "--band", "0")} == {"undecided"}


def test_single_runs_of_two_frameworks_paired_in_every_way_never_contradict_one_another(tmp_path: Path) -> None:
    # as measured on a shared machine: the runs of each framework differ by more than the frameworks do
    times = {"hf": (1.0, 2.3), "mega": (0.8, 1.6)}
    for hf, mega in ((hf, mega) for hf in times["hf"] for mega in times["mega"]):
        folder = tmp_path / f"{hf}_{mega}"
        random = np.random.default_rng(1)
        for framework, seconds in (("hf", hf), ("mega", mega)):
            save(folder, "nvd", (1,), seconds, 0.0, random, framework=framework)
        for baseline in ("hf", "mega"):
            (found,) = verdicts(folder, "--by", "framework", "--baseline", baseline)
            assert (found["verdict"], found["interval"]) == ("undecided", None)
            assert found["would_decide"].startswith("at least 2 more runs on each side, about")


def words(found: Sequence[dict[str, Any]]) -> list[str]:
    return [one["verdict"] for one in found]


def test_honest_runs_of_different_and_of_equal_machines_are_decided(tmp_path: Path) -> None:
    assert set(words(list(trials(tmp_path / "5", (5,), (5,), 0.003, 1.10)))) == {"faster"}
    assert set(words(list(trials(tmp_path / "3", (3,), (3,), 0.002, 0.90)))) == {"slower"}
    equal = words(list(trials(tmp_path / "0", (5,), (5,), 0.003)))
    assert equal[:MODELS] == ["tie"] * MODELS, "with the default band"
    assert "tie" not in equal[MODELS:], "with a band of 0 nothing lies inside"


def test_the_clause_names_the_side_with_too_few_runs_and_their_time(tmp_path: Path) -> None:
    random = np.random.default_rng(6)
    save(tmp_path, "nvd", (5,), 13.0, 0.002, random)
    save(tmp_path, "amd", (1,), 11.8, 0.0, random)  # 100 steps and the start take 20 minutes
    (found,) = verdicts(tmp_path)
    assert (found["verdict"], found["interval"]) == ("undecided", None)
    assert found["would_decide"].startswith("2 more runs on AMD Instinct MI300X, about 40 minutes")
