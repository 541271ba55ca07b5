"""A neighbourhood for each test that purges, written once and copied, and the image of a vendor."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shutil
from pathlib import Path

import pytest
from housekeeping import Place, listed, write_checkout, write_place


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Place:
    found = Place(tmp_path_factory.mktemp("template"), tmp_path_factory.mktemp("checkout"))
    write_place(found.root)
    write_checkout(found.checkout)
    return found


@pytest.fixture
def place(template: Place, tmp_path: Path) -> Place:
    shutil.copytree(template.root, tmp_path / "place", symlinks=True)
    for name in ("site/output", "outside", "data"):
        listed(tmp_path / "place" / name)
    return Place(tmp_path / "place", template.checkout)


@pytest.fixture
def vendors_image(monkeypatch):
    """TransformerEngine is there, as the checks of the settings see it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None))
