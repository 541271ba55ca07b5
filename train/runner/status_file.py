"""`status.json` of a matrix: its state, for tools and for people who watch from afar."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from train.runner.state import DONE, FAILED, FINISHED, RUNNING, MatrixState
from utils.errors import ForeignFileError
from utils.own_files import json_with
from utils.results.store import write_json

STATUS_EVERY_SECONDS = 2.0
NAME = "status.json"
is_status = json_with("schema_version", "state", "jobs")
"""Recogniser of a status.json of any version."""


class StatusFile:
    """The file, replaced atomically; if it cannot be written, one warning is printed and the matrix goes on."""

    def __init__(self, folder: Path, state: MatrixState) -> None:
        self.matrix = state
        self.folder = folder
        self._written_at = 0.0
        self._is_broken = False

    def enter(self, phase: str) -> None:
        """Note that a phase begins."""
        self.matrix.phase = phase
        self.write()

    def end(self, state: str) -> None:
        """Note that the matrix has ended, unless that is noted already."""
        if self.matrix.state == RUNNING:
            self.matrix.state, self.matrix.pause = state, None
            self.matrix.phase = DONE if state == FINISHED else self.matrix.phase
            self.write()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Note a failure if the block ends with an error."""
        try:
            yield
        except BaseException:
            self.end(FAILED)
            raise

    def write_sometimes(self) -> None:
        """Write it if the last write is STATUS_EVERY_SECONDS ago."""
        if time.monotonic() - self._written_at >= STATUS_EVERY_SECONDS:
            self.write()

    def write(self) -> None:
        """Write it now, unless its folder was deleted."""
        self._written_at = time.monotonic()
        if not self.folder.is_dir():
            return
        try:
            write_json(self.matrix.as_dict(), self.folder / NAME, is_ours=is_status)
        except (OSError, ForeignFileError) as error:
            if not self._is_broken:
                print(f"warning: {self.folder / NAME} is out of date: {error}", file=sys.stderr)
            self._is_broken = True
