"""A matrix whose output folder vanishes while it runs ends there; nothing is made anew in its place."""

from __future__ import annotations

import pytest
from toydata import write_toy_data

from tests.support.matrices import RunningMatrix, wait_until_gone


@pytest.mark.full("a real matrix up to its first job, about 30 s")
def test_matrix_whose_output_folder_is_renamed_ends_there_and_leaves_no_new_one(tmp_path):
    prefix, output = write_toy_data(tmp_path / "data" / "text"), tmp_path / "output"
    matrix = RunningMatrix(output, prefix, "TRAIN_ITERS=6", fault=f"mega:0:3:rename:{output}")
    try:
        assert matrix.wait() == 1
        assert "was deleted or renamed while the job ran" in matrix.said
        assert "was deleted, renamed or replaced; no job is started" in matrix.said
        assert "hf llama run 1" not in matrix.said and "Traceback" not in matrix.said.split("=== training")[0]
        assert not output.exists()
        assert wait_until_gone(matrix) == []
    finally:
        matrix.end_all()
