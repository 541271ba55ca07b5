"""Energy of GPUs, against stand-ins of pynvml and amdsmi below the real zeus. Expected joules are worked by hand.

Thirteen steps of 1 s; the summary leaves out 3, so 10 s count. One GPU of 500 W then takes 5,000 J, and the job trains
10 x 8,192 tokens.
"""

from __future__ import annotations

import sys

import pytest
from smi_stand_ins import TOKENS, Clock, of_gpus, open_gpus, stand_ins

A, B = "0000:17:00.0", "0000:9b:00.0"
MI300X, MI250 = "AMD Instinct MI300X", {"name": "AMD Instinct MI250X", "serial": "0x1"}
VENDORS = pytest.mark.parametrize("platform", ["nvd", "amd"])
COUNTER_OF = {"nvd": "nvmlDeviceGetTotalEnergyConsumption", "amd": "amdsmi_get_energy_count"}
INIT_OF = {"nvd": "nvmlInit", "amd": "amdsmi_init"}
NO_PERMISSION = {"nvd": 4, "amd": 10}
INSTANT = 1
"""Place of the power of this moment, in milliwatts, in a sample of a GPU."""


@pytest.fixture
def machine(monkeypatch):
    """Return a function that makes the machine of a test from boards and returns its clock."""
    with stand_ins(monkeypatch) as standin:

        def make(*boards, late=0.0):
            clock = Clock(late)
            standin.MACHINE = standin.Machine([standin.Board(**board) for board in boards], clock.now)
            return clock

        yield make


@VENDORS
def test_two_gpus_of_500_and_300_watts_take_8000_joules_in_10_seconds(machine, platform):
    clock = machine({"bus_id": A}, {"bus_id": B, "watts": 300.0, "hip": 1})
    found = of_gpus(platform, clock, [A, B])
    assert found["joules"] == pytest.approx(8000, abs=0.1) == found["counter_joules"]
    assert found["integrated_joules"] == pytest.approx(8000, abs=0.1)
    assert found["avg_watts"] == pytest.approx(800, abs=0.1)
    assert found["joules_per_token"] == pytest.approx(8000 / (10 * TOKENS), rel=1e-4)
    assert found["gpu_count"] == 2 and found["method"] == "gpu_counter"
    assert found["source"].startswith("GPU counter, not the wall") and "2 of 2 GPUs" in found["source"]
    assert found["interval"] == "10 steady steps (4 to 13), 10.0 s"
    assert found["sample_hz"] >= 10 and found["samples"] == pytest.approx(125, abs=1)
    assert (found["mean_sm_clock_mhz"], found["max_temperature_celsius"], found["mean_gpu_use_percent"]) == (
        1900,
        61,
        97,
    )
    assert found["throttled_percent"] == {"sw_power_cap" if platform == "nvd" else "ppt": 100.0}
    assert not {key for key, value in found.items() if value is None} - found["reasons"].keys()


@VENDORS
@pytest.mark.parametrize(("bus_id", "joules"), [(A, 5000.0), (B, 3000.0)])
def test_gpus_are_found_by_address_and_not_by_index(machine, platform, bus_id, joules):
    # the library lists by address, the runtime puts the fast one of 300 W first: its index 0 is the library's 1
    clock = machine({"bus_id": A, "hip": 1}, {"bus_id": B, "watts": 300.0, "hip": 0})
    assert of_gpus(platform, clock, [bus_id])["joules"] == pytest.approx(joules, abs=0.1)


@VENDORS
def test_without_the_runtime_only_a_job_on_all_gpus_is_of_gpus(machine, platform):
    clock = machine({"bus_id": A}, {"bus_id": B, "hip": 1})
    assert of_gpus(platform, clock, None, gpus=2)["joules"] == pytest.approx(10_000, abs=0.1)
    with pytest.raises(RuntimeError, match="it is unknown which 1 of the 2 GPUs .* the job uses: no libcuda"):
        open_gpus(platform, None, 1, "no libcuda")


@VENDORS
def test_a_gpu_of_the_job_that_the_library_hides_is_named(machine, platform):
    machine({"bus_id": A})
    with pytest.raises(RuntimeError, match=f"does not show the GPU at {B}"):
        open_gpus(platform, [A, B], 2, "")


def mi250(machine, **counters):
    """One package: the first die reports the power of both, the second none (zeus, pull request 203)."""
    silent = {"bus_id": B, "hip": 1, "watts": 0.0, "has_instant": False, "has_average": False} | MI250
    return machine({"bus_id": A, "has_instant": False} | MI250 | counters, silent)


def test_counter_of_one_die_of_two_is_rejected_and_both_energies_are_kept(machine):
    found = of_gpus("amd", mi250(machine, counter_share=0.5), [A, B])
    assert found["joules"] is found["avg_watts"] is found["joules_per_token"] is None
    assert found["counter_joules"] == pytest.approx(2500, abs=0.1)
    assert found["integrated_joules"] == pytest.approx(5000, abs=0.1)
    assert found["reasons"]["joules"].startswith("rejected: ") and "2,500 J" in found["reasons"]["joules"]


def test_counter_of_both_dies_of_a_package_counts_for_both(machine):
    found = of_gpus("amd", mi250(machine), [A, B])
    assert found["joules"] == pytest.approx(5000, abs=0.1) and found["gpu_count"] == 2


def test_job_on_one_die_of_a_package_has_no_energy_because_the_power_is_of_both(machine):
    found = of_gpus("amd", mi250(machine), [A])
    assert found["joules"] is found["counter_joules"] is None
    assert "2 dies, and the job uses 1 of them" in found["reasons"]["joules"]


@pytest.mark.parametrize("count", [2, 8])
def test_partitions_of_one_socket_are_refused_because_each_may_report_the_whole(machine, count):
    # an MI300X in DPX or CPX; each device with counter and power
    ids = [f"0000:17:00.{number}" for number in range(count)]
    clock = machine(*({"bus_id": one, "hip": place, "serial": "0x1", "name": MI300X} for place, one in enumerate(ids)))
    found = of_gpus("amd", clock, ids)
    assert found["joules"] is found["avg_watts"] is found["counter_joules"] is found["integrated_joules"] is None
    assert "several devices share this package" in found["reasons"]["joules"]


def test_two_sockets_of_one_device_each_are_added(machine):
    clock = machine(
        *({"bus_id": one, "hip": hip, "serial": f"0x{hip + 1}", "name": MI300X} for hip, one in enumerate((A, B)))
    )
    assert of_gpus("amd", clock, [A, B])["joules"] == pytest.approx(10_000, abs=0.1)


@VENDORS
def test_mean_power_is_the_joules_over_the_seconds(machine, platform):
    found = of_gpus(platform, machine({"bus_id": A, "counter_share": 1.04}), [A])
    assert found["joules"] == pytest.approx(5200, abs=0.1) and found["integrated_joules"] == pytest.approx(
        5000, abs=0.1
    )
    assert found["avg_watts"] == pytest.approx(520, abs=0.1)


@VENDORS
@pytest.mark.parametrize(("step", "is_enough"), [(0.9, False), (1.0, True)])
def test_energy_needs_ten_seconds_for_the_check_by_a_second_source(machine, platform, step, is_enough):
    found = of_gpus(platform, machine({"bus_id": A}), [A], step=step)
    assert (found["joules"] is not None) is is_enough
    assert is_enough or "the steady steps took 9.00 s, and energy needs 10 s or more" in found["reasons"]["joules"]


@VENDORS
@pytest.mark.parametrize(("share", "is_rejected"), [(1.04, False), (0.96, False), (1.06, True), (0.94, True)])
def test_counter_and_power_may_differ_by_five_percent(machine, platform, share, is_rejected):
    found = of_gpus(platform, machine({"bus_id": A, "counter_share": share}), [A])
    assert (found["joules"] is None) is is_rejected
    assert found["counter_joules"] == pytest.approx(5000 * share, abs=0.1)


@VENDORS
def test_one_gpu_of_eight_that_counts_half_is_found(machine, platform):
    # half of one in eight is 6 % of the sum; a tenth of one is 1 % of it, and is found too
    ids = [f"0000:{17 + number}:00.0" for number in range(8)]
    boards = [{"bus_id": one, "hip": place, "counter_share": 1.0} for place, one in enumerate(ids)]
    boards[5]["counter_share"] = 0.9
    found = of_gpus(platform, machine(*boards), ids)
    assert found["joules"] is None and ids[5] in found["reasons"]["joules"]


@pytest.mark.parametrize(("platform", "start"), [("amd", 62_000.0), ("nvd", 4_291_500.0)])
def test_counter_of_32_bits_that_starts_again_is_continued(machine, platform, start):
    # 2^32 x 15.3 uJ = 65,713 J and 2^32 mJ = 4,294,967 J are reached after 7.4 s and 6.9 s, in a steady step
    found = of_gpus(platform, machine({"bus_id": A, "counter_bits": 32, "start_joules": start}), [A])
    assert found["joules"] == pytest.approx(5000, abs=0.1) == found["counter_joules"]


@VENDORS
def test_counter_that_was_reset_counts_nothing_and_power_stands_alone(machine, platform):
    found = of_gpus(platform, machine({"bus_id": A, "start_joules": 9000.0, "reset_at": 7.0}), [A])
    assert found["counter_joules"] is None and "the counter was reset" in found["reasons"]["counter_joules"]
    assert found["joules"] == pytest.approx(5000, abs=0.1) == found["integrated_joules"]
    assert found["method"] == "gpu_power" and found["source"].startswith("GPU power, integrated, not the wall")


@VENDORS
def test_missing_values_are_null_with_a_reason_and_not_zero(machine, platform):
    board = {"bus_id": A, "clock": "N/A", "temperature": "N/A", "use": "N/A", "has_average": False}
    found = of_gpus(platform, machine(board), [A])
    for key in ("sm_clock_mhz", "memory_clock_mhz", "temperature_celsius", "gpu_use_percent"):
        if (platform, key) != ("nvd", "memory_clock_mhz"):
            assert found[f"mean_{key}"] is None and found["reasons"][f"mean_{key}"]
    assert found["joules"] == pytest.approx(5000, abs=0.1)


@VENDORS
def test_power_that_only_the_average_has_is_integrated(machine, platform):
    # an MI210 has no current power, an MI300X no average
    found = of_gpus(platform, machine({"bus_id": A, "has_instant": False}), [A])
    assert found["integrated_joules"] == pytest.approx(5000, abs=0.1) and found["joules"] is not None


@VENDORS
def test_no_power_and_no_counter_is_null_with_the_reasons(machine, platform):
    not_supported = {COUNTER_OF[platform]: {"nvd": 3, "amd": 2}[platform]}
    board = {"bus_id": A, "has_instant": False, "has_average": False, "faults": not_supported}
    found = of_gpus(platform, machine(board), [A])
    assert found["joules"] is found["counter_joules"] is found["integrated_joules"] is None
    assert found["gpu_count"] == 0 and "upport" in found["reasons"]["joules"]


@VENDORS
def test_counter_without_permission_is_null_with_the_reason_and_power_goes_on(machine, platform):
    board = {"bus_id": A, "faults": {COUNTER_OF[platform]: NO_PERMISSION[platform]}}
    found = of_gpus(platform, machine(board), [A])
    assert found["counter_joules"] is None and "Permission" in found["reasons"]["counter_joules"]
    assert found["joules"] == pytest.approx(5000, abs=0.1)


@VENDORS
def test_library_that_refuses_to_start_is_one_line_with_the_remedy(machine, platform):
    machine({"bus_id": A, "faults": {INIT_OF[platform]: NO_PERMISSION[platform]}})
    with pytest.raises(RuntimeError, match="Permission.* must work for this user"):
        open_gpus(platform, [A], 1, "")


@pytest.mark.parametrize(("platform", "module"), [("nvd", "pynvml"), ("amd", "amdsmi")])
def test_missing_library_is_one_line_with_the_remedy(machine, platform, module, monkeypatch):
    machine({"bus_id": A})
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RuntimeError, match="setup.sh|pip install"):
        open_gpus(platform, [A], 1, "")


@VENDORS
def test_gpu_that_vanishes_takes_the_energy_with_it_and_nothing_else(machine, platform):
    clock = machine({"bus_id": A, "lost_at": 6.0}, {"bus_id": B, "hip": 1})
    found = of_gpus(platform, clock, [A, B])
    assert found["joules"] is None and A in found["reasons"]["joules"] and "lost" in found["reasons"]["joules"]
    assert found["mean_sm_clock_mhz"] == 1900 and found["samples"] == pytest.approx(125, abs=1)


@VENDORS
def test_too_few_samples_a_second_give_no_energy(machine, platform):
    # 0.2 s late each time: 5 samples a second
    found = of_gpus(platform, machine({"bus_id": A}, late=0.2), [A])
    assert found["joules"] is None and "times a second, wanted 10" in found["reasons"]["joules"]
    assert found["sample_hz"] < 10 and found["counter_joules"] == pytest.approx(5000, rel=1e-3)


@pytest.mark.parametrize("earlier", [20, 59])
def test_clock_that_goes_back_or_stands_gives_no_energy(machine, earlier):
    def back(node):
        node.samples[60]["t"] = node.samples[earlier]["t"]

    found = of_gpus("nvd", machine({"bus_id": A}), [A], change=back)
    assert found["joules"] is None and "the clock of the samples goes back" in found["reasons"]["joules"]


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        (slice(100, None), "the samples end 6.1 s before the last steady step"),  # killed at 8 s of 14
        (slice(80, 95), "a gap of 1.3 s"),
        (slice(0, 60), "the first 0.8 s of the steady steps were sampled"),
        (slice(1, None), "none of the steady steps were sampled"),
    ],
)
def test_samples_that_are_missing_give_no_energy(machine, lost, reason):
    def lose(node):
        del node.samples[lost]

    found = of_gpus("amd", machine({"bus_id": A}), [A], change=lose)
    assert found["joules"] is None and reason in found["reasons"]["joules"]


def test_power_that_rises_by_100_watts_a_second_is_integrated_on_straight_lines(machine):
    def rising(node):
        for sample in node.samples:
            sample["gpus"][0][INSTANT] = 100_000 * sample["t"]

    found = of_gpus("nvd", machine({"bus_id": A}), [A], change=rising)
    assert found["integrated_joules"] == pytest.approx(50 * (14**2 - 4**2), abs=0.1)


def test_a_pause_between_two_steps_is_left_out(machine):
    found = of_gpus("nvd", machine({"bus_id": A}), [A], pause=0.5)
    assert found["joules"] == pytest.approx(5000, abs=0.1) and found["interval"].endswith(", 10.0 s")


def test_time_of_one_machine_is_found_on_the_clock_of_another(machine):
    def elsewhere(node):  # booted 50 s earlier
        node.header |= {"boot": "another", "unix_at_zero": node.header["unix_at_zero"] - 50}
        node.samples[:] = [sample | {"t": sample["t"] + 50} for sample in node.samples]

    def same_boot(node):  # and a time of day that was set meanwhile
        node.header["unix_at_zero"] -= 0.5

    for change in (elsewhere, same_boot):
        found = of_gpus("nvd", machine({"bus_id": A}), [A], change=change)
        assert found["joules"] == pytest.approx(5000, abs=0.1)


def test_gpu_divided_by_mig_is_refused(machine):
    machine({"bus_id": A, "is_divided": True})
    with pytest.raises(RuntimeError, match="divided by MIG"):
        open_gpus("nvd", [A], 1)


@VENDORS
@pytest.mark.parametrize("use", [0, 37])
def test_idle_power_is_that_before_the_ranks_and_only_of_an_idle_gpu(machine, platform, use):
    def ready(node):
        node.ready = 2.0

    found = of_gpus(platform, machine({"bus_id": A, "watts": 90.0, "use": use}), [A], change=ready)
    assert found["idle_watts"] == (None if use > 5 else pytest.approx(90.0))
    assert use <= 5 or "was 37 % used before the job" in found["reasons"]["idle_watts"]
