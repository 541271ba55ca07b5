"""profile.json is read only if every value is what it is for, and a missing one has its reason."""

import json

import pytest

from utils.results import profile_file

CONTENT = {
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
    path.write_text(json.dumps(CONTENT))
    profile = profile_file.read(path)
    assert profile_file.is_profile(path)
    assert (profile.steps, profile.ranks) == ((11, 12), (0, 1))
    assert (profile.profiled_step_seconds, profile.unprofiled_step_seconds) == ((0.5, 0.6), 0.4)
    assert profile.trace_path(0) == tmp_path / "rank0.json.gz" and 1 not in profile.traces
    reasons = CONTENT["reasons"] | {"unprofiled_step_seconds": "no step was measured"}
    without = profile_file.parse(CONTENT | {"unprofiled_step_seconds": None, "reasons": reasons}, None)
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
        profile_file.parse(CONTENT | {key: value}, "profile.json")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"null"])
def test_other_files_are_no_profile(content, tmp_path):
    (tmp_path / "profile.json").write_bytes(content)
    with pytest.raises(profile_file.ProfileError):
        profile_file.read(tmp_path / "profile.json")
