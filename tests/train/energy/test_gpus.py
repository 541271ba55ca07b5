"""Energy of GPUs, against stand-ins of pynvml and amdsmi below the real zeus. Expected joules are worked by hand.

Thirteen steps of 1 s; the summary leaves out 3, so 10 s count. One GPU of 500 W then takes 5,000 J, and the job trains
10 x 8,192 tokens.
"""

from __future__ import annotations

import json
import lzma
import re
import sys

import pytest
from checkout import ROOT
from smi_machine import TOKENS, Clock, of_gpus, open_gpus, stand_ins

from train.energy import sampler, section

A, B = "0000:17:00.0", "0000:9b:00.0"
MI300X, MI250 = "AMD Instinct MI300X", {"name": "AMD Instinct MI250X", "serial": "0x1"}
VENDORS = pytest.mark.parametrize("platform", ["nvd", "amd"])
COUNTER_OF = {"nvd": "nvmlDeviceGetTotalEnergyConsumption", "amd": "amdsmi_get_energy_count"}
INIT_OF = {"nvd": "nvmlInit", "amd": "amdsmi_init"}
NO_PERMISSION, NOT_SUPPORTED = {"nvd": 4, "amd": 10}, {"nvd": 3, "amd": 2}
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


DIES = (  # one package: the first die reports the power of both, the second none (zeus, pull request 203)
    {"bus_id": A, "has_instant": False} | MI250,
    {"bus_id": B, "hip": 1, "watts": 0.0, "has_instant": False, "has_average": False} | MI250,
)
EIGHT = [f"0000:{17 + number}:00.0" for number in range(8)]
SOCKETS = [{"bus_id": one, "hip": hip, "serial": f"0x{hip + 1}", "name": MI300X} for hip, one in enumerate((A, B))]
PARTITION = {"serial": "0x1", "name": MI300X}
"""Of an MI300X in DPX or CPX; each device with counter and power."""
NO_ENERGY = dict.fromkeys(("joules", "avg_watts", "joules_per_token", "counter_joules"))
UNKNOWN = {"clock": "N/A", "temperature": "N/A", "use": "N/A", "has_average": False}
NO_STATE = dict.fromkeys(("mean_sm_clock_mhz", "mean_temperature_celsius", "mean_gpu_use_percent"))
BY_POWER = {"counter_joules": None, "joules": 5000, "integrated_joules": 5000, "method": "gpu_power"}


def rising(node):
    for sample in node.samples:
        sample["gpus"][0][INSTANT] = 100_000 * sample["t"]


def lose(lost):
    def change(node):
        del node.samples[lost]

    return {"change": change}


def share(of_power):
    return ({"bus_id": A, "counter_share": of_power},)


def refused(platform, code):
    return {"bus_id": A, "faults": {COUNTER_OF[platform]: code[platform]}}


CASES = {
    "a counter of one die of two is rejected": (
        "amd",
        (DIES[0] | {"counter_share": 0.5}, DIES[1]),
        {},
        NO_ENERGY | {"counter_joules": 2500, "integrated_joules": 5000},
        {"joules": "rejected: .*2,500 J"},
    ),
    "a counter of both dies counts for both": ("amd", DIES, {}, {"joules": 5000, "gpu_count": 2}, {}),
    "the power of one die is of both": (
        "amd",
        DIES,
        {"bus_ids": [A]},
        NO_ENERGY,
        {"joules": "2 dies, and the job uses 1 of them"},
    ),
    **{
        f"{count} partitions of one socket may each report the whole": (
            "amd",
            [PARTITION | {"bus_id": f"0000:17:00.{number}", "hip": number} for number in range(count)],
            {},
            NO_ENERGY | {"integrated_joules": None},
            {"joules": "several devices share this package"},
        )
        for count in (2, 8)
    },
    "two sockets are added": ("amd", SOCKETS, {}, {"joules": 10_000}, {}),
    "mean power is the joules over the seconds": (
        "nvd amd",
        share(1.04),
        {},
        {"joules": 5200, "integrated_joules": 5000, "avg_watts": 520},
        {},
    ),
    "9 seconds have no second source": (
        "nvd amd",
        share(1),
        {"step": 0.9},
        NO_ENERGY,
        {"joules": "the steady steps took 9.00 s, and energy needs 10 s or more"},
    ),
    "10 seconds have one": ("nvd amd", share(1), {"step": 1.0}, {"joules": 5000}, {}),
    **{
        f"counter and power differ by {of_power}": (
            "nvd amd",
            share(of_power),
            {},
            {"joules": joules, "counter_joules": 5000 * of_power},
            {} if joules else {"joules": "rejected"},
        )
        for of_power, joules in ((1.04, 5200), (0.96, 4800), (1.06, None), (0.94, None))
    },
    "one GPU of eight that counts a tenth less, 1 % of the sum, is found": (
        "nvd amd",
        [{"bus_id": one, "hip": hip, "counter_share": 0.9 if hip == 5 else 1.0} for hip, one in enumerate(EIGHT)],
        {},
        {"joules": None},
        {"joules": EIGHT[5]},
    ),
    # 2^32 x 15.3 uJ = 65,713 J and 2^32 mJ = 4,294,967 J are reached after 7.4 s and 6.9 s, in a steady step
    **{
        f"a counter of 32 bits of {platform} that starts again is continued": (
            platform,
            ({"bus_id": A, "counter_bits": 32, "start_joules": start},),
            {},
            {"joules": 5000, "counter_joules": 5000},
            {},
        )
        for platform, start in (("amd", 62_000.0), ("nvd", 4_291_500.0))
    },
    "a counter that was reset counts nothing and power stands alone": (
        "nvd amd",
        ({"bus_id": A, "start_joules": 9000.0, "reset_at": 7.0},),
        {},
        BY_POWER,
        {"counter_joules": "the counter was reset"},
    ),
    "missing values are null": (
        "nvd amd",
        ({"bus_id": A} | UNKNOWN,),
        {},
        {"joules": 5000} | NO_STATE,
        dict.fromkeys(NO_STATE, "."),
    ),
    "the memory clock of AMD is null too": (
        "amd",
        ({"bus_id": A} | UNKNOWN,),
        {},
        {"mean_memory_clock_mhz": None},
        {"mean_memory_clock_mhz": "."},
    ),
    # an MI210 has no current power, an MI300X no average
    "power that only the average has is integrated": (
        "nvd amd",
        ({"bus_id": A, "has_instant": False},),
        {},
        {"joules": 5000, "integrated_joules": 5000},
        {},
    ),
    **{
        f"no power and no counter of {platform}": (
            platform,
            (refused(platform, NOT_SUPPORTED) | {"has_instant": False, "has_average": False},),
            {},
            NO_ENERGY | {"integrated_joules": None, "gpu_count": 0},
            {"joules": "upport"},
        )
        for platform in ("nvd", "amd")
    },
    **{
        f"a counter of {platform} without permission": (
            platform,
            (refused(platform, NO_PERMISSION),),
            {},
            BY_POWER,
            {"counter_joules": "Permission"},
        )
        for platform in ("nvd", "amd")
    },
    "a GPU that vanishes takes the energy with it and nothing else": (
        "nvd amd",
        ({"bus_id": A, "lost_at": 6.0}, {"bus_id": B, "hip": 1}),
        {},
        {"joules": None, "mean_sm_clock_mhz": 1900},
        {"joules": f"{A}.*lost"},
    ),
    # 0.2 s late each time: 5 samples a second
    "too few samples a second": (
        "nvd amd",
        share(1),
        {"late": 0.2},
        {"joules": None, "sample_hz": 5.0, "counter_joules": 5000},
        {"joules": "times a second, wanted 10"},
    ),
    "killed at 8 s of 14": (
        "amd",
        share(1),
        lose(slice(100, None)),
        NO_ENERGY,
        {"joules": "the samples end 6.1 s before the last steady step"},
    ),
    "a gap": ("amd", share(1), lose(slice(80, 95)), NO_ENERGY, {"joules": "a gap of 1.3 s"}),
    "a late begin": (
        "amd",
        share(1),
        lose(slice(0, 60)),
        NO_ENERGY,
        {"joules": "the first 0.8 s of the steady steps were not sampled"},
    ),
    "one sample": (
        "amd",
        share(1),
        lose(slice(1, None)),
        NO_ENERGY,
        {"joules": "none of the steady steps were sampled"},
    ),
    "power that rises by 100 W a second is integrated on straight lines": (
        "nvd",
        share(1),
        {"change": rising},
        {"integrated_joules": 50 * (14**2 - 4**2)},
        {},
    ),
    "a pause between two steps is left out": ("nvd", share(1), {"pause": 0.5}, {"joules": 5000}, {}),
}
"""Vendors, boards, options of `of_gpus`, values, and what the reasons of values that are null say."""


@pytest.mark.parametrize(
    ("platform", "case"), [(platform, case) for case, row in CASES.items() for platform in row[0].split()]
)
def test_energy_of_boards_is_right_or_null_with_the_reason(machine, platform, case):
    _, boards, options, wanted, why = CASES[case]
    clock = machine(*boards, late=options.get("late", 0.0))
    others = {name: value for name, value in options.items() if name not in ("late", "bus_ids")}
    found = of_gpus(platform, clock, options.get("bus_ids", [one["bus_id"] for one in boards]), **others)
    assert {key: found[key] for key in wanted} == {
        key: pytest.approx(value, abs=0.1) if isinstance(value, int | float) else value for key, value in wanted.items()
    }
    for key, said in why.items():
        assert re.search(said, found["reasons"][key]), found["reasons"][key]
    assert options or found["interval"].endswith(", 10.0 s") and found["samples"] == pytest.approx(125, abs=1)


REFUSED = {
    f"{platform}: {name}": (platform, *row)
    for platform, module in (("nvd", "pynvml"), ("amd", "amdsmi"))
    for name, row in {
        "hidden": ({}, [A, B], f"does not show the GPU at {B}", ""),
        "no permission": (
            {"faults": {INIT_OF[platform]: NO_PERMISSION[platform]}},
            [A],
            "Permission.* must work for this user",
            "",
        ),
        "no library": ({}, [A], "setup.sh|pip install", module),
    }.items()
} | {"divided": ("nvd", {"is_divided": True}, [A], "divided by MIG", "")}


@pytest.mark.parametrize("case", REFUSED)
def test_gpus_that_cannot_be_read_are_one_line_with_the_remedy(machine, case, monkeypatch):
    platform, board, bus_ids, said, missing = REFUSED[case]
    machine({"bus_id": A} | board)
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(RuntimeError, match=said):
        open_gpus(platform, bus_ids, len(bus_ids), "")


@pytest.mark.parametrize("earlier", [20, 59])
def test_clock_that_goes_back_or_stands_gives_no_energy(machine, earlier):
    def back(node):
        node.samples[60]["t"] = node.samples[earlier]["t"]

    found = of_gpus("nvd", machine({"bus_id": A}), [A], change=back)
    assert found["joules"] is None and "the clock of the samples goes back" in found["reasons"]["joules"]


def test_time_of_one_machine_is_found_on_the_clock_of_another(machine):
    def elsewhere(node):  # booted 50 s earlier
        node.header |= {"boot": "another", "unix_at_zero": node.header["unix_at_zero"] - 50}
        node.samples[:] = [sample | {"t": sample["t"] + 50} for sample in node.samples]

    def same_boot(node):  # and a time of day that was set meanwhile
        node.header["unix_at_zero"] -= 0.5

    for change in (elsewhere, same_boot):
        found = of_gpus("nvd", machine({"bus_id": A}), [A], change=change)
        assert found["joules"] == pytest.approx(5000, abs=0.1)


@VENDORS
@pytest.mark.parametrize("use", [0, 37])
def test_idle_power_is_that_before_the_ranks_and_only_of_an_idle_gpu(machine, platform, use):
    clock = machine({"bus_id": A, "watts": 90.0, "use": use})
    found = of_gpus(platform, clock, [A], change=lambda node: setattr(node, "ready", 2.0))
    assert found["idle_watts"] == (None if use > 5 else pytest.approx(90.0))
    assert use <= 5 or "was 37 % used before the job" in found["reasons"]["idle_watts"]


def test_energy_of_the_first_gpu_is_that_of_its_counter_over_the_steady_steps(tmp_path):
    """The samples of a whole job on an H200, 12.5 a second. The end of the last step, which no file has, is the last
    sample above 600 W: the training drew about 689 W, what came after it 130 W."""
    folder = ROOT / "tests" / "h200"
    result = json.loads((folder / "results" / "full_sl2048_hf__train_nvd_hf_llama_run1.json").read_text())
    text = lzma.decompress((folder / "facts" / "energy_samples_full_hf.jsonl.xz").read_bytes()).decode()
    samples = [(one["t"], *one["gpus"][0]) for one in map(json.loads, text.splitlines()) if "t" in one]
    end = max(time for time, _, power, *_ in samples if power > 600e3)
    start = end - sum(result["step_times"][3:])

    def joules(moment):
        later = next(place for place, one in enumerate(samples) if one[0] >= moment)
        (before, low, *_), (after, high, *_) = samples[later - 1], samples[later]
        return (low + (high - low) * (moment - before) / (after - before)) / 1e3

    ends = [end - sum(result["step_times"][number:]) for number in range(1, 15)]
    (tmp_path / "samples.jsonl").write_text(text)
    node = sampler.read_samples(tmp_path / "samples.jsonl")
    found = section.of_job([node], result, {"boot": node.header["boot"], "ends": ends, "unix_at_zero": 0.0})
    assert found["joules"] == pytest.approx(joules(end) - joules(start), rel=1e-6)
    assert found["joules_per_token"] == pytest.approx(found["joules"] / (11 * 8 * 2048), rel=1e-6)
    # what the suite wrote on that machine, where it knew the ends of the steps
    recorded = result["energy_metrics"]
    for name in ("joules", "integrated_joules", "joules_per_token", "avg_watts"):
        assert found[name] == pytest.approx(recorded[name], rel=1e-3), name
    for name in ("idle_watts", "mean_sm_clock_mhz", "mean_temperature_celsius", "max_temperature_celsius", "sample_hz"):
        assert found[name] == pytest.approx(recorded[name], rel=1e-3), name
    assert found["throttled_percent"] == recorded["throttled_percent"] == {"sw_power_cap": 100.0}
