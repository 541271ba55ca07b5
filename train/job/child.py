"""A child process whose output is read line by line while something else is waited for."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from train.job import processes
from utils import redact
from utils.settings.config import ROOT

LAST_WORDS_SECONDS = 5.0


class Child:
    """A running command, tied to this process, in a process group of its own; each line goes to `on_line`.

    Start it from the main thread. `on_line` is called from another one, with the newline and without secrets, and must
    not raise.
    """

    def __init__(
        self,
        command: Sequence[str],
        on_line: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
        folder: Path = ROOT,
    ) -> None:
        """Start it in `folder`."""
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=processes.tied(),
        )
        assert self.process.stdout is not None
        self._reader = threading.Thread(target=_read, args=(self.process.stdout, on_line), daemon=True)
        self._reader.start()

    def has_ended(self) -> bool:
        """Whether the command itself has ended; processes that it started may still run."""
        return self.process.poll() is not None

    def close(self, grace_seconds: float) -> int:
        """End what is left of the command and all below this process, read its last words, return its exit code."""
        processes.end_descendants(grace_seconds)
        exit_code = self.process.wait()
        self._reader.join(LAST_WORDS_SECONDS)
        return exit_code


def _read(stream: IO[str], on_line: Callable[[str], None]) -> None:
    for line in stream:
        on_line(redact.text(line))
