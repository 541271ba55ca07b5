"""The section "why" end to end: results, probes and profiles of two made-up machines as files, through the command."""

from __future__ import annotations

import json
import re

import pytest
from made_up_machines import AMD, NVD, slower, write

from evaluate.compare import main
from utils.own_files import is_png

SLOW = slower(AMD, slowness={"attention": 2.5})


@pytest.fixture(autouse=True)
def without_the_large_picture(monkeypatch):
    """Replace compare.png, which takes seconds."""
    monkeypatch.setattr("evaluate.report.plots.png", lambda _: b"\x89PNG tEXtSoftware\0tprimat")


def run(folder, *options):
    return main([str(folder), "--output", str(folder / "report"), *options])


def test_files_of_two_machines_become_picture_section_and_aligned_operators(tmp_path, capsys):
    for machine in (NVD, SLOW):
        write(tmp_path / machine.platform, machine)
    assert run(tmp_path) == 0
    assert str(tmp_path / "report" / "why.png") in capsys.readouterr().err
    assert is_png(tmp_path / "report" / "why.png")
    section = (tmp_path / "report" / "compare.md").read_text().partition("\n## Why\n")[2].partition("\n## ")[0]
    said = [line for line in section.splitlines() if line.startswith("A step of ")]
    # 4 calls of 120 us: 480 us on NVD, 2.5 times as much on the slow side
    assert "the largest loss, " in said[0] and "is in attention: 720 us over the floor" in said[0]
    rows = dict(re.findall(r"^\| ([^|]+?) \| (.*) \|$", section, re.MULTILINE))
    assert [float(cell) for cell in rows["attention"].split(" | ")] == pytest.approx([0.48, 0.48, 0.48, 1.2], rel=0.01)
    page = (tmp_path / "report" / "compare.html").read_text()
    details = page.partition('<section id="why"')[2].partition("<details>")[2].partition("</details>")[0]
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", details.partition("<tbody>")[2])
    assert cells[0] == "attention forward" and "+0.72" in cells[:8]
    (verdict,) = json.loads((tmp_path / "report" / "compare.json").read_text())["verdicts"]
    assert "trace" not in verdict["why"]["a"], "the operators of a trace are in no compare.json"


def test_without_profiles_there_are_floors_and_the_reason(tmp_path):
    for machine in (NVD, SLOW):
        write(tmp_path / machine.platform, machine, profile=False)
    assert run(tmp_path, "--format", "md,png") == 0
    text = (tmp_path / "report" / "compare.md").read_text()
    assert text.count("not measured: no profile of this job; PROFILING=true records one") == 2
    assert is_png(tmp_path / "report" / "why.png")


def test_without_a_probe_there_is_no_section_and_with_one_a_line(tmp_path):
    write(tmp_path / "nvd", NVD, probe=False)
    write(tmp_path / "amd", SLOW, probe=False)
    assert run(tmp_path, "--format", "md,html,png") == 0
    assert not (tmp_path / "report" / "why.png").exists()
    assert "## Why" not in (tmp_path / "report" / "compare.md").read_text()
    assert 'id="why"' not in (tmp_path / "report" / "compare.html").read_text()
    write(tmp_path / "other", slower(NVD, host="nvd-1"), runs=0, profile=False)
    assert run(tmp_path, "--format", "md,html,png") == 0
    section = (tmp_path / "report" / "compare.md").read_text().partition("\n## Why\n")[2].partition("\n## ")[0]
    assert "is unknown: " in section and "|" not in section
    assert not (tmp_path / "report" / "why.png").exists()


def test_a_picture_of_a_user_is_one_error_line_and_exit_2(tmp_path, capsys):
    for machine in (NVD, SLOW):
        write(tmp_path / machine.platform, machine)
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "why.png").write_bytes(b"\x89PNG of a user")
    assert run(tmp_path) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1 and "why.png" in err
    assert [path.name for path in (tmp_path / "report").iterdir()] == ["why.png"]
