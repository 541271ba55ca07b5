"""Variables that a vendor's own launcher sets are no handicap of its platform; alone they are one."""

from __future__ import annotations

import pytest

from evaluate.fairness.certificate import _distinct
from evaluate.fairness.environment import handicap, remark

# printed by both launchers of Primus (examples/run_pretrain.sh of fd1eeab, base_env.sh of pull request 999)
PRIMUS = {"NCCL_CHECKS_DISABLE": "1", "RCCL_MSCCL_ENABLE": "0", "RCCL_MSCCLPP_ENABLE": "0"}


@pytest.mark.parametrize("name", ["RCCL_MSCCL_ENABLE", "RCCL_MSCCLPP_ENABLE"])
def test_what_amds_launcher_sets_is_its_recipe_and_not_a_handicap(name):
    assert handicap("amd", PRIMUS, name) == "" and "AMD's own launcher" in remark("amd", PRIMUS, name)
    assert handicap("amd", {name: "0"}, name) != ""
    assert handicap("nvd", PRIMUS, name) != ""


def test_a_whole_number_is_equal_to_itself_in_either_type():
    assert _distinct([1000000, 1000000.0]) == ["1000000"]
    assert len(_distinct([1e-5, 1e-6])) == 2 and len(_distinct([True, 1])) == 2
