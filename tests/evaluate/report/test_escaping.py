"""Names from results are shown literally, wherever they stand: markdown, terminal, picture and page."""

from __future__ import annotations

import html
import json
import re
import warnings
from itertools import product
from pathlib import Path

import pytest
from matplotlib.text import Text
from reports import Report, probed, report, write_probe
from sides import run

from evaluate.report.tables import LONGEST, markdown_table, markdown_text, plain

NAMES = (
    *("# head", "##", "#1", "- item", "1. one", "12) one", "3.5 W", "-0.5", "---", "===", "> q", "`c`", "    code"),
    *("[l](x)", "![i](x)", "https://e.example", "www.e.example", "<img src=x>", "&lt;", "a|b", "$x$", "-__b__-", "a_b"),
    *("\\", "a\n# b", "\x1b[31m", "\u202ea", "\u3164"),
)
UNCHANGED = ("#1", "3.5 W", "-0.5", "a_b")


def test_markdown_renders_as_the_names_themselves_and_plain_ones_are_unchanged() -> None:
    renderer = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table").enable("strikethrough")
    for text, form in product(NAMES, ("- {}", "{}", "## {}", "**{}** x")):
        around = form.replace("**", "").lstrip("-# ")
        shown = re.sub(r"</?(?:ul|li|p|h2|strong)>|\n", "", renderer.render(form.format(markdown_text(text))))
        assert html.unescape(shown).strip() == around.format(plain(text).strip()), (text, form)
    cells = re.findall("<t[hd]>(.*?)</t[hd]>", renderer.render(markdown_table(NAMES, [NAMES])))
    assert list(map(html.unescape, cells)) == 2 * [plain(text).strip() for text in NAMES]
    assert tuple(map(markdown_text, UNCHANGED)) == UNCHANGED and markdown_text("$x$") == r"\$x\$"


def test_a_long_text_is_cut_and_a_secret_at_the_cut_is_none() -> None:
    token = "hf_" + "aB3dE5gH7jK9" * 3
    shown = plain("x " * (LONGEST // 2 - 5) + token + " y" * 10_000)
    assert len(shown) < LONGEST + 40 and shown.endswith("(30,029 characters)")
    assert "aB3" not in shown and "***" in shown


HOSTILE = "# H | $x^2$ \x1b[31m `c` **b** <script>alert(1)</script> [l](http://e.example) \u202ea\nb\x00 \u4e2d"


def hostile(folder: Path, formats: str) -> Report:
    """Return the report of two sides and a probe in which every name is hostile."""
    write_probe(folder / "in").write_text(
        json.dumps(probed(**dict.fromkeys(("platform", "host", "device_name", "pytorch_version"), HOSTILE)))
    )
    names = {"label": HOSTILE, "model": HOSTILE, "host": HOSTILE, "provenance__framework_versions": {HOSTILE: HOSTILE}}
    names |= {"fingerprint__dataset_bin_sha256": HOSTILE, "warnings": [HOSTILE]}
    results = [run("amd", 9, **names, status="oom", reason=f"out of memory {HOSTILE}")]
    for platform in ("nvd", "amd"):
        own = {"gpu_info__device_name": f"{HOSTILE} {platform}"}
        own["provenance__environment"] = {"NCCL_X": f"{HOSTILE} {platform}"}
        results += [run(platform, number, **names, **own) for number in (1, 2, 3)]
    return report(folder, results, "--by", "platform", formats=formats)


def test_no_report_shows_a_hostile_name_otherwise_than_as_text(tmp_path: Path) -> None:
    found = hostile(tmp_path, "json,md,html")
    assert found.json["verdicts"]
    tables = re.findall(r"(?:^\|.*\n)+", found.markdown, re.MULTILINE)
    columns = [{line.count("|") for line in table.splitlines()} for table in tables]
    assert columns and all(len(widths) == 1 for widths in columns), "a pipe in a name must not open a column"
    assert all(shown.replace("\n", "").isprintable() for shown in (found.markdown, found.printed, found.errors))
    for part in ("<script", "| $x", " `c`", "**b**", "[l](", "http://e", "$x^2$"):
        assert part not in found.markdown, part
    assert [line for line in found.markdown.splitlines() if line.startswith("# ")] == ["# Comparison"]
    assert not any(part in found.page for part in ("<script>alert", "\x1b", "\u202e"))


def test_the_picture_draws_hostile_names_as_they_are_and_warns_of_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (figure,) = hostile(tmp_path, "png").figures
    texts = [text.get_text() for text in figure.findobj(Text)]
    assert any("$x^2$" in text for text in texts)
    assert all(text.replace("\n", "").isprintable() for text in texts)
