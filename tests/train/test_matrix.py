"""The settings of a matrix are resolved once, when it starts, and every process that it starts uses them."""

import os
import shutil

import pytest
from toydata import write_toy_data

from tests.support.matrices import RunningMatrix
from train.runner import plan
from utils.errors import ConfigError
from utils.settings import handed_on
from utils.settings.config import ROOT, load, values_of
from utils.settings.keys import read_file


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


def test_settings_file_that_is_edited_while_a_matrix_runs_changes_nothing_in_it(checkout, tmp_path):
    prefix = write_toy_data(tmp_path / "text")
    asked = read_file(checkout / "config.env", "config.env")
    one_rank = ("CPU_RANKS=1", "TRAIN_ITERS=6", "FRAMEWORK=mega")
    matrix = RunningMatrix(tmp_path / "output", prefix, *one_rank, root=checkout)
    matrix.wait_for(lambda: "=== data" in matrix.said)
    (checkout / "config.env").write_text("NONSENSE=1\n")  # whoever reads it from here on ends with an error
    assert matrix.wait() == 0, matrix.said
    assert matrix.result("mega")["training_config"]["seed"] == int(asked["SEED"].text)


def test_job_that_is_started_by_hand_reads_the_files(checkout):
    (checkout / "config.env").write_text((checkout / "config.env").read_text().replace("SEED=", "SEED=7"))
    assert values_of("cpu", [], {}, checkout)["SEED"].text.startswith("7")


def test_settings_that_are_handed_on_replace_files_and_environment_and_yield_to_arguments():
    matrix = plan.make("cpu", ["SEED=5", "MBS=2"])
    environment = plan.environment(matrix) | {"SEED": "6"}
    assert load("cpu", arguments=[], environ=environment) == matrix.config
    assert load("cpu", arguments=["SEED=8"], environ=environment).seed == 8
    assert values_of("cpu", [], environment) == matrix.values
    assert environment.keys() - os.environ.keys() - {"SEED"} == {handed_on.VARIABLE}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"SEED": 1}', '{"SEED": ["1"]}'])
def test_variable_that_is_not_ours_is_refused(text):
    with pytest.raises(ConfigError, match="TPRIMAT_SETTINGS: cannot be read"):
        values_of("cpu", [], {handed_on.VARIABLE: text})
