"""The image of a vendor, as the checks of the settings see it."""

import importlib.machinery
import importlib.util

import pytest


@pytest.fixture
def vendors_image(monkeypatch):
    """TransformerEngine is there."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None))
