"""The releases of megatron-core differ in names and forms only: mega trains the same numbers with each.

The forms of both releases are written down here, so that either is tested with the one that is installed. The last test
trains with both: `TPRIMAT_CORE_PYTHON` names a Python whose megatron-core is another release (with torch and the
suite's packages); without it, the environment of Megatron-Bridge is taken where the suite has one.
"""

import functools
import json
import logging
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from toydata import write_toy_data

from tests.train.test_parity import BF16, free_port, largest_difference
from utils.settings.config import ROOT

CASES = ("qwen", BF16) if "TPRIMAT_CORE_PYTHON" in os.environ else ("qwen",)  # a CPU is slow in bf16
BOUND = 1e-6
"""Largest relative difference of a loss or gradient norm. Measured: none at all, 22 November 2026, on x86-64."""
VERSION = "import importlib.metadata as m; print(m.version('megatron-core'))"


@pytest.fixture(scope="module")
def releases():
    """Import `train.mega.releases` after the CPU redirection, as a job does; the module asks megatron-core."""
    pytest.importorskip("megatron.core")
    from train.mega import releases

    return releases


@pytest.mark.parametrize("name", ["get_main_grads_for_grad_norm", "get_grads_for_grad_norm"])
def test_the_gradients_of_the_norm_are_found_by_either_name(releases, name):
    assert releases.gradients_of_norm(SimpleNamespace(**{name: lambda: ["a gradient"]})) == ["a gradient"]


def test_an_optimizer_with_neither_name_is_an_error(releases):
    with pytest.raises(AttributeError, match="get_main_grads_for_grad_norm"):
        releases.gradients_of_norm(SimpleNamespace())


@pytest.mark.parametrize("is_partial", [False, True], ids=["0.16", "0.19"])
def test_the_parts_of_the_mlp_are_those_that_the_layer_is_built_from(releases, is_partial):
    parts = SimpleNamespace(linear_fc1="first", linear_fc2="second")
    mlp = functools.partial(dict, submodules=parts) if is_partial else SimpleNamespace(submodules=parts)
    layer = SimpleNamespace(submodules=SimpleNamespace(mlp=mlp))
    releases.mlp_parts(layer).linear_fc1 = "ours"
    built = mlp()["submodules"] if is_partial else mlp.submodules
    assert built.linear_fc1 == "ours"


@pytest.mark.parametrize("appended", [(), ("gtp_remat_size",)], ids=["0.16", "0.19"])
def test_a_linear_layer_gets_its_values_in_the_order_of_the_installed_release(releases, monkeypatch, appended):
    order = (*releases.linear_settings()[:7], *appended)
    assert order[:7] == (
        *("bias", "gradient_accumulation_fusion", "allreduce_dgrad", "sequence_parallel"),
        *("grad_output_buffer", "wgrad_deferral_limit", "tp_group"),
    )
    monkeypatch.setattr(releases, "linear_settings", lambda: order)
    settings = {name: name.upper() for name in reversed(order) if name != "wgrad_deferral_limit"}
    wanted = tuple(None if name == "wgrad_deferral_limit" else name.upper() for name in order)
    assert releases.linear_values(settings) == wanted


def test_only_the_known_messages_are_silenced(releases, caplog):
    releases.silence_known_messages()
    for name, beginning in releases.KNOWN_MESSAGES.items():
        logging.getLogger(name).warning("%s. Please read on", beginning)
        logging.getLogger(name).warning("something else")
    assert [record.getMessage() for record in caplog.records] == ["something else"] * len(releases.KNOWN_MESSAGES)


def version(python):
    """Return the release of megatron-core that a Python has."""
    return subprocess.run([python, "-c", VERSION], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def other_python():
    """Return a Python with another release than this one's, or skip with the reason."""
    python = os.environ.get("TPRIMAT_CORE_PYTHON")
    if python is None:
        bridge = pytest.importorskip("train.bridge.interpreter", reason="no environment with another megatron-core")
        from utils.errors import ConfigError

        try:
            python = bridge.interpreter("cpu")
        except ConfigError as error:
            pytest.skip(f"no environment with another megatron-core: {error}")
    if version(python) == version(sys.executable):
        pytest.skip(f"{python} has the same megatron-core as this Python")
    return python


def curves(python, prefix, scratch):
    """Return the curves of mega on one rank."""
    command = [python, "-m", "tests.workers.parity_worker", "mega", str(prefix), str(scratch), *CASES]
    environment = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": str(scratch)}
    environment |= {"MASTER_PORT": str(free_port()), "WORLD_SIZE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_mega_trains_the_same_numbers_with_both_releases(other_python, tmp_path):
    prefix = write_toy_data(tmp_path / "toy" / "text")
    here, there = (curves(python, prefix, tmp_path) for python in (sys.executable, other_python))
    for case in CASES:
        for quantity in ("loss", "grad_norm", "learning_rate"):
            steps = 10 if case == BF16 else 20
            assert largest_difference(there[case][quantity], here[case][quantity], steps) < BOUND, (case, quantity)
