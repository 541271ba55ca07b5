"""The code that makes reports is known by its content, without git."""

from __future__ import annotations

import pytest

from utils.provenance.origin import commit, sha256_report_code


@pytest.fixture
def root(tmp_path):
    for path in ("utils/a.py", "evaluate/page/assets/b.css", "train/c.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    return tmp_path


@pytest.mark.parametrize("path", ["utils/a.py", "evaluate/page/assets/b.css", "evaluate/new.py"])
def test_another_content_or_file_is_other_code(root, path):
    before = sha256_report_code(root)
    (root / path).write_text("y")
    assert sha256_report_code(root) != before


def test_a_file_under_another_name_is_other_code(root):
    before = sha256_report_code(root)
    (root / "utils" / "a.py").rename(root / "utils" / "b.py")
    assert sha256_report_code(root) != before


@pytest.mark.parametrize("path", ["train/c.py", "utils/__pycache__/a.pyc", "README.md"])
def test_what_makes_no_report_is_no_part_of_it(root, path):
    before = sha256_report_code(root)
    (root / path).parent.mkdir(exist_ok=True)
    (root / path).write_text("y")
    assert sha256_report_code(root) == before


def test_what_was_asked_outside_of_a_container_comes_first(tmp_path):
    assert commit(tmp_path, {}) == (None, None)
    told = {"TPRIMAT_GIT_COMMIT": "a" * 40, "TPRIMAT_GIT_DIRTY": "true"}
    assert commit(tmp_path, told) == ("a" * 40, True)
    assert commit(tmp_path, {"TPRIMAT_GIT_COMMIT": "", "TPRIMAT_GIT_DIRTY": ""}) == (None, None)
