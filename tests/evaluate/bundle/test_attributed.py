"""An archive whose comparison says how much of a ratio is hardware: recalculated from its probes, not from profiles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bundles import edited, pack, packed_again, write_run
from made_up_machines import AMD, NVD, probe_of, result_of, slower, write_profile

from evaluate import compare
from evaluate.bundle.check import check
from utils.housekeeping import footprint


def archive(folder: Path, *, with_profile: bool) -> Path:
    footprint.mark(folder, footprint.OUTPUT)
    for machine in (NVD, slower(AMD, speed={"matmul": 1.3})):
        for number in (1, 2, 3):
            write_run(folder, result_of(machine, number))
        path = folder / f"probe_{machine.platform}_{machine.host}.json"
        path.write_text(json.dumps(probe_of(machine)))
        if with_profile:
            write_profile(folder, machine)
    assert compare.main([str(folder)]) == 0
    return pack(folder)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "output"
    folder.mkdir()
    return folder


def test_an_attribution_from_probes_is_recalculated_and_a_changed_one_is_a_fault(output: Path) -> None:
    path = archive(output, with_profile=False)
    checked = check(path)
    assert checked.faults == () and not any("profiles" in note for note in checked.notes)

    def change(files: dict[str, bytes]) -> None:
        with edited(files, "compare.json") as content:
            content["verdicts"][0]["why"]["hardware"]["value"] *= 1.1

    faults = check(packed_again(path, change, is_listed=True)).faults
    assert any("verdicts[0].why.hardware.value" in fault for fault in faults)


def test_an_attribution_from_profiles_is_not_recalculated_and_a_note_says_so(output: Path) -> None:
    checked = check(archive(output, with_profile=True))
    assert checked.faults == ()
    assert [note for note in checked.notes if "rests on profiles, which no archive holds" in note]


def test_the_comparison_of_an_earlier_version_without_the_key_has_no_fault_for_it(output: Path) -> None:
    for number, machine in ((1, NVD), (2, AMD)):
        write_run(output, result_of(machine, number))
    footprint.mark(output, footprint.OUTPUT)
    assert compare.main([str(output)]) == 0

    def change(files: dict[str, bytes]) -> None:
        with edited(files, "compare.json") as content:
            for verdict in content["verdicts"]:
                del verdict["why"]

    assert check(packed_again(pack(output), change, is_listed=True)).faults == ()
