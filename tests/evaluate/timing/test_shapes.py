"""Operations and sizes from the shapes of a trace; the places of arguments against torch's own schemas."""

import pytest

from evaluate.timing.shapes import CAUSAL_PLACE, work_of

BF16 = "['c10::BFloat16', 'c10::BFloat16', 'c10::BFloat16']"


@pytest.mark.parametrize("name", CAUSAL_PLACE)
def test_is_causal_stands_where_torch_has_it(name):
    torch = pytest.importorskip("torch")
    schema = getattr(torch.ops.aten, name.removeprefix("aten::")).default._schema
    assert [argument.name for argument in schema.arguments].index("is_causal") == CAUSAL_PLACE[name]


@pytest.mark.parametrize(
    ("name", "dims", "flops", "sizes"),
    [
        ("aten::mm", "[[8, 2], [2, 4]]", 128, "(8, 2) x (2, 4)"),
        ("aten::addmm", "[[4], [8, 2], [2, 4], [], []]", 128, "(8, 2) x (2, 4)"),
        ("aten::bmm", "[[3, 8, 2], [3, 2, 4]]", 384, "3 of (8, 2) x (2, 4)"),
        ("aten::mm", "[[8, 2], [3, 4]]", None, "(8, 2) (3, 4)"),
        ("aten::mm", "[[8], [8, 4]]", None, "(8) (8, 4)"),
        ("aten::mm", "nonsense", None, ""),
        ("aten::mul", "[[8, 2], [8, 2]]", None, "(8, 2) (8, 2)"),
        ("aten::linear", "[[8, 2], [4, 2], []]", None, "(8, 2) (4, 2)"),
    ],
)
def test_a_product_counts_two_operations_for_each_multiplication(name, dims, flops, sizes):
    work = work_of(name, (dims, BF16, ""))
    assert (work.flops, work.sizes) == (flops, sizes)


@pytest.mark.parametrize(
    ("name", "dims", "causal", "flops"),
    [
        # 2 batches, 4 heads, 8 queries, 16 keys, width 32: a product has 2*2*4*8*16*32 = 65,536 operations
        ("aten::_scaled_dot_product_flash_attention", "[2,4,8,32],[2,4,16,32],[2,4,16,32]", (4, "False"), 131_072),
        ("aten::_scaled_dot_product_flash_attention", "[2,4,8,32],[2,4,16,32],[2,4,16,32]", (4, "True"), 65_536),
        ("aten::_flash_attention_forward", "[2,8,4,32],[2,16,4,32],[2,16,4,32]", (8, "False"), 131_072),
        (
            "aten::_scaled_dot_product_flash_attention_backward",
            "[2,4,8,32],[2,4,8,32],[2,4,16,32],[2,4,16,32]",
            (11, "False"),
            327_680,
        ),
        ("aten::_scaled_dot_product_flash_attention", "[2,4,8,32],[2,4,16,32],[2,4,16,32]", (4, ""), None),
    ],
)
def test_attention_counts_its_products_and_half_of_them_where_it_is_causal(name, dims, causal, flops):
    place, word = causal
    concrete = [""] * place + [word]
    assert work_of(name, (f"[{dims}]", BF16, str(concrete))).flops == flops
