"""Notes on a group name what its figures are of; the certificate has every setting that frameworks read back."""

import pytest
from reports import report

from example import example_result


def energy(method, source):
    values = {"joules": 57.3, "avg_watts": 16.4, "joules_per_token": 0.001, "source": source, "interval": "7 steps"}
    return {"energy_metrics": values | {"method": method, "reasons": {}}}


NVML, AMD_SMI = "GPU counter, not the wall (NVML)", "GPU counter, not the wall (AMD SMI)"
INTEGRATED = "GPU power, integrated, not the wall (AMD SMI)"


@pytest.mark.parametrize(
    ("mega", "hf", "word", "notes"),
    [
        (
            {"fingerprint__licences": {"dataset": "odc-by", "tokenizer": "llama3.1"}},
            {"fingerprint__licences": {"dataset": "odc-by", "tokenizer": None}},
            "licence",
            ["licences: dataset odc-by; tokenizer llama3.1"],
        ),
        ({"fingerprint__licences": {"dataset": None, "tokenizer": None}}, {}, "licence", []),
        (
            energy("gpu_counter", NVML),
            energy("gpu_power", INTEGRATED),
            "energy",
            [f"energy is not comparable: {INTEGRATED.removesuffix(' (AMD SMI)')} (A cpu/hf); "
             "GPU counter, not the wall (B cpu/mega)"],
        ),
        (energy("gpu_counter", NVML), energy("gpu_counter", AMD_SMI), "energy", []),
        (
            {},
            {"memory_metrics__source": "allocator"},
            "memory",
            ["memory is not comparable: allocator (A cpu/hf); resident set of the process (B cpu/mega)"],
        ),
    ],
)  # fmt: skip
def test_what_differs_is_noted_once_under_its_name(tmp_path, mega, hf, word, notes):
    found = report(tmp_path, [example_result(framework="mega", **mega), example_result(framework="hf", **hf)]).notes
    assert [note for note in found if word in note and "run 1" not in note] == notes
