"""A real profile of a small training on the CPU, painted, and against torch's own sums of the same recording."""

import pytest
from made_traces import MOST_UNATTRIBUTED, divided, painted_operators

torch = pytest.importorskip("torch")
STEPS, LAYERS, TOKENS, WIDTH, HEADS = 3, 2, 256, 256, 4


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Trace and torch's averages of three steps: two layers of attention and products, cross entropy, AdamW."""
    functional = torch.nn.functional
    torch.manual_seed(1)
    layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
    optimizer = torch.optim.AdamW(layers.parameters())

    def step():
        hidden = torch.randn(TOKENS, WIDTH)
        for layer in layers:
            heads = hidden.view(1, TOKENS, HEADS, -1).transpose(1, 2)
            mixed = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
            hidden = layer(mixed.transpose(1, 2).reshape(TOKENS, WIDTH))
        functional.cross_entropy(hidden, torch.zeros(TOKENS, dtype=torch.long)).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    path = tmp_path_factory.mktemp("profile") / "trace.json.gz"
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, schedule=schedule, record_shapes=True) as profiler:
        for _ in range(STEPS + 1):
            step()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return divided(path), profiler.key_averages(), painted_operators(path)


def test_the_kinds_of_a_real_profile_sum_to_the_step_with_little_unattributed(recorded):
    result, _, painted = recorded
    assert result["steps"] == [1, 2, 3]
    assert result["kinds"] == pytest.approx(painted, abs=0.005 * result["step_seconds"])
    assert sum(result["kinds"].values()) == pytest.approx(result["step_seconds"], rel=1e-9)
    assert result["kinds"]["unattributed"] < MOST_UNATTRIBUTED * result["step_seconds"]
    assert all(result["kinds"][kind] > 0 for kind in ("matmul", "attention", "memory_bound", "optimizer", "idle"))


def test_own_times_are_those_that_torch_computes(recorded):
    result, averages, _ = recorded
    theirs = {row.key: (row.count, row.self_cpu_time_total * 1e-6) for row in averages}
    ours = {}
    for row in result["kernels"]:
        count, seconds = ours.get(row["name"], (0, 0.0))
        ours[row["name"]] = (count + row["count"] * STEPS, seconds + row["seconds"] * STEPS)
    for name in ("aten::mm", "aten::addmm", "aten::_scaled_dot_product_flash_attention_for_cpu", "aten::linear"):
        assert ours[name][0] == pytest.approx(theirs[name][0]), name
        assert ours[name][1] == pytest.approx(theirs[name][1], rel=0.02, abs=1e-5), name


def test_products_have_their_shapes_and_operations(recorded):
    result, *_ = recorded
    rows = {(row["name"], row["shapes"]): row for row in result["operators"]}
    product = rows["aten::addmm", f"({TOKENS}, {WIDTH}) x ({WIDTH}, {WIDTH})"]
    assert product["count"] == LAYERS
    assert product["flops"] == 2 * TOKENS * WIDTH * WIDTH
    attention = next(row for row in result["operators"] if row["operator"] == "attention forward")
    assert attention["flops"] == 4 * TOKENS * TOKENS * WIDTH / 2  # causal: half
    assert attention["precision"] == "fp32"
