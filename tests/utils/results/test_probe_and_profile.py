"""The files of a probe and of a profile are read with all their parts; nonsense is one line that names it."""

import copy
import json
from pathlib import Path

import pytest

from utils.results import probe_file, profile_file

RATES_ONLY = {
    "probe_version": 1,
    "platform": "cpu",
    "host": "example",
    "device_name": "Example",
    "started_utc": "2026-11-22T00:00:00+00:00",
    "pytorch_version": "2.13.0",
    "total_memory_gb": 80.0,
    "rates": {"fp32": {"best_tflops": 2.0, "sustained_tflops": 1.0, "spread_percent": 0.1}},
    "reasons": {"fp8": "none"},
}
WHOLE = RATES_ONLY | {
    "probe_version": 2,
    "operators": "of an earlier suite",
    "jobs": ["ignored"],
    "collectives": [
        {
            **{"name": "all_reduce", "bytes": 1048576, "ranks": 2, "nodes": 1, "seconds": 1e-3},
            **{"spread_percent": 2.0, "bus_gb_per_second": 1.05},
        }
    ],
    "bandwidth": {"copy": {"gb_per_second": 20.0, "spread_percent": 0.5, "gb": 0.27}},
    "attention": {"tflops": 1.5, "spread_percent": 0.1, "shape": [1, 8, 512, 64]},
    "findings": ["F.linear is slow"],
    "machine": "of an earlier suite",
    "loader_samples_per_second": "ignored",
}


def test_every_part_of_version_2_is_read(tmp_path):
    path = tmp_path / "probe_cpu_example.json"
    path.write_text(json.dumps(WHOLE))
    found = probe_file.read(path)
    (sent,) = found.collectives
    assert (sent.name, sent.ranks, sent.bus_gb_per_second) == ("all_reduce", 2, 1.05)
    assert found.bandwidth == {"copy": probe_file.Bandwidth(20.0, 0.5, 0.27)}
    assert (found.attention_tflops, found.findings) == (1.5, ("F.linear is slow",))
    assert found.rates["fp32"].best_tflops == 2.0


EMPTY = {"collectives": [], "bandwidth": {}, "attention": None, "findings": []}
EARLIER = ("operators", "jobs", "machine", "loader_samples_per_second")
NO_OTHER_KEYS = {key: value for key, value in WHOLE.items() if key not in EARLIER}
WITHOUT_ATTENTION = {key: value for key, value in WHOLE.items() if key != "attention"} | {
    "collectives": [],
    "bandwidth": {},
}


@pytest.mark.parametrize("content", [RATES_ONLY, NO_OTHER_KEYS | EMPTY, WITHOUT_ATTENTION])
def test_version_1_has_rates_only_and_what_was_not_measured_may_be_empty(content):
    found = probe_file.parse(content, Path("probe_cpu_example.json"))
    assert found.rates["fp32"].best_tflops == 2.0
    assert (found.collectives, found.bandwidth, found.attention_tflops) == ((), {}, None)


def test_a_hosts_name_cannot_leave_the_folder():
    assert probe_file.name("nvd", "../../x y") == "probe_nvd_..-..-x-y.json"


MISSING = "@missing@"
WRONG = {
    **{f"no {part}": ((), {part: MISSING}, part) for part in ("collectives", "bandwidth", "findings")},
    "another version": ((), {"probe_version": 3}, "version 2 or 1"),
    "a version that is no number": ((), {"probe_version": True}, "version 2 or 1"),
    "null collectives": ((), {"collectives": None}, "collectives: got None, wanted a list"),
    "a collective that is a text": ((), {"collectives": ["all_reduce"]}, "collectives[0]"),
    "no name": (("collectives", 0), {"name": ""}, "name: got ''"),
    "no ranks": (("collectives", 0), {"ranks": 0}, "ranks: got 0, wanted a whole number from 1"),
    "half a rank": (("collectives", 0), {"ranks": 0.5}, "ranks"),
    "bytes below nothing": (("collectives", 0), {"bytes": -1}, "bytes"),
    "a time that is a truth": (("collectives", 0), {"seconds": True}, "seconds: got True"),
    "a time that is a text": (("collectives", 0), {"seconds": "fast"}, "seconds: got 'fast'"),
    "a collective of no time": (("collectives", 0), {"seconds": 0}, "collectives[0]: seconds"),
    "bandwidths in a list": ((), {"bandwidth": []}, "bandwidth: got [], wanted an object"),
    "a bandwidth of nothing": (("bandwidth", "copy"), {"gb_per_second": 0}, "gb_per_second"),
    "an attention of no rate": (("attention",), {"tflops": 0}, "attention: tflops"),
    "an attention that is a text": ((), {"attention": "fast"}, "attention: got 'fast'"),
    "findings that are numbers": ((), {"findings": [1]}, "findings"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_nonsense_is_one_line_that_names_file_and_place(fault):
    place, changes, named = WRONG[fault]
    content = copy.deepcopy(WHOLE)
    inner = content
    for step in place:
        inner = inner[step]
    inner.update(changes)
    for key in [key for key, value in inner.items() if value == MISSING]:
        del inner[key]
    with pytest.raises(probe_file.ProbeError) as raised:
        probe_file.parse(content, Path("probe_cpu_example.json"))
    message = str(raised.value)
    assert message.startswith("probe_cpu_example.json: ") and named in message and "\n" not in message


PROFILE = {
    "profile_version": 1,
    "platform": "cpu",
    "framework": "mega",
    "model": "llama",
    "model_size": "tiny",
    "run": 1,
    "host": "example",
    "device_name": "Example CPU",
    "started_utc": "2026-11-21T00:00:00+00:00",
    "settings": {"max_steps": 30, "profile": "none"},
    "steps": [11, 12],
    "ranks": [0, 1],
    "traces": {"0": {"file": "rank0.json.gz", "sha256": "0" * 64}},
    "profiled_step_seconds": [0.5, 0.6],
    "unprofiled_step_seconds": 0.4,
    "reasons": {"rank1": "the disk is full"},
}


def test_a_profile_is_read(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE))
    profile = profile_file.read(path)
    assert profile_file.is_profile(path)
    assert (profile.steps, profile.ranks) == ((11, 12), (0, 1))
    assert (profile.profiled_step_seconds, profile.unprofiled_step_seconds) == ((0.5, 0.6), 0.4)
    assert profile.trace_path(0) == tmp_path / "rank0.json.gz" and 1 not in profile.traces
    reasons = PROFILE["reasons"] | {"unprofiled_step_seconds": "no step was measured"}
    without = profile_file.parse(PROFILE | {"unprofiled_step_seconds": None, "reasons": reasons}, None)
    assert without.unprofiled_step_seconds is None, "a missing mean has a reason"
    assert profile.started.utcoffset().total_seconds() == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("profile_version", 2),
        ("platform", "tpu"),
        ("framework", ""),
        ("run", 0),
        ("run", True),
        ("host", None),
        ("started_utc", "0001-11-21T00:00:00"),
        ("started_utc", 5),
        ("settings", {}),
        ("steps", [11, 13]),
        ("steps", [0, 1]),
        ("steps", []),
        ("ranks", [1, 0]),
        ("ranks", [-1]),
        ("traces", {"2": {"file": "rank2.json.gz", "sha256": "0" * 64}}),
        ("traces", {"0": {"file": "../rank0.json.gz", "sha256": "0" * 64}}),
        ("traces", {"0": {"file": "rank0.json.gz", "sha256": "x"}}),
        ("traces", {}),
        ("profiled_step_seconds", [0.5]),
        ("profiled_step_seconds", [0.5, 0.0]),
        ("profiled_step_seconds", [0.5, "0.6"]),
        ("unprofiled_step_seconds", None),
        ("unprofiled_step_seconds", -1),
        ("reasons", {"rank1": ""}),
    ],
)
def test_a_value_that_is_none_is_named(key, value):
    with pytest.raises(
        profile_file.ProfileError, match="profile.json: " if key != "profile_version" else "no profile of version 1"
    ):
        profile_file.parse(PROFILE | {key: value}, "profile.json")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"null"])
def test_other_files_are_no_profile(content, tmp_path):
    (tmp_path / "profile.json").write_bytes(content)
    with pytest.raises(profile_file.ProfileError):
        profile_file.read(tmp_path / "profile.json")
