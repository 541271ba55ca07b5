"""A child process whose output is read line by line in the background."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from train.job import processes
from utils import redact
from utils.settings.config import ROOT

LAST_OUTPUT_SECONDS = 5.0


class Child:
    """A running command that ends with this process, in a process group of its own; each line goes to `on_line`.

    Start it from the main thread. `on_line` is called in another thread, with the newline and without secrets, and must
    not raise.
    """

    def __init__(
        self,
        command: Sequence[str],
        on_line: Callable[[str], None],
        environment: Mapping[str, str] | None = None,
        folder: Path = ROOT,
    ) -> None:
        """Start the command in `folder`."""
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
        """True if the command itself has ended; processes that it started may still run."""
        return self.process.poll() is not None

    def close(self, grace_seconds: float) -> int:
        """End all processes below this one, read the last output, and return the exit code of the command."""
        processes.end_descendants(grace_seconds)
        exit_code = self.process.wait()
        self._reader.join(LAST_OUTPUT_SECONDS)
        return exit_code


def _read(stream: IO[str], on_line: Callable[[str], None]) -> None:
    for line in stream:
        on_line(redact.text(line))
