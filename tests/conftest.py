"""What all tests stand on."""

import ctypes
import signal

import pytest

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2)."""

# A shell starts its background jobs with Ctrl-C ignored, and that is inherited: the programs under test must have it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _orphans_go_to_init():
    """A launcher adopts the orphans of its job; called inside a test it must not make this process keep later ones."""
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
