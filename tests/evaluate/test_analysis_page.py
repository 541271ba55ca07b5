"""The Python of docs/analysis.md runs as it stands, block after block, and prints what follows from the results."""

from __future__ import annotations

import re

import pytest
from checkout import ROOT
from reports import save
from sides import run

from evaluate import frame

PAGE = (ROOT / "docs" / "analysis.md").read_text(encoding="utf8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    """Return what each block printed, over two frameworks with two runs each."""
    monkeypatch.chdir(tmp_path)
    layers = {"mega": "local", "hf": "transformers LlamaForCausalLM"}
    for framework, seconds in (("mega", 1.0), ("hf", 0.5)):
        for number in (1, 2):
            result = run("nvd", number, seconds, framework=framework)
            result["resolved_config"]["layer_implementation"] = layers[framework]
            save(tmp_path / "output", result)
    names: dict[str, object] = {}
    found = []
    for block in BLOCKS:
        exec(compile(block, "docs/analysis.md", "exec"), names)
        found.append(capsys.readouterr().out)
    return found


def test_every_block_runs_and_is_ten_lines_at_most(printed):
    assert len(BLOCKS) == 4 and all(len(block.splitlines()) <= 10 for block in BLOCKS)
    first, rates, times, tokens = printed
    assert first == ""
    rows = {line.split()[-6]: line.split()[-5:] for line in rates.splitlines()[2:]}
    assert {name: row[0] for name, row in rows.items()} == {"hf": "2", "mega": "2"}
    # GBS 64 x SL 128 / 8 GPUs in 0.5 s and in 1 s, with the 0.3 % of noise of a run
    assert float(rows["hf"][1]) == pytest.approx(2048, rel=0.01)
    assert float(rows["mega"][1]) == pytest.approx(1024, rel=0.01)
    medians = [float(line.split()[-4]) for line in times.splitlines()[2:]]
    assert medians == pytest.approx([0.5, 1.0], rel=0.01)
    # 3 + 5 x 0.95^2 is 7.51 in the third step, 3 + 5 x 0.95^3 is 7.29 in the fourth: 4 x 64 x 128 tokens
    assert [line.split()[-2:] for line in tokens.splitlines()[2:]] == [["32768", "32768"]] * 2


def test_every_column_that_the_page_names_exists(tmp_path):
    text = PAGE.partition("## Columns of a run")[2]
    save(tmp_path, run("nvd", 1))
    known = {*frame.load(tmp_path).columns, *frame.load_steps(tmp_path).columns}
    named = {name for name in re.findall(r"`([a-z_]+)`", text) if "_" in name and not name.endswith("_")}
    assert named <= known | {"resolved_config"}, named - known
