"""A matrix runs only frameworks that have a Python here; each one that is left out or replaced is said, once."""

import pytest

from train.common import framework_python
from train.common.framework_python import without_missing
from utils.errors import ConfigError
from utils.settings.config import load

NONE, BOTH = (), ("bridge", "nemo")


def interpreters(here):
    def of(name):
        def interpreter(platform):
            if name not in here:
                raise ConfigError(f"{name}: no container")
            return "/python"

        return interpreter

    return {name: of(name) for name in BOTH}


@pytest.fixture(autouse=True)
def _no_setting_of_the_environment(monkeypatch):
    monkeypatch.delenv("FRAMEWORK", raising=False)


@pytest.mark.parametrize(
    ("platform", "settings", "here", "runs", "left_out"),
    [
        ("nvd", [], BOTH, ("mega", "hf", "bridge"), ()),
        ("nvd", [], ("nemo",), ("mega", "hf"), ("bridge",)),
        ("nvd", ["FRAMEWORK=mega,nemo"], ("nemo",), ("mega", "nemo"), ()),
        ("cpu", ["FRAMEWORK=all"], BOTH, ("mega", "hf", "nemo"), ()),
        ("cpu", ["FRAMEWORK=all"], NONE, ("mega", "hf"), ("nemo",)),
        ("cpu", [], NONE, ("mega", "hf"), ()),  # the overlay's own matrix asks for neither
        ("amd", [], NONE, ("mega", "prim", "hf"), ()),
        ("cpu", ["FRAMEWORK=nemo"], NONE, ("nemo",), ()),  # whoever names it gets the error of the job
        ("nvd", ["FRAMEWORK=bridge"], ("nemo",), ("bridge",), ()),
    ],
)
def test_all_leaves_out_what_has_no_python_here_and_says_so(capsys, platform, settings, here, runs, left_out):
    narrowed = without_missing(platform, settings, interpreters(here))
    assert load(platform, 1, arguments=narrowed, environ={}).frameworks == runs
    said = capsys.readouterr().err
    for name in BOTH:
        assert (f"FRAMEWORK=all: {name} is left out: {name}: no container" in said) == (name in left_out)


@pytest.mark.parametrize(
    ("here", "runs"),
    [(BOTH, "bridge"), (("bridge",), "bridge"), (("nemo",), "nemo"), (NONE, "bridge")],
)
def test_the_other_vendors_framework_means_nemo_only_where_bridge_is_missing(capsys, here, runs):
    narrowed = without_missing("nvd", ["FRAMEWORK=mega,prim"], interpreters(here))
    assert load("nvd", 1, arguments=narrowed, environ={}).frameworks == ("mega", runs)
    assert ("FRAMEWORK=prim: nemo runs in place of bridge: bridge: no container" in capsys.readouterr().err) == (
        runs == "nemo"
    )


def test_dry_run_makes_no_environment_on_a_cpu():
    assert without_missing("cpu", ["FRAMEWORK=all"], {}, is_dry_run=True) == ["FRAMEWORK=all"]


@pytest.mark.parametrize(
    ("visible", "frameworks"), [(0, ("mega", "hf", "bridge")), (8, ("mega", "hf"))], ids=["elsewhere", "here"]
)
def test_dry_run_on_a_machine_without_gpus_plans_what_the_image_holds(monkeypatch, visible, frameworks):
    monkeypatch.setattr(framework_python, "visible_gpus", lambda platform: visible)
    planned = without_missing("nvd", ["FRAMEWORK=all"], interpreters(NONE), is_dry_run=True)
    assert load("nvd", 8, arguments=planned, environ={}).frameworks == frameworks
