"""The raw samples of a training are kept in its log, and disturb nobody who watches it."""

from __future__ import annotations

from example import example_result
from train.job.rank_output import RankOutput
from utils.results import raw_samples


def test_raw_samples_are_in_the_log_only(tmp_path, capsys):
    output = RankOutput(tmp_path / "a.log")
    for line in ("=== the end\n", *raw_samples.lines(example_result())):
        output.take(line)
    output.close()
    assert capsys.readouterr().out == "=== the end\n"
    assert list(output.last_lines) == ["=== the end"], "a reason quotes what was said before"
    assert (tmp_path / "a.log").read_text().count("raw: ") == 16
