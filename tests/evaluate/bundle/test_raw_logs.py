"""A result of Primus against the log that Primus itself wrote."""

from __future__ import annotations

import shutil

import pytest
from bundles import faults, pack, written
from checkout import ROOT
from housekeeping import write_result
from sides import put, run, summarise


@pytest.fixture
def of_primus(tmp_path):
    """Write a result and the log of six iterations of Primus: 8 GPUs, 64 sequences of 4096 tokens."""
    folder = written(tmp_path / "output", [])
    result = run("amd", framework="prim")
    for section in ("training_config", "resolved_config"):
        result[section] |= {"max_steps": 6, "sequence_length": 4096}
    result |= {"steps": [1, 2, 3, 4, 5, 6], "step_times": [20.0, 4.096, 4.0, 2.0, 3.2, 2.56]}
    result |= {"loss_values": [11.75, 11.5, 11.25, 11.0, 10.75, 10.5], "grad_norms": [8.5, 7.25, 6.125, 5.5, 4.75, 4.0]}
    result |= {"data_wait_seconds": [0.0] * 6, "learning_rates": [0.0] * 6}
    summarise(result)
    log = folder / "logs" / "train_amd_prim_llama_run1_attempt1.primus.log"
    log.parent.mkdir()
    shutil.copy(ROOT / "tests" / "utils" / "logs" / "samples" / "primus_a.log", log)

    def packed(**changes):
        write_result(folder, put(result, changes))
        return pack(folder)

    return packed, log


def test_a_result_of_primus_is_checked_against_the_log_of_primus(of_primus):
    packed, log = of_primus
    name = "train_amd_prim_llama_run1.json: "
    assert faults(packed()) == []
    wrong = faults(packed(loss_values=[11.75, 11.5, 11.25, 11.0, 10.75, 10.0]))
    assert any(line.startswith(f"{name}loss_values: step 6: the result has 10.0, the log 10.5") for line in wrong)
    half = faults(packed(training_config__global_batch_size=32))
    assert any(f"{name}training_config.global_batch_size: the result has 32, the log 64" in line for line in half)
    log.write_text("no iteration\n")
    assert faults(packed()) != []
    log.unlink()
    assert any(f"{name}logs/{log.name}: is missing" in line for line in faults(packed()))
