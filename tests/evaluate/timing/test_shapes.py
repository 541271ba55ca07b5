"""Operations and sizes from the shapes of a trace; the places of arguments are those of torch's own schemas."""

import pytest
from made_traces import MadeTrace, divided

BF16 = ["c10::BFloat16"] * 3
SDPA = "aten::_scaled_dot_product"
NAMES = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
ATTENTION = f"{SDPA}_{NAMES[0]}"
EQUAL, LONG = [[2, 4, 8, 32]] * 3, [[2, 4, 8, 32], [2, 4, 16, 32], [2, 4, 16, 32]]


def work(folder, name, dims, concrete=""):
    """Return operations and sizes of an operator that launches a kernel."""
    it = MadeTrace()
    it.step(1, 0, 100)
    it.op(name, 0, 20, **{"Input Dims": dims, "Input type": BF16, "Concrete Inputs": concrete})
    it.kernel("a_kernel", 30, 10, launched=5)
    (row,) = divided(it.write(folder / "trace.json"))["operators"]
    return row["flops"], row["shapes"]


@pytest.mark.parametrize(
    ("name", "dims", "wanted"),
    [
        ("aten::mm", [[8, 2], [2, 4]], (128, "(8, 2) x (2, 4)")),
        ("aten::addmm", [[4], [8, 2], [2, 4], [], []], (128, "(8, 2) x (2, 4)")),
        ("aten::bmm", [[3, 8, 2], [3, 2, 4]], (384, "3 of (8, 2) x (2, 4)")),
        ("aten::mm", [[8, 2], [3, 4]], (None, "(8, 2) (3, 4)")),
        ("aten::mm", [[8], [8, 4]], (None, "(8) (8, 4)")),
        ("aten::mm", "nonsense", (None, "")),
        ("aten::mul", [[8, 2], [8, 2]], (None, "(8, 2) (8, 2)")),
        ("aten::linear", [[8, 2], [4, 2], []], (None, "(8, 2) (4, 2)")),
    ],
)
def test_a_product_counts_two_operations_for_each_multiplication(tmp_path, name, dims, wanted):
    assert work(tmp_path, name, dims) == wanted


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("name", "dims", "flops"),
    [
        # 2 batches, 4 heads, 8 queries, 16 keys, width 32: a product has 2*2*4*8*16*32 = 65,536 operations
        *((f"{SDPA}_{name}", LONG, 131_072) for name in NAMES),
        *((f"{SDPA}_{name}_backward", [[2, 4, 8, 32], *LONG], 327_680) for name in NAMES),
        ("aten::_flash_attention_forward", [[2, 8, 4, 32], [2, 16, 4, 32], [2, 16, 4, 32]], 131_072),
        ("aten::_flash_attention_backward", [[2, 8, 4, 32]] * 2 + [[2, 16, 4, 32]] * 2, 327_680),
    ],
)
def test_attention_counts_its_products_and_half_of_them_where_it_is_causal(tmp_path, name, dims, flops, causal):
    torch = pytest.importorskip("torch")
    schema = getattr(torch.ops.aten, name.removeprefix("aten::")).default._schema
    concrete = [str(causal) if argument.name == "is_causal" else "" for argument in schema.arguments]
    assert work(tmp_path, name, dims, concrete)[0] == (flops / 2 if causal else flops)


def test_attention_of_which_nobody_knows_whether_it_is_causal_has_no_operations(tmp_path):
    assert work(tmp_path, ATTENTION, LONG, [""] * 5)[0] is None
    assert work(tmp_path, ATTENTION, EQUAL, [""] * 4 + ["False"])[0] == 65_536
