"""The tables of the settings map: what ran is told from what was only asked, and the documents hold the latest."""

import pytest

from train.settings_map import tables as table
from train.settings_map.map import ROWS
from utils.errors import ConfigError
from utils.settings.config import ROOT
from utils.settings.keys import in_results

DOCUMENT = "docs/fair.md"


@pytest.fixture(scope="module")
def tables():
    return {
        table.VALUES: table.values_table(table.default_configs(), table.read_runs()),
        table.KEYS: table.keys_table(),
    }


def test_the_document_holds_both_tables_of_this_map(tables):
    text = (ROOT / DOCUMENT).read_text(encoding="utf8")
    assert all(table in text for table in tables.values()), f"python -m train.settings_map.tables --write {DOCUMENT}"
    assert table.rendered(text, tables) == text


def cells(ran, name):
    lines = table.values_table(table.default_configs(), ran).splitlines()
    (line,) = [line for line in lines if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_nothing_is_bold_that_no_run_read_back():
    assert "**" not in table.values_table(table.default_configs(), {})
    assert cells({}, "Adam epsilon")[1:6] == ["1e-08", "asked: 1e-08", "asked: 1e-08", "asked: 1e-08", "asked: 1e-08"]


def test_what_a_run_read_back_stands_bold_and_beside_what_was_asked_where_it_is_another():
    ran = {"mega": {"adam_eps": 1e-8, "reasons": {}}, "nemo": {"adam_eps": 1e-5, "reasons": {}}}
    said = cells(ran, "Adam epsilon")
    assert (said[2], said[3], said[4]) == ("**1e-08**", "asked: 1e-08", "asked: 1e-08; on a CPU **1e-05**")


def test_a_fixed_value_is_shown_as_fixed_and_a_missing_reading_as_none_at_all():
    ran = {"hf": {"distributed_optimizer": True, "sliding_window": None, "reasons": {"sliding_window": "has none"}}}
    assert cells(ran, "distributed optimizer")[3] == "**on** (fixed)"
    assert cells(ran, "sliding window")[3] == "asked: none"
    assert cells(ran, "DP")[3] == "8 (fixed)"


def test_values_of_the_two_vendors_stand_apart_where_they_differ():
    assert cells({}, "HSA_NO_SCRATCH_RECLAIM")[1:6] == [
        "NVIDIA none, AMD 1",
        *(["asked: NVIDIA none, AMD 1"] * 2),
        "asked: none",
        "asked: 1",
    ]


def test_the_kept_runs_are_of_frameworks_that_ran_here_and_read_back_what_they_were_told():
    ran = table.read_runs()
    assert set(ran) == {"mega", "hf", "nemo"}
    known = {row.resolved.partition(".")[0] for row in ROWS if row.resolved}
    known -= {"tie_word_embeddings", "query_key_norm"}  # a result has these keys only of a model with the trait
    known -= {place.key for place in in_results().values() if place.before is not None}  # settings newer than the runs
    assert all(known <= set(resolved) | set(resolved["reasons"]) for resolved in ran.values())


def test_a_file_without_markers_is_refused(tmp_path, capsys):
    with pytest.raises(ConfigError, match="no marker comments"):
        table.rendered("# nothing", {table.VALUES: "x"})
    (tmp_path / "a.md").write_text("# nothing\n")
    assert table.main(["--write", str(tmp_path / "a.md")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/a.md: no marker comments")


def test_renewing_a_table_leaves_the_rest_of_the_file(tmp_path):
    text = f"before\n<!-- begin: {table.KEYS} -->\nold\n<!-- end: {table.KEYS} -->\nafter\n"
    once = table.rendered(text, {table.KEYS: "| new |"})
    assert once == f"before\n<!-- begin: {table.KEYS} -->\n\n| new |\n\n<!-- end: {table.KEYS} -->\nafter\n"
    assert table.rendered(once, {table.KEYS: "| new |"}) == once
