"""What all tests stand on."""

import ctypes
import os
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from multiprocessing.util import Finalize
from pathlib import Path
from unittest.mock import patch

import pytest
import slurm_cluster
from toydata import write_toy_data

from utils import redact

os.environ["COLUMNS"] = "100"  # else the width of the terminal in which the tests run decides where a table is wrapped

# A shell starts its background jobs with Ctrl-C ignored, and that is inherited: the programs under test must have it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write the reports that tests/evaluate/report/golden keeps")


def pytest_configure(config: pytest.Config) -> None:
    """Give every program under test a fresh TMPDIR, which goes with the run; the workers of pytest-xdist share it."""
    if not hasattr(config, "workerinput"):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # pytest keeps its own folders there
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="tprimat-tests-")
        Path(tempfile.tempdir).chmod(0o1777)  # as /tmp: some tests work as another user
        # after multiprocessing has removed the folder of its sockets in it, which has priority -100
        Finalize(None, shutil.rmtree, (tempfile.tempdir, True), exitpriority=-200)


def pytest_collection_modifyitems(items):
    """Begin with the files that take longest: one that a worker began last would be waited for by the other."""
    seconds = Counter()
    for item in items:
        for mark in item.iter_markers("full"):
            said = re.search(r"about (\d+) s", mark.args[0])
            seconds[item.path] = max(seconds[item.path], int(said[1]) if said else 0)
    items.sort(key=lambda item: -seconds[item.path])


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a cluster."""
    if why := slurm_cluster.missing():
        pytest.skip(why)
    with slurm_cluster.running(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prefix of a small prepared pair, which no test changes."""
    return write_toy_data(tmp_path_factory.mktemp("data") / "text")


@pytest.fixture(scope="module", autouse=True)
def _panels_of_pages_are_not_rendered(request: pytest.FixtureRequest) -> Iterator[None]:
    """Panels are drawn, and an empty SVG stands in the place of theirs, unless the module says RENDERS = True.

    Rendering takes most of the time of a comparison.
    """
    with pytest.MonkeyPatch.context() as changes:
        if "evaluate" in request.path.parts and not getattr(request.module, "RENDERS", False):
            from matplotlib.figure import Figure

            empty, real = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>', Figure.savefig
            changes.setattr(
                *(Figure, "savefig"),
                lambda figure, file, **how: file.write(empty) if how["format"] == "svg" else real(figure, file, **how),
            )
        yield


@pytest.fixture(autouse=True)
def _orphans_go_to_init():
    """A launcher adopts the orphans of its job; called inside a test it must not make this process keep later ones."""
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


@pytest.fixture(autouse=True)
def _environment_of_this_test():
    """What a command that a test calls sets for its processes is gone after it; secrets are read anew."""
    redact._of_process.cache_clear()
    with patch.dict(os.environ):
        yield
