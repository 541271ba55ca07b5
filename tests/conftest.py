"""What all tests stand on."""

import ctypes
import signal
from pathlib import Path

import pytest

from tests.support.leftovers import pytest_configure  # noqa: F401, a hook of pytest
from utils import redact

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2)."""

LONG_FILES = (
    *(
        "fresh/test_fresh_machine.py",
        "system/test_images.py",
        "system/test_containers.py",
        "train/cluster/test_slurm_cluster.py",
        "train/nemo/test_nemo.py",
        "train/bridge/test_bridge.py",
        "train/titan/test_titan.py",
        "train/test_multinode.py",
    ),
    *("shell/test_faults.py", "shell/test_comparison.py", "shell/test_resume.py", "shell/test_planted_token.py"),
)
"""Minutes each, the longest first: one that a worker began last would be waited for by the other."""

# A shell starts its background jobs with Ctrl-C ignored, and that is inherited: the programs under test must have it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Begin with the files that take longest."""
    here = Path(__file__).parent
    rank = {str(here / name): place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: rank.get(str(item.path), len(rank)))


@pytest.fixture(autouse=True)
def _orphans_go_to_init():
    """A launcher adopts the orphans of its job; called inside a test it must not make this process keep later ones."""
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture(autouse=True)
def _secrets_of_this_test():
    """A process reads the secrets of its environment once; a test may change its environment."""
    redact._of_process.cache_clear()
