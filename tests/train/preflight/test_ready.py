"""A machine that lacks what a job needs is refused with one line before anything is started."""

import sysconfig

import pytest

from train.job.job import Job
from train.preflight import matrix_checks, ready
from train.runner.plan import Matrix
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


@pytest.fixture
def engine_of(tmp_path, monkeypatch):
    """A function that puts a made-up TransformerEngine on the path of this process and of those that it starts."""

    def put(content):
        package = tmp_path / "transformer_engine"
        package.mkdir()
        (package / "__init__.py").write_text(content)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    ready._reason_against_engine.cache_clear()
    yield put
    ready._reason_against_engine.cache_clear()


def test_refused_transformer_engine_is_one_line_before_the_job_and_in_the_plan(engine_of, monkeypatch):
    engine_of("print('a library speaks')\nraise OSError('libcudart.so.13: cannot open shared object file')")
    (line,) = ready.without_engine(config_of("amd"), "mega")
    assert line.startswith("mega: LAYERS=auto: TransformerEngine cannot be imported: OSError: libcudart.so.13: cannot")
    assert "the layers are torch's, on this side only; LAYERS=local on both sides makes them equal" in line
    matrix = Matrix(config_of("amd"), (), {}, ())
    job = Job(config_of("amd"), "mega", "llama", 1)
    monkeypatch.setattr(matrix_checks.planned_gpus, "count", lambda platform: 8)
    monkeypatch.setattr(matrix_checks.drivers, "line", lambda platform: "note: driver: a note")
    host, *others = matrix_checks._machine_lines(matrix, [job, job])
    assert host.startswith("host memory: mega llama") and others == ["note: driver: a note", f"warning: {line}"]
    monkeypatch.setattr(matrix_checks.planned_gpus, "count", lambda platform: 0)
    assert len(matrix_checks._machine_lines(matrix, [job])) == 1, "the plan of another machine"


@pytest.mark.parametrize("content", ["", "__import__('os')._exit(7)"])
def test_only_a_job_that_wants_its_layers_is_told_that_transformer_engine_lacks_something(engine_of, content):
    engine_of(content)
    (line,) = ready.without_engine(config_of("nvd"), "mega")
    assert ("megatron-core cannot read this version" if not content else "exit code 7") in line
    local = load("nvd", 1, arguments=["DATASET=synth", "FRAMEWORK=mega", "LAYERS=local"], environ={})
    for config, framework in ((local, "mega"), (config_of("nvd"), "hf"), (config_of("cpu"), "mega")):
        assert ready.without_engine(config, framework) == []
