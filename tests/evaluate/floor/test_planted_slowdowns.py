"""A real training with one slowed part: the breakdown of its profile names that part, beside an honest twin."""

import pytest
from toydata import write_toy_data

from evaluate.floor import measured
from evaluate.timing.pairing import align
from tests.support.launching import run
from train.job.rank_environment import ENV_NAMES
from utils.kinds import COMMUNICATION, IDLE, KINDS, MATMUL
from utils.results import profile_file
from utils.results.profile_file import NAME
from utils.settings.config import ROOT

SETTINGS = ("CPU_RANKS=2", "TRAIN_ITERS=9", "PROFILING=true", "PROFILE_STEP_START=4", "PROFILE_STEP_END=6")
PLANTED = "TPRIMAT_TEST_SLOWDOWN"
SLOWDOWNS = (
    ("operator", MATMUL, "aten::mm"),
    ("launch", IDLE, None),
    ("collective", COMMUNICATION, "all"),
)
"""What is slowed (tests/support/slowdowns), the kind of time, and part of the operator, that must be found."""


ATTEMPTS = 3
"""Other work of the machine may slow another part of one training; it does not in all attempts."""


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """Returns time by kind and losses of mega on two ranks, with a slowed part or (`""`) as it is."""
    prefix = write_toy_data(tmp_path_factory.mktemp("data") / "text")
    known = {}

    def of(slowed, attempt):
        if (slowed, attempt) not in known:
            folder = tmp_path_factory.mktemp(slowed or "honest")
            with pytest.MonkeyPatch.context() as patch:
                if slowed:
                    patch.setenv("PYTHONPATH", str(ROOT / "tests" / "support" / "slowdowns"))
                    patch.setenv(PLANTED, slowed)
                    patch.setenv(ENV_NAMES, PLANTED)
                result = run("mega", "llama", folder, prefix, *SETTINGS)
            (path,) = (folder / "profiles").rglob(NAME)
            known[slowed, attempt] = measured.of_profile(profile_file.read(path)), result["loss_values"]
        return known[slowed, attempt]

    return of


def slower(honest, found):
    """Return the kind that takes most more time, and its operator that does."""
    kind = max(KINDS, key=lambda one: found.by_kind[one] - honest.by_kind[one])
    named = [one.b.name for one in align(honest.trace, found.trace) if one.kind == kind and one.b]
    return kind, named[0] if named else None


@pytest.mark.parametrize(("slowed", "kind", "name"), SLOWDOWNS)
def test_the_slowed_part_of_a_real_training_is_found_and_named(profiled, slowed, kind, name):
    seen = []
    for attempt in range(ATTEMPTS):
        (honest, losses), (found, slowed_losses) = profiled("", attempt), profiled(slowed, attempt)
        assert slowed_losses == pytest.approx(losses, rel=1e-5), "a slowed part changes no number of the training"
        seen.append(slower(honest, found))
        if seen[-1][0] == kind and (name is None or name in str(seen[-1][1])):
            return
    pytest.fail(f"{slowed}: found {seen}")
