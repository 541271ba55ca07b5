"""The traces of the first GPU, one NVIDIA H200, against independent readings of them and against counts by hand."""

from math import fsum
from pathlib import Path

import pytest
from made_traces import divided

TRACES = Path(__file__).parents[1] / "h200" / "traces"
TOKENS = 16_384
PEAK = 989
"""Dense bf16 TFLOP/s of an H200 (NVIDIA H200 datasheet, without sparsity)."""
OF_A_LAYER = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336
HEAD = 4096 * 128_256
"""Parameters in products of Llama 3.1 8B: 32 heads and 8 groups of width 128, SwiGLU of 14,336; the untied head."""


@pytest.fixture(scope="module")
def te():
    return divided(TRACES / "h200_mega_te_8b_sl8192_step13.json.gz")


@pytest.fixture(scope="module")
def local():
    return divided(TRACES / "h200_mega_local_2layers_sl2048_step8.json.gz")


def products(result):
    return [row for row in result["operators"] if row["kind"] == "matmul"]


def test_products_idle_time_and_step_are_those_of_an_independent_reading(te):
    milliseconds = {kind: 1000 * seconds for kind, seconds in te["kinds"].items()}
    assert milliseconds["matmul"] == pytest.approx(1017.9, abs=0.6), "0.5 ms are fills that the products launch"
    assert milliseconds["idle"] == pytest.approx(8.0, abs=0.05)
    assert 1000 * te["step_seconds"] == pytest.approx(1452.3, abs=0.06)
    assert (te["device_name"], te["steps"], te["unattributed_percent"]["of_step"]) == ("NVIDIA H200", [13], 0)


@pytest.mark.parametrize(("name", "layers"), [("te", 32), ("local", 2)])
def test_the_operations_of_all_products_are_six_for_each_parameter_and_token(name, layers, request):
    rows = products(request.getfixturevalue(name))
    with_rate = fsum(row["seconds"] for row in rows if row["tflops"] is not None)
    assert with_rate >= 0.95 * fsum(row["seconds"] for row in rows)
    flops = fsum((row["flops"] or 0) * row["count"] for row in rows)
    assert flops == pytest.approx(6 * (layers * OF_A_LAYER + HEAD) * TOKENS, rel=0.02)
    assert {row["precision"] for row in rows} == {"bf16"}
    assert all(row["tflops"] is None or row["tflops"] < PEAK for row in request.getfixturevalue(name)["operators"])


READING = {
    # milliseconds of kernels: forward, or input and weight gradient; TFLOP of each product
    ("_LayerNormLinear", "(8192, 4096) x (4096, 28672)"): (163.7, 123.1),
    ("_LayerNormLinear", "(8192, 4096) x (4096, 6144)"): (35.6, 26.4),
    ("_Linear", "(8192, 14336) x (14336, 4096)"): (81.0, 61.6),
    ("_Linear", "(8192, 4096) x (4096, 4096)"): (23.9, 17.6),
    ("_LayerNormLinearBackward", "(8192, 4096) x (4096, 28672)"): (166.3 + 174.4, 2 * 123.1),
    ("_LayerNormLinearBackward", "(8192, 4096) x (4096, 6144)"): (36.6 + 37.5, 2 * 26.4),
    ("_LinearBackward", "(8192, 14336) x (14336, 4096)"): (85.9 + 87.0, 2 * 61.6),
    ("_LinearBackward", "(8192, 4096) x (4096, 4096)"): (24.9 + 25.2, 2 * 17.6),
}
"""An independent reading of the 8B trace, kernel by kernel: 64 calls (32 layers, 2 micro batches) of each product."""


@pytest.mark.parametrize(("name", "sizes"), READING)
def test_each_layer_has_time_and_operations_of_an_independent_reading(name, sizes, te):
    (row,) = [row for row in products(te) if row["name"] == name and row["shapes"].endswith(sizes)]
    milliseconds, tflop = READING[name, sizes]
    assert (row["count"], row["phase"]) == (64, "backward" if name.endswith("Backward") else "forward")
    assert row["seconds"] * 1000 == pytest.approx(milliseconds, rel=0.005)
    assert row["flops"] * row["count"] / 1e12 == pytest.approx(tflop, rel=0.005)
    assert row["tflops"] == pytest.approx(1000 * tflop / milliseconds, rel=0.01)
