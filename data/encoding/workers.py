"""Map a function over many parts in several processes: results in order, bounded memory, no process left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import forkserver
from multiprocessing.util import get_temp_dir
from pathlib import Path
from typing import TypeVar

from data.encoding import server
from data.engines.fast import VARIABLE

Part = TypeVar("Part")
Result = TypeVar("Result")

PRELOAD = ("data.encoding.server", "data.encoding.worker", "data.engines.fast", "tokenizers")
"""Modules that the fork server imports once for all workers."""
PARTS_AHEAD = 3
"""Parts submitted per worker whose results are not yet consumed; this bounds the memory."""


class WorkerError(RuntimeError):
    """A worker process died without an error, nearly always because the kernel killed it for lack of memory."""


def in_order(function: Callable[[Part], Result], parts: Iterable[Part], workers: int) -> Generator[Result, None, None]:
    """Yield `function(part)` for each part, in order; with one worker, in this process.

    `function` and parts are pickled. An error of a worker is raised here, that of the earliest part first. Workers are
    forked from a fork server; after `start_workers` it has imported PRELOAD, so they need not import it again.
    Raises WorkerError if a worker died. The workers end with this generator, and also if this process is killed.
    """
    if workers == 1:
        yield from map(function, parts)
        return
    context = multiprocessing.get_context("forkserver")
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    remaining = iter(parts)
    waiting: deque[Future[Result]] = deque()
    try:
        for part in islice(remaining, PARTS_AHEAD * workers):
            waiting.append(executor.submit(function, part))
        while waiting:
            result = waiting.popleft().result()
            for part in islice(remaining, 1):
                waiting.append(executor.submit(function, part))
            yield result
    except BrokenProcessPool as error:
        raise WorkerError(
            f"workers: one of {workers} was killed, perhaps for lack of memory; try again with fewer workers"
        ) from error
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent ends the work
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def one_thread_each() -> None:
    """Make `tokenizers` single-threaded in this process and its children; they are already parallel by process."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def start_workers(tokenizer: Path, engine: str) -> None:
    """Start the fork server of the workers, which imports PRELOAD while this process does something else.

    Unless `engine` is hf, it also builds the fast tokenizer of a folder. A running server is not changed.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(["__main__", *PRELOAD])
    if engine != "hf":
        os.environ[VARIABLE] = str(tokenizer / "tokenizer.json")  # for the server only
    os.environ[server.SOCKETS] = get_temp_dir()
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop(VARIABLE, None)
        del os.environ[server.SOCKETS]
