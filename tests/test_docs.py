"""The README and docs/ name only files, commands and sections that exist."""

import re

import pytest
from checkout import ROOT

from tests.support import bundles, documents

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "docs" / "examples" / "README.md"])
ROOMS = ("utils", "data", "train", "evaluate", "benchmarks", "tests", "shell")
LONGEST_README = 120
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
def test_links_commands_and_paths_of_a_page_exist(page):
    text = page.read_text(encoding="utf8")
    for name, anchor in ((name, anchor) for name, _, anchor in (link.partition("#") for link in _LINK.findall(text))):
        if "://" not in name:
            target = page.parent / name if name else page
            assert target.exists(), name
            assert not anchor or anchor in anchors(target.read_text(encoding="utf8")), f"{name}#{anchor}"
    modules = [name for name in _MODULE.findall(text) if name.partition(".")[0] in ROOMS]
    assert [name for name in modules if not is_module(name)] == []
    assert [name for name in _PATH.findall(text) if not (ROOT / name.rstrip("/.")).exists()] == []
    assert not re.search(r"^(<{7}|>{7}) ", text, re.MULTILINE), "no conflict of a merge is left"


def test_the_readme_is_short_enough_to_be_read_and_leads_to_every_page():
    text = (ROOT / "README.md").read_text(encoding="utf8")
    assert len(text.splitlines()) <= LONGEST_README
    names = [page.name for page in PAGES if page.parent == ROOT / "docs"]
    assert [name for name in names if f"(docs/{name})" not in text] == []


def test_the_gallery_refuses_a_changed_archive_and_marks_one_that_somebody_has_reproduced(tmp_path):
    for name, label, seconds in (("mine", "", 1.0), ("theirs", "reproduced-mine", 1.01)):
        folder = bundles.written(tmp_path / name, bundles.sides({"nvd": seconds}, runs=3, label=label))
        bundles.pack(folder).rename(tmp_path / f"{name}.zip")
    mine, theirs = documents.gallery(tmp_path).splitlines()[2:]
    assert "| 3 | 2026-11-21 |" in mine and "[by another](theirs.zip)" in mine and "not yet" in theirs

    def change(files):
        with bundles.edited(files, "train_nvd_mega_llama_run1.json") as result:
            result["step_times"][50] /= 2

    bundles.packed_again(tmp_path / "mine.zip", change, is_listed=True)
    with pytest.raises(ValueError, match="mine.zip: train_nvd_mega_llama_run1.json"):
        documents.gallery(tmp_path)
