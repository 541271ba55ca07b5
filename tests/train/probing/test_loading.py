"""The loader is measured on the suite's own data set; without data there is a reason."""

import pytest
from toydata import write_toy_data

from train.probing import loading
from utils.settings.config import load


def config(folder, dataset):
    settings = ("FRAMEWORK=hf", "MODEL=llama", "MODEL_SIZE=tiny", "SL=64", "GBS=8", "MBS=2", "CPU_RANKS=1")
    places = (f"DATASET={dataset}", f"DATA_DIR={folder / 'data'}", f"OUTPUT_DIR={folder / 'output'}")
    return load(
        "cpu", arguments=[*settings, *places, "TRAIN_ITERS=40", "WARMUP_ITERS=1", "ALLOW_REPEAT=true"], environ={}
    )


def test_the_rate_is_that_of_a_real_loader_and_the_index_is_not_left(tmp_path):
    prefix = write_toy_data(tmp_path / "toy")
    found = loading.samples_per_second(config(tmp_path, prefix), "llama", 0.1)
    assert found > 0
    assert not (tmp_path / "data").exists() and not list(tmp_path.rglob("index_cache"))


def test_data_that_are_not_there_are_a_reason_with_what_to_do(tmp_path):
    with pytest.raises(loading.LoaderError, match="./tprimat data"):
        loading.samples_per_second(config(tmp_path, "synth"), "llama", 0.1)
