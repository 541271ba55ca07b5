"""Lines of real trainings, published with their logs: what stands in them, read by eye and written down here.

The files are not part of the repository; the tests look for them in `../shared/reference/logs` beside it, or in
TPRIMAT_REFERENCE_LOGS.
"""

import os
from pathlib import Path

import pytest

from utils.logs.reader import read_log
from utils.settings.config import ROOT

FOLDER = Path(os.environ.get("TPRIMAT_REFERENCE_LOGS") or ROOT.parent / "shared" / "reference" / "logs")

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no reference logs in {FOLDER}")

GIB = 1.073741824  # GB of 1e9 bytes
MIB = 0.001048576


def read(name):
    return read_log([FOLDER / name])


def rows(run, *names):
    return [
        tuple(getattr(step, name) for name in ("number", "step_time_seconds", "loss", *names)) for step in run.steps
    ]


def facts(run, *names):
    return tuple(run.fact(name) for name in names)


MAIN = ("world_size", "global_batch_size", "sequence_length", "total_steps")


def test_primus_trainer_of_version_25_10():
    run = read("primus_v25.10_format.log")
    assert (run.framework, run.format) == ("prim", "Primus A: trainer, GB (up to v25.10)")
    assert rows(run, "tokens_per_second_per_gpu", "tflops", "grad_norm", "learning_rate") == [
        (1, 41.2345, 11.9, 3178.7, 184.1, 5.1, 1e-5),
        (2, 15.1023, 5.95, 8678.9, 502.6, 5.1, 1e-5),
        (3, 14.0102, 3.966667, 9355.5, 541.8, 5.1, 1e-5),
        (4, 13.9907, 2.975, 9368.5, 542.6, 5.1, 1e-5),
    ]
    assert facts(run, *MAIN) == (8, 128, 8192, 50)
    assert run.memory["device used (hip)"].gb == pytest.approx(150.30 * GIB)
    assert run.memory["device total (rocm-smi)"].gb == pytest.approx(191.69 * GIB)
    assert (run.status, run.reason) == ("failed", "the log stops at iteration 4 of 50")


def test_primus_trainer_of_version_25_11_whose_last_loss_is_not_printed():
    run = read("primus_v25.11_format.log")
    assert (run.framework, run.format) == ("prim", "Primus B: trainer, GiB (v25.10 to v26.1)")
    assert rows(run, "tokens_per_second_per_gpu", "grad_norm") == [
        (1, 41.2345, 11.9, 3178.7, 5.1),
        (2, 15.1023, 5.95, 8678.9, 5.1),
        (3, 14.0102, 3.966667, 9355.5, 5.1),
        (4, 13.9907, 2.975, 9368.5, 5.1),
        (5, 14.0, None, 9362.0, None),
    ]
    assert facts(run, *MAIN) == (8, 128, 8192, 50)
    assert run.memory["device used (rocm-smi, fullest rank)"].gb == pytest.approx(151.30 * GIB)
    assert run.status == "nan"
    # 128 x 8192 / 14.0 / 8 = 9362.29, which would be printed as 9362.3
    assert [problem.partition(": ")[0] for problem in run.problems] == [
        "iteration 5 (primus_v25.11_format.log:5)",
        "the log stops at iteration 5 of 50",
        "iteration 5 (primus_v25.11_format.log:5)",
    ]


def test_primus_core_runtime_prints_twice_out_of_order_and_a_mean_at_iteration_2():
    run = read("primus_core_runtime_2026-05.log")
    assert (run.framework, run.format) == ("prim", "Primus C: core runtime (v25.11 to v26.4)")
    assert rows(run, "tokens_per_second_per_gpu", "tflops", "grad_norm", "learning_rate") == [
        (1, 19.0139, 11.84797, None, 15.6, 0.814, 5e-6),
        (3, 0.664, 11.78471, 49349.4, 447.1, 3.811, 9.755283e-6),
        (4, 0.502, 11.5813, 65274.9, 591.5, 4.726, 9.045085e-6),
        (12, 0.4997, 10.71408, 65575.3, 594.1, 17.955, 0.0),
    ]
    assert list(run.excluded) == [2]
    assert facts(run, *MAIN) == (8, 32, 8192, 12)  # 65575.3 x 0.4997 x 8 / 32 = 8192.0
    assert facts(run, "parameter_count", "padded_vocab_size", "exit_code", "host") == (
        1510541312,
        131200,
        0,
        "mi355-gpu-26",
    )
    assert run.memory["max allocated"].gb == pytest.approx(70833.32 * MIB)
    assert run.memory["max reserved"].gb == pytest.approx(86588.00 * MIB)
    assert run.memory["device used (hip)"].gb == pytest.approx(94.71 * GIB)
    assert run.memory["device used (rocm-smi, fullest rank)"].gb == pytest.approx(95.57 * GIB)
    assert (run.status, run.reason) == ("failed", "the log has no iteration 5 to 11")


def test_primus_on_four_nodes_without_colours():
    run = read("primus_4node_2025-11_no_ansi.log")
    assert rows(run, "tokens_per_second_per_gpu", "tflops", "grad_norm", "learning_rate") == [
        (12125, 2.7013, 2.352391, 12130.4, 210.5, 0.132, 1.587349e-4)
    ]
    assert facts(run, *MAIN) == (32, 256, 4096, 36000)  # 12130.4 x 2.7013 x 32 / 256 = 4096.0
    assert run.memory["device used (hip)"].gb == pytest.approx(227.35 * GIB)
    assert run.reason == "the log stops at iteration 12125 of 36000; the log has no iteration 1 to 12124"


def test_megatron_with_an_extra_loss():
    run = read("megatron_2024-04.log")
    assert (run.framework, run.format) == ("mega", "Megatron-LM, up to core 0.15")
    assert rows(run, "tflops", "grad_norm", "learning_rate") == [
        (43, 5.4449, 1.825991, 239.8, 1.426, 8.6e-6),
        (44, 5.5338, 1.875063, 236.0, 1.327, 8.8e-6),
    ]
    assert facts(run, *MAIN) == (None, 128, None, 100)
    assert run.memory == {}


def test_megatron_bridge_with_a_line_glued_to_its_only_iteration():
    run = read("megatron_bridge_2025-12.log")
    assert run.framework == "bridge"
    assert rows(run, "grad_norm", "learning_rate") == [(1, 20.2891, 12.58695, 10.275, 3e-5)]
    assert facts(run, *MAIN) == (None, 128, None, 1)
    assert {name: one.gb for name, one in run.memory.items()} == {
        "allocated": 51.072,
        "max allocated": 194.41,
        "reserved": 216.89,
        "max reserved": 216.89,
    }
    assert (run.status, run.problems) == ("ok", ())


def test_nemo_with_a_prefix_that_was_cut_off():
    run = read("nemo_lightning.log")
    assert run.framework == "nemo"
    assert rows(run, "learning_rate") == [
        (1, 10.31, 11.03, 1.499e-7),
        (2, 7.549, 11.03, 2.999e-7),
        (3, 7.556, 11.03, 4.498e-7),
        (4, 7.561, 11.03, 5.997e-7),
    ]
    assert run.step_time_digits == 4
    assert facts(run, *MAIN) == (None, 512, None, 20)
    assert run.reason == "the log stops at iteration 4 of 20"


def test_torchtitan_with_three_ranks_and_thousands_commas():
    run = read("torchtitan_2026-02.log")
    assert run.framework == "torchtitan"
    assert rows(run, "tokens_per_second_per_gpu", "grad_norm") == [
        (4, None, 7.62585, 10049.0, 26.625),
        (20, None, 11.83506, 4376.0, 9.6669),
    ]
    assert run.memory["max reserved"].gb == pytest.approx(66.91 * GIB)
    assert run.status == "failed"


def test_hugging_face_trainer():
    run = read("hf_trainer.log")
    assert run.framework == "hf"
    assert rows(run, "learning_rate") == [(1, None, 1.1406, 2.2222222222222223e-05)]
    assert facts(run, "train_runtime_seconds", "total_steps") == (225.8005, 200)  # 225.8005 x 0.886 = 200.06
    assert run.status == "failed"
