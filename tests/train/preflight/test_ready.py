"""A machine that lacks what a job needs is refused with one line before anything is started."""

import sysconfig

import pytest

from train.preflight import ready
from utils.errors import ConfigError
from utils.settings.config import load


def config_of(platform):
    return load(platform, 1, arguments=["DATASET=synth", "FRAMEWORK=mega"], environ={})


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with gcc, Python.h and a home folder; returns its environment."""
    for name in ("bin", "include", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "gcc").touch(mode=0o755)
    (tmp_path / "include" / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path / "include")})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return {"PATH": str(tmp_path / "bin")}


def refused(environ, framework="mega", platform="nvd"):
    with pytest.raises(ConfigError) as caught:
        ready.require(config_of(platform), framework, environ)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("platform", ["nvd", "amd"])
@pytest.mark.parametrize("framework", ["mega", "hf"])
def test_complete_machine_is_accepted(machine, platform, framework):
    assert list(ready._problems(config_of(platform), framework, machine)) == []
    ready.require(config_of(platform), framework, machine)


def test_missing_compiler_is_named_also_where_the_user_chose_one(machine, tmp_path):
    (tmp_path / "bin" / "gcc").unlink()
    assert refused(machine).startswith("machine: no C compiler (gcc, cc, clang) on PATH")
    assert "CC=my-gcc" in refused({**machine, "CC": "my-gcc"})
    ready.require(config_of("cpu"), "mega", machine)


def test_missing_header_is_named(machine, tmp_path):
    (tmp_path / "include" / "Python.h").unlink()
    assert f"{tmp_path}/include/Python.h is missing" in refused(machine)


def test_cache_that_cannot_be_written_is_named_with_its_variable(machine):
    said = refused({**machine, "TRITON_CACHE_DIR": "/proc/1/fdinfo"})
    assert said.startswith("machine: /proc/1/fdinfo cannot be written") and "set TRITON_CACHE_DIR" in said


@pytest.mark.parametrize(
    ("name", "version", "is_refused"),
    [
        ("torch", "2.8.0", True),
        ("torch", "2.11.0+cu130", False),
        ("torch", "2.10.0a0+git1234", False),
        ("transformers", "4.57.0", True),
        ("transformers", "5.17.0", False),
        ("transformers", "5.24.0", True),
    ],
)
def test_versions_outside_the_supported_range_are_refused(machine, monkeypatch, name, version, is_refused):
    of = ready.metadata.version
    monkeypatch.setattr(ready.metadata, "version", lambda one: version if one == name else of(one))
    if is_refused:
        said = refused(machine, "hf", "cpu")
        assert said == f"{name}: got version {version}, wanted {ready.SUPPORTED[name]}; install one of these versions"
    else:
        ready.require(config_of("cpu"), "hf", machine)


def test_frameworks_with_an_environment_of_their_own_are_not_checked():
    nothing = {"PATH": "", "CC": "no-such-compiler"}
    assert list(ready._problems(config_of("nvd"), "nemo", nothing)) != [], "mega would be refused here"
    ready.require(config_of("nvd"), "nemo", nothing)
