"""Rates of TransformerEngine's linear layers: operations that the trace proves, and none where it does not."""

import pytest
from made_traces import AUTOGRAD, HOST, MadeTrace, divided

TOKENS, HIDDEN, WIDE = 64, 16, 48
FORWARD = 2 * TOKENS * HIDDEN * WIDE
"""Operations of the product of (64, 16) and (16, 48)."""
BF16, FP8, AMD, UNKNOWN = (
    *("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT", "nvjet_sm90_qqtst_128x128_128x6_2x1_v_bz_coopA_TNN"),
    *("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_MT256x256x64", "gemm_kernel"),
)


class Layers:
    """A trace of one step, whose operators come one after the other on the host and on autograd's thread."""

    def __init__(self):
        self.trace, self.time = MadeTrace(), 0
        self.trace.step(1, 0, 100_000)

    def run(self, name, dims, number, kernels=(BF16,), thread=HOST):
        more = {} if number is None else {"Sequence number": number}
        self.trace.op(name, self.time, 20, tid=thread, **{"Input Dims": dims, **more})
        for place, kernel in enumerate(kernels):
            self.trace.kernel(kernel, self.time + 20 * place, 10, launched=self.time + 5 + place, tid=thread)
        self.time += 200

    def forward(self, number, k=HIDDEN, n=WIDE, name="_LayerNormLinear", tokens=TOKENS, **more):
        given, weight, norm = [tokens, 1, k], [n, k], [k]
        dims = [given, norm, [], weight, [], []] if name == "_LayerNormLinear" else [weight, given, []]
        self.run(name, dims, number, **more)

    def backward(self, number, n=WIDE, name="_LayerNormLinear", tokens=TOKENS, kernels=(BF16, BF16), **more):
        self.run(f"{name}Backward", [[tokens, 1, n], [], []], number, kernels, thread=AUTOGRAD, **more)

    def rows(self, folder):
        """Return operations of a call, calls and precision of the products, the rows without operations last."""
        rows = divided(self.trace.write(folder / "trace.json"))["operators"]
        found = [(row["flops"] or 0, row["count"], row["precision"]) for row in rows if row["kind"] == "matmul"]
        return sorted(found, key=lambda row: (not row[0], row[0]))


def two_widths(layers):
    layers.forward(1)
    layers.forward(2, n=2 * WIDE)
    layers.backward(2, n=2 * WIDE)
    layers.backward(1)
    return [(FORWARD, 1), (2 * FORWARD, 1), (2 * FORWARD, 1), (4 * FORWARD, 1)]


def equal_gradients(layers):
    layers.forward(1, k=HIDDEN, name="_Linear")
    layers.forward(2, k=3 * HIDDEN, name="_Linear")
    layers.backward(2, name="_Linear")
    layers.backward(1, name="_Linear")
    return [(FORWARD, 1), (2 * FORWARD, 1), (3 * FORWARD, 1), (6 * FORWARD, 1)]


def micro_batches(layers):
    for number in (1, 2):
        layers.forward(number)
        layers.backward(number)
    return [(FORWARD, 2), (2 * FORWARD, 2)]


def recomputed(layers):
    layers.forward(1)  # without gradients: it has no backward pass
    layers.forward(8, thread=AUTOGRAD)
    layers.backward(8)
    return [(FORWARD, 1), (2 * FORWARD, 1), (0, 1)]


def forward_only(layers):
    layers.forward(1)
    return [(0, 1)]


def backward_only(layers):
    layers.backward(1)
    return [(0, 1)]


def gathered(layers):
    layers.forward(1, tokens=TOKENS // 4)
    layers.backward(1)
    layers.forward(2, name="_Linear")
    layers.backward(2, name="_Linear", tokens=TOKENS // 4)
    return [(0, 1)] * 4


def no_numbers(layers):
    layers.forward(None)
    layers.backward(None)
    return [(0, 1)] * 2


def numbers_of_two_threads(layers):
    layers.forward(1)
    layers.forward(1, k=3 * HIDDEN, thread=AUTOGRAD)
    layers.backward(1)
    return [(0, 1)] * 3


def another_function(layers):
    layers.forward(1)
    layers.backward(1, name="_Linear")
    return [(0, 1)] * 2


def frozen_weight(layers):
    layers.forward(1)
    layers.backward(1, kernels=[BF16])
    return [(FORWARD, 1), (0, 1)]


def frozen_weight_in_two_parts(layers):
    layers.forward(1)
    layers.backward(1, kernels=[BF16, "void cublasLt::splitKreduce_kernel<32, 16>(Params)"])
    return [(FORWARD, 1), (0, 1)]


def sums_of_parts(layers):
    layers.forward(1, kernels=[AMD, "Cijk_B_PostGSU4"])
    layers.backward(1, kernels=[AMD, AMD, "Cijk_B_PostGSU4"])
    return [(FORWARD, 1), (2 * FORWARD, 1)]


def pieces_over_communication(layers):
    layers.forward(1, kernels=[BF16] * 4)
    layers.backward(1, kernels=[BF16] * 5)
    return [(0, 1)] * 2


def grouped(layers):
    dims = [[TOKENS, HIDDEN], [], [WIDE, HIDDEN], [WIDE, HIDDEN]]
    layers.run("_GroupedLinear", dims, 1)
    layers.run("_GroupedLinearBackward", [[TOKENS, WIDE]], 1, [BF16, BF16])
    return [(0, 1)] * 2


def a_third_matrix(layers):
    layers.run("_Linear", [[WIDE, HIDDEN], [TOKENS, HIDDEN], [WIDE, HIDDEN]], 1)
    layers.backward(1, name="_Linear")
    return [(0, 1)] * 2


def fp8(layers):
    layers.forward(1, kernels=[FP8])
    layers.backward(1, kernels=[FP8, BF16])
    layers.forward(2, name="_Linear", kernels=[UNKNOWN])
    layers.backward(2, name="_Linear", kernels=[UNKNOWN, UNKNOWN])
    return [(FORWARD, 1, None)] * 2 + [(2 * FORWARD, 1, None)] * 2


CASES = (
    *(two_widths, equal_gradients, micro_batches, recomputed, forward_only, backward_only, gathered, no_numbers),
    *(numbers_of_two_threads, another_function, frozen_weight, frozen_weight_in_two_parts, sums_of_parts),
    *(pieces_over_communication, grouped, a_third_matrix, fp8),
)


@pytest.mark.parametrize("case", CASES)
def test_a_layer_counts_the_products_that_the_trace_proves(case, tmp_path):
    layers = Layers()
    wanted = case(layers)
    precisions = {True: "bf16", False: None}
    assert layers.rows(tmp_path) == [row if len(row) == 3 else (*row, precisions[row[0] > 0]) for row in wanted]


def test_a_layer_and_a_product_of_torch_of_equal_sizes_are_one_operator_of_both_traces(tmp_path):
    layers, plain = Layers(), Layers()
    layers.forward(1)
    layers.backward(1)
    plain.run("aten::mm", [[TOKENS, HIDDEN], [HIDDEN, WIDE]], 1)
    paths = [one.trace.write(tmp_path / f"{place}.json") for place, one in enumerate((layers, plain))]
    rows = divided(*paths)["operators"]
    assert [row["difference_ms"] for row in rows if None not in (row["a_ms"], row["b_ms"])] == [0]


def test_a_cast_around_a_product_does_not_have_its_rate(tmp_path):
    layers = Layers()
    layers.run("aten::mm", [[TOKENS, HIDDEN], [HIDDEN, WIDE]], 1, [BF16, "at::native::elementwise_kernel<cast>"])
    rows = divided(layers.trace.write(tmp_path / "trace.json"))["operators"]
    assert {row["kind"]: row["tflops"] is None for row in rows} == {"matmul": False, "memory_bound": True}
