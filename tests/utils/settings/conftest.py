"""The image of a vendor, as the checks of the settings see it."""

import importlib.machinery
import importlib.util

import pytest


@pytest.fixture
def vendors_image(monkeypatch):
    """All frameworks of these tests can be started, and TransformerEngine is there."""
    frameworks = ("mega", "hf", "nemo", "bridge", "prim")
    monkeypatch.setattr("utils.settings.combinations.AVAILABLE_FRAMEWORKS", frameworks)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None))
