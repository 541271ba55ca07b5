"""A hub on loopback with a token of its own, and the environment of a process that talks to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import HubServer

SECRET = "hf_PlantedTokenThatMustNotShow"


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer(allowed_token=SECRET) as server:
        yield server


@pytest.fixture
def secret() -> str:
    """The token that the hub accepts."""
    return SECRET


@pytest.fixture
def environment(hub: HubServer, tmp_path: Path) -> dict[str, str]:
    """The environment of this process without tokens and settings of a user, and with the hub's address."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING", "TRANSFORMERS"))}
    settings = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    return kept | settings | {"NO_PROXY": "127.0.0.1"}
