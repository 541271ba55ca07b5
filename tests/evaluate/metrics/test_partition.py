"""A partition of a board is told from a whole one by its conditions, its name, its memory or its cores."""

from __future__ import annotations

from typing import Any

import pytest

from evaluate.metrics.partition import kind_of

H100, MI300X = "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"


def kind(name: str | None, memory: float | None = None, cores: int | None = None, partition: str | None = None) -> Any:
    info = {"device_name": name, "total_memory_gb": memory, "gpu_cores": cores}
    return kind_of({"gpu_info": info, "conditions": {"partition": partition}})


@pytest.mark.parametrize(
    ("found", "parts", "text"),
    [
        # 192 GiB in eight parts are 24 GiB, 25.77e9 bytes, and 304 compute units of 64 are 38 in each
        (kind(MI300X, 25.77, 2432), 8, "1/8 of a device"),
        (kind(MI300X, 206.0, None, "CPX/NPS1"), 8, "CPX/NPS1, 1/8 of a device"),
        (kind(MI300X, 103.1, 9728, "DPX/NPS2"), 2, "DPX/NPS2, 1/2 of a device"),
        (kind(MI300X, 51.5), 4, "1/4 of a device"),
        (kind(MI300X, 12.0), None, "part of a device"),
        (kind(f"{H100} MIG 1g.10gb", 10.2, 2048), 8, "MIG 1g.10gb, 1/8 of a device"),
        (kind(f"{H100} MIG 3g.40gb", 42.4), 2, "MIG 3g.40gb, 1/2 of a device"),
        (kind(H100, 85.0, 16896, "Enabled"), None, "MIG, part of a device"),
        (kind(f"{MI300X} VF", 25.77), 8, "1/8 of a device"),
    ],
)
def test_a_partition_is_found(found: Any, parts: int | None, text: str) -> None:
    assert (found.parts, found.text, found.is_whole) == (parts, text, False)


@pytest.mark.parametrize(
    "found",
    [
        kind(MI300X, 206.0, 19456, "SPX/NPS1"),
        kind(MI300X, 191.98),  # GiB that a log calls GB
        kind(f"{MI300X} VF", 206.0),
        kind(H100, 85.0, 16896, "Disabled"),
        kind(H100, 79.1, 132),  # multiprocessors in place of cores
        kind(H100),
        kind("NVIDIA H200", 150.1),
        kind("Example CPU", 24.0),
        kind(None),
    ],
)
def test_a_whole_device_is_whole(found: Any) -> None:
    assert (found.parts, found.text) == (1, "")


def test_another_memory_mode_is_another_kind_and_still_whole() -> None:
    assert kind(MI300X, 206.0, None, "SPX/NPS4") != kind(MI300X, 206.0, None, "SPX/NPS1")
    assert kind(MI300X, 206.0, None, "SPX/NPS4").is_whole


def test_names_and_small_differences_of_memory_make_no_other_kind() -> None:
    assert kind(MI300X, 206.1) == kind(f"{MI300X} OAM", 205.9)
    assert kind(MI300X, 25.77) == kind(MI300X, 25.6)
    assert kind(H100, 85.0) != kind("NVIDIA H100 PCIe", 85.0)


def test_one_die_of_a_board_is_named_as_such() -> None:
    assert kind("AMD Instinct MI250X", 68.7).text == "one of 2 dies"
