"""A value that was built otherwise than the settings map set it is named, with the framework's own keys."""

import pytest

from train.common import read_back
from train.settings_map.map import ROWS, entry_of
from train.settings_map.row import Override
from utils.settings.config import load

FRAMEWORKS = ("nemo", "bridge", "titan")


def as_asked(framework, config, spec):
    """Return what a framework that built everything as asked would read back."""
    resolved = {}
    for row in ROWS:
        entry = entry_of(row, framework)
        if row.resolved is None or not isinstance(entry, Override):
            continue
        value = row.wanted(config, spec)
        if row.resolved == "gradient_reduce_dtype":
            value = "float32" if value else "bfloat16"
        holder, _, name = row.resolved.rpartition(".")
        (resolved.setdefault(holder, {}) if holder else resolved)[name] = value
    return resolved


@pytest.fixture(params=FRAMEWORKS)
def made(request):
    config = load("nvd", 8, arguments=["MODEL=qwen3", "FRAMEWORK=mega"], environ={})
    spec = config.spec("qwen3")
    return request.param, config, spec, as_asked(request.param, config, spec)


def test_what_was_built_as_asked_has_no_difference(made):
    framework, config, spec, resolved = made
    assert read_back.differences(framework, config, spec, resolved) == []


@pytest.mark.parametrize(
    ("key", "built"),
    [("lr", 1.0), ("norm_eps", 1e-2), ("beta2", 0.5), ("micro_batch_size", 99), ("query_key_norm", None)],
)
def test_one_other_value_is_the_one_difference_and_names_its_keys(made, key, built):
    framework, config, spec, resolved = made
    asked = resolved[key]
    (difference,) = read_back.differences(framework, config, spec, resolved | {key: built})
    assert difference[0] == key
    row = next(row for row in ROWS if row.resolved == key)
    assert f"{row.name}: asked {asked!r}, built " in difference[1]
    assert all(name in difference[1] for name in entry_of(row, framework).keys)


def test_a_value_that_is_missing_is_a_difference(made):
    framework, config, spec, resolved = made
    del resolved["clip_grad"]
    assert [key for key, _ in read_back.differences(framework, config, spec, resolved)] == ["clip_grad"]
