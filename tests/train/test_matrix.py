"""Settings are resolved once and data are hashed once; every process of a matrix takes both as they were found."""

import shutil

import pytest
from checkout import ROOT
from toydata import write_toy_data

from tests.support.matrices import RunningMatrix
from utils.dataset import manifest
from utils.errors import ConfigError
from utils.settings.config import values_of
from utils.settings.layers import read_file


@pytest.fixture
def checkout(tmp_path):
    """A copy of the checkout whose settings a test can edit."""
    copy = tmp_path / "checkout"
    for folder in ("utils", "data", "train", "evaluate", "shell"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("config*.env"), *ROOT.glob("*-requirements.txt")):
        shutil.copy(path, copy)
    (copy / ".venv").symlink_to(ROOT / ".venv")
    return copy


@pytest.mark.full("a real matrix of one job, about 20 s")
def test_edited_settings_file_and_a_recorded_digest_are_not_read_again_while_a_matrix_runs(checkout, tmp_path):
    prefix = write_toy_data(tmp_path / "text")
    asked = read_file(checkout / "config.env", "config.env")
    digest = "0" * 64
    for path in (prefix.with_suffix(".bin"), prefix.with_suffix(".idx")):
        manifest._record(tmp_path / "cache", {str(path): manifest._state(path) | {"sha256": digest}})
    one_rank = ("CPU_RANKS=1", "TRAIN_ITERS=6", "FRAMEWORK=mega")
    matrix = RunningMatrix(tmp_path / "output", prefix, *one_rank, root=checkout)
    matrix.wait_for(lambda: "=== data" in matrix.said)
    text = (checkout / "config.env").read_text()
    edited = text.replace(f"SEED={asked['SEED'].text}", "SEED=4321").replace(
        f"BETA1={asked['BETA1'].text}", "BETA1=0.5"
    )
    (checkout / "config.env").write_text(edited)
    assert matrix.wait() == 0, matrix.said
    result = matrix.result("mega")
    used = result["training_config"]
    assert (used["seed"], used["beta1"]) == (int(asked["SEED"].text), float(asked["BETA1"].text))
    assert values_of("cpu", [], {}, checkout)["SEED"].text == "4321", "a job that is started by hand reads the files"
    assert result["fingerprint"]["dataset_bin_sha256"] == digest  # recorded as of an unchanged file: nobody has read it


@pytest.mark.parametrize("text", ["", "[]", "{", '{"SEED": 1}', '{"SEED": ["1"]}'])
def test_variable_that_is_not_ours_is_refused(text):
    with pytest.raises(ConfigError, match="TPRIMAT_SETTINGS: cannot be read"):
        values_of("cpu", [], {"TPRIMAT_SETTINGS": text})
