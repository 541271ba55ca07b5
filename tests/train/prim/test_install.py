"""A device takes the YAMLs that AMD ships for it, or those that AMD names for it."""

import pytest

from train.prim.install import gpu_folder


@pytest.mark.parametrize(
    ("device", "folder"),
    [
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI325X OAM", "MI325X"),
        ("AMD Instinct MI355X", "MI355X"),
        ("AMD Instinct MI350X VF", "MI355X"),
        ("AMD Instinct MI300A", "MI300X"),
        (None, "MI300X"),
    ],
)
def test_a_device_has_the_folder_of_its_generation(device, folder):
    assert gpu_folder(device) == folder
