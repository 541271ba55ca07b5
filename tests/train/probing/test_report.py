"""The text shows rates, bandwidths, jobs, the weightiest operators with their share of the best rate, and findings."""

from tests.train.probing.test_findings import product
from train.probing import report

MM = product(seconds=2e-3, warm_seconds=1e-3, flops=1e9, spread_percent=1.0, dtypes='["float32", "float32"]')
ADD = product(
    name="aten::add", kind="memory_bound", shapes="[[500000]]", dtypes='["float32"]', bytes=4e6, flops=0,
    seconds=1e-3, warm_seconds=5e-4, spread_percent=2.0, variants={"operator": 1e-3},
)  # fmt: skip
CONTENT = {
    "device_name": "Example",
    "threads": 4,
    "rates": {"fp32": {"best_tflops": 4.0, "sustained_tflops": 3.9, "spread_percent": 0.5}},
    "bandwidth": {
        "copy": {"gb_per_second": 16.0, "spread_percent": 0.2, "gb": 0.27},
        "host_to_device": {"gb_per_second": 50.0, "spread_percent": 0.2, "gb": 0.27},
    },
    "loader_samples_per_second": 12345.6,
    "operators": [ADD, MM],
    "jobs": [
        {
            **{"framework": "hf", "model": "llama", "model_size": "tiny", "ranks": 2, "threads": 2},
            "calls": [[0, 4], [1, 3]],
        }
    ],
    "collectives": [
        {"name": "all_reduce", "bytes": 1048576, "ranks": 2, "nodes": 1, "seconds": 1e-3, "bus_gb_per_second": 1.05}
    ],
    "findings": ["F.linear is slow"],
}


def test_the_text_holds_every_part_in_figures_by_hand():
    lines = report.as_text(CONTENT).splitlines()
    assert lines[0] == "fp32: best 4, sustained 3.9 TFLOP/s, spread 0.5 % (Example)"
    assert lines[1] == "copy: 16 GB/s, +-0.2 % (0.27 GB a pass)"
    assert lines[3] == "data loader: 12,346 samples/s for one rank"
    # 4 x 0.5 ms and 3 x 1 ms at least; 4 x 1 ms and 3 x 2 ms with a cold cache
    assert lines[4].startswith(
        "hf llama (tiny), one of 2 ranks, 2 threads: 2 operators take 5 ms a step at least, 10 ms"
    )
    assert "100.0 % of it was run" in lines[4]
    first, second = lines[6:8]
    # 1 GFLOP in 1 ms is half of the 2 TFLOP/s that two of four threads may have
    assert first.startswith("aten::mm (6, 10) x (10, 4) float32 ") and "1 TFLOP/s" in first and " 50%" in first
    assert " 60.0%" in first and " 40.0%" in second
    # 4 MB in 0.5 ms are 8 GB/s, half of the copy
    assert "8 GB/s" in second and " 50%" in second
    assert "all-reduce of 1.0 MB, 2 ranks on 1 node: 1 ms, bus 1.05 GB/s" in lines
    assert lines[-1] == "finding: F.linear is slow"


def test_a_probe_without_operators_has_its_rates():
    bare = CONTENT | {"operators": [], "jobs": [], "collectives": [], "findings": [], "loader_samples_per_second": None}
    assert len(report.as_text(bare).splitlines()) == 3
