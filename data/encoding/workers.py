"""A function over many parts in several processes: results in order, memory bounded, nobody left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from multiprocessing import forkserver
from pathlib import Path
from typing import TypeVar

from data.engines.fast import PRELOAD, VARIABLE

Part = TypeVar("Part")
Result = TypeVar("Result")

PARTS_AHEAD = 3
"""Parts given out for each worker and not yet taken back; so many are in memory."""


class WorkerError(RuntimeError):
    """A worker died without a word, which is nearly always the kernel that ends a process for memory."""


def in_order(
    function: Callable[[Part], Result], parts: Iterable[Part], workers: int, preload: tuple[str, ...] = ()
) -> Generator[Result, None, None]:
    """Yield `function(part)` for each part, in order; one worker means this process.

    `function` and parts go to the workers by pickle. An error that it raises is raised here, the earliest part's first.
    Workers start from a server process that has imported `preload`, so that each does not import it again.
    Raises WorkerError for a worker that died. Workers end when this ends, also when this process is killed.
    """
    if workers == 1:
        yield from map(function, parts)
        return
    context = multiprocessing.get_context("forkserver")
    start_early(preload)
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
            f"workers: one of {workers} was killed, perhaps for lack of memory; try again with fewer"
        ) from error
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def start_early(preload: tuple[str, ...], environment: Mapping[str, str] | None = None) -> None:
    """Start the server process that workers come from, which imports `preload` while this one does something else.

    `environment` is added to the server's. Where a server is running already, it stays as it is.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(["__main__", *preload])
    before = dict(os.environ)
    os.environ.update(environment or {})
    try:
        forkserver.ensure_running()
    finally:
        for name in environment or {}:
            del os.environ[name]
        os.environ.update(before)


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends the work in order
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def one_thread_each() -> None:
    """Make tokenizers single-threaded in this process, and in those it starts: the parallelism here is processes."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def start_workers(tokenizer: Path, engine: str) -> None:
    """Start the server that workers come from; it builds what `engine` is likely to need for a folder's tokenizer."""
    environment = {} if engine == "hf" else {VARIABLE: str(tokenizer / "tokenizer.json")}
    start_early(PRELOAD, environment)
