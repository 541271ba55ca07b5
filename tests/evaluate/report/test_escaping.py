"""Names from results are shown literally, wherever they stand: markdown, terminal, picture and page."""

from __future__ import annotations

import html
import re
import warnings
from pathlib import Path

import pytest
from matplotlib.text import Text
from reports import Report, report
from sides import run

from evaluate.report.tables import LONGEST, markdown_table, markdown_text, plain, text_table

NAMES = {
    "a heading": ("# head", r"\# head"),
    "an empty heading": ("##", r"\##"),
    "no heading": ("#1", "#1"),
    "a list": ("- item", r"\- item"),
    "a numbered list": ("1. one", r"1\. one"),
    "another numbered list": ("12) one", r"12\) one"),
    "a number": ("3.5 W", "3.5 W"),
    "a negative number": ("-0.5", "-0.5"),
    "a line": ("---", r"\---"),
    "an underline": ("===", r"\==="),
    "a quotation": ("> q", "&gt; q"),
    "code": ("`c`", r"\`c\`"),
    "indented code": ("    code", "code"),
    "a link": ("[l](x)", r"\[l\](x)"),
    "an image": ("![i](x)", r"!\[i\](x)"),
    "an address": ("https://e.example", "https:&#47;/e.example"),
    "an address without a scheme": ("www.e.example", "www&#46;e.example"),
    "HTML": ("<img src=x>", "&lt;img src=x&gt;"),
    "a reference": ("&lt;", "&amp;lt;"),
    "a cell": ("a|b", "a&#124;b"),
    "a formula": ("$x$", r"\$x\$"),
    "emphasis": ("-__b__-", r"-\_\_b\_\_-"),
    "a name with underscores": ("a_b", "a_b"),
    "a backslash": ("\\", "\\\\"),
    "another line": ("a\n# b", r"a\\n# b"),
    "a colour": ("\x1b[31m", r"\\x1b\[31m"),
    "a change of direction": ("\u202ea", r"\\u202ea"),
    "an invisible letter": ("\u3164", r"\\u3164"),
}


@pytest.mark.parametrize("name", NAMES)
def test_markdown_shows_a_name_as_it_is(name: str) -> None:
    text, escaped = NAMES[name]
    assert markdown_text(text) == escaped


def test_markdown_renders_as_the_names_themselves() -> None:
    renderer = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table").enable("strikethrough")
    for text, _ in NAMES.values():
        for form in ("- {}", "{}", "## {}", "**{}** x"):
            around = form.replace("**", "").lstrip("-# ")
            shown = re.sub(r"</?(?:ul|li|p|h2|strong)>|\n", "", renderer.render(form.format(markdown_text(text))))
            assert html.unescape(shown).strip() == around.format(plain(text).strip()), (text, form)
    names = [text for text, _ in NAMES.values()]
    table = renderer.render(markdown_table(names, [names]))
    cells = [html.unescape(cell) for cell in re.findall("<t[hd]>(.*?)</t[hd]>", table)]
    assert cells == 2 * [plain(text).strip() for text in names]


def test_cells_keep_their_numbers_and_their_text() -> None:
    table = text_table(("name", "tokens/s"), [("word " * 30, "18,036 (18,009-18,062)")], 30)
    assert "(18,009-18,062)" in table
    assert markdown_table(("a", "b"), [("x|y", "a_b _c_")]).splitlines()[2] == "| x&#124;y | a_b \\_c\\_ |"


def test_a_long_text_is_cut_and_a_secret_at_the_cut_is_none() -> None:
    token = "hf_" + "aB3dE5gH7jK9" * 3
    shown = plain("x " * (LONGEST // 2 - 5) + token + " y" * 10_000)
    assert len(shown) < LONGEST + 40 and shown.endswith("(30,029 characters)")
    assert "aB3" not in shown and "***" in shown


HOSTILE = "# H | $x^2$ \x1b[31m `c` **b** <script>alert(1)</script> [l](http://e.example) \u202ea\nb\x00 \u4e2d"


def hostile(folder: Path, formats: str) -> Report:
    """Return the report of two sides in which every name is hostile."""
    names = {"label": HOSTILE, "model": HOSTILE}
    results = [run("amd", 9, host=HOSTILE, **names, status="oom", reason=f"out of memory {HOSTILE}")]
    for platform in ("nvd", "amd"):
        for number in (1, 2, 3):
            result = run(platform, number, host=HOSTILE, **names, warnings=[HOSTILE])
            result["gpu_info"]["device_name"] = f"{HOSTILE} {platform}"
            result["provenance"]["framework_versions"] = {HOSTILE: HOSTILE}
            result["provenance"]["environment"] = {"NCCL_X": f"{HOSTILE} {platform}"}
            result["fingerprint"]["dataset_bin_sha256"] = HOSTILE
            results.append(result)
    return report(folder, results, "--by", "platform", formats=formats)


def test_no_report_shows_a_hostile_name_otherwise_than_as_text(tmp_path: Path) -> None:
    found = hostile(tmp_path, "json,md,html")
    assert found.json["verdicts"]
    rows = [line.count("|") for line in found.markdown.splitlines() if line.startswith("|")]
    assert rows and set(rows) == {6, 9}, "a pipe in a name must not open a column"
    for shown in (found.markdown, found.printed):
        assert shown.replace("\n", "").isprintable()
    for part in ("<script", "| $x", " `c`", "**b**", "[l](", "http://e", "$x^2$"):
        assert part not in found.markdown, part
    assert [line for line in found.markdown.splitlines() if line.startswith("# ")] == ["# Comparison"]
    assert "<script>alert" not in found.page and "\x1b" not in found.page and "\u202e" not in found.page


def test_the_picture_draws_hostile_names_as_they_are_and_warns_of_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (figure,) = hostile(tmp_path, "png").figures
    texts = [text.get_text() for text in figure.findobj(Text)]
    assert any("$x^2$" in text for text in texts)
    assert all(text.replace("\n", "").isprintable() for text in texts)
