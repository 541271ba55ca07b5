"""A sentence names a side untuned if it ran mega on megatron-core's local layers, and no other side."""

from __future__ import annotations

import pytest
from sides import side

from evaluate.verdict.pairs import pairs
from evaluate.verdict.verdicts import judge

LOCAL, ENGINE = "megatron_core_local", "transformer_engine"


def sentence(nvd_layers: str, amd_layers: str, **changes: str) -> str:
    entries = side("nvd", 1.0, runs=5, resolved_config__layer_implementation=nvd_layers, **changes)
    entries += side("amd", 1.2, runs=5, resolved_config__layer_implementation=amd_layers, **changes)
    (found,) = judge(pairs(entries, "platform"), "platform")
    assert found.estimate is not None, found.reasons
    return found.sentence


@pytest.mark.parametrize(
    ("nvd_layers", "amd_layers", "named"),
    [
        (LOCAL, LOCAL, "NVIDIA H100 80GB HBM3 and AMD Instinct MI300X"),
        (ENGINE, ENGINE, None),
    ],
)
def test_mega_on_local_layers_is_named_untuned(nvd_layers: str, amd_layers: str, named: str | None) -> None:
    said = sentence(nvd_layers, amd_layers)
    assert ("untuned" in said) is (named is not None)
    if named:
        first, second = named.split(" and ")
        assert f"untuned: {first} and {second}" in said or f"untuned: {second} and {first}" in said
        assert said.endswith("mega on megatron-core's local layers")


def test_the_layers_of_another_framework_are_its_own() -> None:
    assert "untuned" not in sentence(LOCAL, LOCAL, framework="nemo")
