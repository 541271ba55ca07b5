"""What Primus is told: one YAML of keys that the installed version has, made from AMD's, and the check of the two."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.train.prim.conftest import SHORT, STANDIN
from train import train_prim

MODULE = "primus/configs/modules/megatron/trainer_base.yaml"
SHIPPED = "examples/megatron/configs/MI300X/{}-pretrain.yaml"
FILES = {"llama": "llama3.1_8B", "qwen": "qwen2.5_7B", "mistral": "llama3.1_8B", "qwen3": "qwen3_8B-BF16"}


class Checked(NamedTuple):
    code: int
    title: str
    rows: dict[str, tuple[str, str, str]]
    """Theirs, ours and the reason, by key."""
    err: str


def check(root: Path, *arguments: str) -> Checked:
    """Run `train_prim --check` in this process, which starts nothing and prints where AMD's YAML and ours differ."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("PRIMUS_PATH", str(root))
        patch.setattr(sys, "argv", ["train_prim", "--check", *arguments])
        code = train_prim.main()
    title, *lines = out.getvalue().splitlines() or [""]
    rows = [line.split(maxsplit=3) for line in lines if line.startswith("  ") and len(line.split(maxsplit=3)) == 4]
    return Checked(code, title, {key: (theirs, ours, why) for key, theirs, ours, why in rows}, err.getvalue())


def shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


TRAPS: dict[str, dict[str, Any]] = {
    "llama": {
        **{"add_qkv_bias": False, "norm_epsilon": 1e-5, "use_rope_scaling": True, "init_method_std": 0.02, "lr": 1e-3},
        **{"mock_data": False, "eod_mask_loss": False, "dataloader_type": "single", "stderr_sink_level": "DEBUG"},
        **{"disable_last_saving": True, "log_interval": 1, "adam_eps": 1e-8},
        "ckpt_format": "torch",  # of AMD's file, about which we say nothing
        "lr_warmup_init": 1e-3 / 10,  # LR / (W + 1)
    },
    "qwen": {"add_qkv_bias": True, "norm_epsilon": 1e-6},
    "qwen3": {"qk_layernorm": True, "add_qkv_bias": False},
    "mistral": {
        **{"use_rope_scaling": False, "rotary_base": 10000, "num_query_groups": 8, "ffn_hidden_size": 14336},
        "vocab_size": 31999,  # the null tokenizer adds one
    },
}


@pytest.mark.parametrize("model", TRAPS)
def test_traps_of_the_shipped_files_are_overridden_and_check_prints_each_difference(
    run_job, tmp_path: Path, primus: Path, where, model: str
) -> None:
    settings = ("MODEL_SIZE=full", "SL=2048", "GBS=64", "LR=1e-3", "WARMUP_ITERS=9", "TRAIN_ITERS=30", "ADAM_EPS=1e-8")
    run_job(*settings, "ALLOW_REPEAT=true", model=model, fault="silent")
    (path,) = (tmp_path / "output" / "logs").glob("*.yaml")
    document = yaml.safe_load(path.read_text())
    assert (document["exp_name"], document["workspace"]) == (path.stem, str(path.with_suffix(".primus")))
    trainer = document["modules"]["pre_trainer"]
    told = trainer["overrides"]
    assert trainer["model"] == f"{FILES[model].removesuffix('-BF16')}.yaml"
    assert {key: told[key] for key in TRAPS[model]} == TRAPS[model]
    assert told["save_interval"] > 30 and isinstance(told["adam_eps"], float)

    found = check(primus, f"MODEL={model}", *SHORT, *where, *settings, "GPUS_PER_NODE=2")
    assert found.code == 0 and SHIPPED.format(FILES[model]) in found.title
    assert found.rows["seq_length"][:2] == ("8192", "2048"), "the value of a variable is its default"
    assert found.rows["mock_data"][:2] == ("true", "false")
    assert ("Primus" in found.rows) == (model == "mistral"), "Primus ships nothing for this model"
    assert found.rows.get("add_qkv_bias", ("false", "true", "QKV bias")) == ("false", "true", "QKV bias")
    shipped = yaml.safe_load((primus / SHIPPED.format(FILES[model])).read_text())["modules"]["pre_trainer"]["overrides"]
    ours = {key: row[1] for key, row in found.rows.items() if key in told and key != "data_cache_path"}
    assert ours == {key: shown(told[key]) for key in ours}
    different = {key for key, value in shipped.items() if "$" not in str(value) and value != told[key]}
    assert different <= found.rows.keys() and not {"ckpt_format", "swiglu"} & found.rows.keys()


def edited(old: str, new: str, path: str = MODULE) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        text = (root / path).read_text()
        assert old in text
        (root / path).write_text(text.replace(old, new) if old else new)

    return change


def test_a_renamed_key_is_said_by_the_name_that_the_version_has(primus: Path) -> None:
    edited("use_turbo_grouped_mlp: false", "use_turbo_grouped_gemm: true")(primus)
    found = check(primus, "MODEL=llama", "GPUS_PER_NODE=8")
    assert found.code == 0 and found.rows["use_turbo_grouped_gemm"][:2] == ("true", "false")


def test_a_key_that_changes_nothing_is_left_out_and_said(run_job, primus: Path, tmp_path: Path) -> None:
    edited("disable_mlflow: true\n", "")(primus)
    code, result = run_job()
    assert code == 0, result["reason"]
    (warning,) = (text for text in result["warnings"] if "disable_mlflow" in text)
    assert warning.startswith("not said to Primus: disable_mlflow=True") and "no such logger" in warning


REFUSED: dict[str, tuple[Callable[[Path], Any], tuple[str, ...], str]] = {
    "a key that changes the work": (edited("eod_mask_loss: false\n", ""), (), "has no key eod_mask_loss, wanted False"),
    "a window": (lambda root: None, ("MODEL=mistral", "SL=8192"), "MODEL=mistral SL=8192: Primus has no key for the w"),
    "a list": (edited("", "[]"), (), "got list"),
    "damaged": (edited("", "a: ["), (), "cannot be read"),
    "old": (edited("", "bases: [x.yaml]"), (), "before v25.10"),
    "no Primus": (lambda root: root.rename(root.with_name("other")), (), "set PRIMUS_PATH"),
    "no launcher": (lambda root: (root / "examples/run_pretrain.sh").unlink(), (), "no Primus there (examples/run_pre"),
    "no presets": (lambda root: (root / "primus/configs").rename(root / "x"), (), "no Primus there"),
    "a bad setting": (lambda root: None, ("MODEL=gpt",), "MODEL=gpt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_told_is_one_clear_error(primus: Path, name: str) -> None:
    assert check(primus, "MODEL=mistral", "SL=4096", "GPUS_PER_NODE=8").code == 0
    change, settings, said = REFUSED[name]
    change(primus)
    found = check(primus, "MODEL=llama", "GPUS_PER_NODE=8", *settings)
    assert (found.code, found.title) == (2, "")
    (line,) = found.err.splitlines()
    assert line.startswith("error: ") and said in line


def test_a_gpu_without_a_file_of_its_own_takes_that_of_the_mi300x() -> None:
    found = check(STANDIN, "--gpu", "MI999X", "GPUS_PER_NODE=8", "MODEL=llama")
    assert found.code == 0 and SHIPPED.format("llama3.1_8B") in found.title
