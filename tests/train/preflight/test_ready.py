"""The check before a job imports TransformerEngine as the ranks do, and once for all that a process starts."""

import os
import sys

import pytest

from train.preflight import ready

ENGINE = """
import os, sys
open({log!r}, "a").write("imported\\n")
if "torch" not in sys.modules:
    raise OSError("libcudnn.so.9: cannot open shared object file")
__version__ = "2.20.2"
"""


@pytest.fixture
def imports(tmp_path, monkeypatch):
    """A TransformerEngine that finds the libraries of CUDA only after torch; returns how often it was imported."""
    log, package = tmp_path / "log", tmp_path / "transformer_engine"
    package.mkdir()
    (package / "__init__.py").write_text(ENGINE.format(log=str(log)))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "transformer_engine", raising=False)
    monkeypatch.delenv(ready.ANSWERED, raising=False)
    yield lambda: log.read_text().count("imported")
    os.environ.pop(ready.ANSWERED, None)


def test_transformer_engine_is_imported_after_torch_and_once_for_all_jobs_of_a_matrix(imports):
    first = ready._reason_against_engine()
    assert "cannot open shared object file" not in first, "the ranks import torch first"
    assert "lacks" in first or "cannot be imported: ModuleNotFoundError" in first, "this one has no more than its name"
    assert ready._reason_against_engine() == first == os.environ[ready.ANSWERED]
    assert imports() == 1, "what a process starts finds the answer in its environment"
