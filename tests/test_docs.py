"""The README and docs/ name only files, commands and sections that exist."""

import re

import pytest

from utils.settings.config import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "docs" / "examples" / "README.md"])
ROOMS = ("utils", "data", "train", "evaluate", "benchmarks", "tests", "shell")
LONGEST_README = 160
"""Lines."""

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_MODULE = re.compile(r"python3? -m ([\w.]+)")
_PATH = re.compile(rf"(?<![\w/.<>-])(?:\./)?((?:{'|'.join(ROOMS)})/[\w./-]*\.(?:py|sh|json|md|env|txt)|docs/[\w/.-]+)")


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub makes of the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
class TestPage:
    def test_every_relative_link_leads_to_a_file_and_a_section(self, page):
        for link in _LINK.findall(page.read_text(encoding="utf8")):
            if "://" in link:
                continue
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target.read_text(encoding="utf8")), link

    def test_every_module_of_ours_that_a_command_names_exists(self, page):
        for name in _MODULE.findall(page.read_text(encoding="utf8")):
            assert name.partition(".")[0] not in ROOMS or is_module(name), name

    def test_every_path_of_the_checkout_exists(self, page):
        for name in _PATH.findall(page.read_text(encoding="utf8")):
            assert (ROOT / name.rstrip("/.")).exists(), name

    def test_no_conflict_of_a_merge_is_left(self, page):
        assert not re.search(r"^(<{7}|>{7}) ", page.read_text(encoding="utf8"), re.MULTILINE)


def test_the_readme_is_short_enough_to_be_read():
    assert len((ROOT / "README.md").read_text(encoding="utf8").splitlines()) <= LONGEST_README


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent == ROOT / "docs"], ids=lambda page: page.name)
def test_the_readme_leads_to_every_page(page):
    assert f"(docs/{page.name})" in (ROOT / "README.md").read_text(encoding="utf8")
