"""A real profile of a small training on the CPU has the kinds of its painted operators."""

import pytest
from made_traces import MOST_UNATTRIBUTED, divided, painted_operators

torch = pytest.importorskip("torch")
TOKENS, WIDTH, HEADS = 256, 256, 4


def test_the_kinds_of_a_real_profile_are_those_of_its_operators_with_little_unattributed(tmp_path):
    """Three steps of two layers of attention and products, cross entropy, and AdamW."""
    torch.manual_seed(1)
    layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))
    optimizer = torch.optim.AdamW(layers.parameters())
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=3, repeat=1)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, schedule=schedule, record_shapes=True) as profiler:
        for _ in range(4):
            hidden = torch.randn(TOKENS, WIDTH)
            for layer in layers:
                heads = hidden.view(1, TOKENS, HEADS, -1).transpose(1, 2)
                mixed = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
                hidden = layer(mixed.transpose(1, 2).reshape(TOKENS, WIDTH))
            torch.nn.functional.cross_entropy(hidden, torch.zeros(TOKENS, dtype=torch.long)).backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    path = tmp_path / "trace.json.gz"
    profiler.export_chrome_trace(str(path))
    result = divided(path)
    rows = {(row["name"], row["shapes"]): row for row in result["operators"]}
    product = rows["aten::addmm", f"({TOKENS}, {WIDTH}) x ({WIDTH}, {WIDTH})"]
    assert (product["count"], product["flops"]) == (2, 2 * TOKENS * WIDTH * WIDTH)
    assert result["kinds"] == pytest.approx(painted_operators(path), abs=0.005 * result["step_seconds"])
    assert sum(result["kinds"].values()) == pytest.approx(result["step_seconds"], rel=1e-9)
    assert result["kinds"]["unattributed"] < MOST_UNATTRIBUTED * result["step_seconds"]


class _Linear(torch.autograd.Function):
    """A layer that keeps its sizes from its gradient, as that of TransformerEngine does."""

    @staticmethod
    def forward(ctx, weight, given, _):
        ctx.save_for_backward(weight, given)
        return given @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        weight, given = ctx.saved_tensors
        return gradient.flatten(0, 1).t() @ given.flatten(0, 1), gradient @ weight, None


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_a_backward_operator_of_a_real_profile_has_the_sizes_of_its_forward_operator(is_reentrant, tmp_path):
    """Three layers of equal gradients, the last two of them recomputed in the backward pass."""
    weights = [torch.randn(4, width, requires_grad=True) for width in (8, 6, 2)]
    given = [torch.randn(16, 1, width, requires_grad=True) for width in (8, 6, 2)]

    def layer(place, tokens):
        return _Linear.apply(weights[place], tokens, (1, "not a tensor"))

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        first = layer(0, given[0])
        others = [
            torch.utils.checkpoint.checkpoint(layer, place, given[place], use_reentrant=is_reentrant)
            for place in (1, 2)
        ]
        sum(output.sum() for output in (first, *others)).backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    rows = divided(tmp_path / "trace.json")["operators"]
    sizes = {row["shapes"] for row in rows if row["name"] == "_LinearBackward"}
    assert sizes == {f"(4, {width}) (16, 1, {width})" for width in (8, 6, 2)}
