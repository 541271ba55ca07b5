"""The settings map: the values it sets in each framework, those it cannot set, and keys that the framework has."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.tied_model import LLAMA_1B
from train.settings_map import map as frameworks
from train.settings_map.map import ROWS, differences, environment, overrides
from train.settings_map.row import FRAMEWORKS, Fixed, MapRow, Override, always, override
from utils import models
from utils.results.resolved_names import RESOLVED_NAMES
from utils.settings.config import ROOT, load

NEMO_PYTHON = ROOT / ".venv-nemo" / "bin" / "python"
KEYS_OF_PRIMUS = Path(__file__).with_name("primus_keys.txt")


def made(platform="nvd", *arguments, model="llama"):
    settings = ["FRAMEWORK=mega", "DATASET=synth", *arguments]
    config = load(platform, 8, arguments=settings, environ={})
    return config, config.spec(model)


def test_the_learning_rate_rule_is_set_in_primus_so_that_its_warm_up_has_no_offset():
    # LR n / (W + 1) at step n: Megatron starts at its init rate and adds (LR - init) / W a step; 3e-4 / 51 = 5.88235e-6
    said = overrides("prim", *made("amd"))
    assert said["lr_warmup_init"] == pytest.approx(5.8823529e-6)
    second = said["lr_warmup_init"] + (said["lr"] - said["lr_warmup_init"]) / said["lr_warmup_iters"]
    assert second == pytest.approx(2 * 3e-4 / 51)


def test_what_the_vendors_recipes_have_otherwise_is_set():
    prim, nemo = overrides("prim", *made("amd", model="qwen")), overrides("nemo", *made(model="qwen"))
    # the QKV bias of Qwen 2.5, which Primus's preset leaves out; its preset's end-of-document mask, init and sampler
    assert (prim["add_qkv_bias"], prim["eod_mask_loss"], prim["init_method_std"]) == (True, False, 0.02)
    assert (prim["dataloader_type"], prim["disable_last_saving"], prim["finetune"]) == ("single", True, False)
    # the recipe's Adam epsilon is 1e-5, its sequence length in the model 131072, its TP 2
    assert (nemo["optim.config.adam_eps"], nemo["model.config.seq_length"]) == (1e-8, 2048)
    assert nemo["trainer.strategy.tensor_model_parallel_size"] == 1
    assert nemo["trainer.plugins.grad_reduce_in_fp32"] is nemo["trainer.strategy.ddp.grad_reduce_in_fp32"] is True


def test_the_vocabulary_of_a_null_tokenizer_comes_out_whole():
    # it adds one token to what it is given, and nothing may be padded: 128256 + 0
    said = overrides("prim", *made("amd"))
    assert (said["tokenizer_type"], said["vocab_size"], said["make_vocab_size_divisible_by"]) == (
        "NullTokenizer",
        128255,
        1,
    )


@pytest.mark.parametrize(
    ("framework", "key"),
    [
        ("mega", "DistributedDataParallelConfig.average_in_collective"),
        ("nemo", "trainer.strategy.ddp.average_in_collective"),
        ("prim", "ddp_average_in_collective"),
    ],
)
def test_ranks_on_gpus_average_in_the_collective_and_gloo_which_cannot_does_not(framework, key):
    assert overrides(framework, *made("nvd"))[key] is overrides(framework, *made("amd"))[key] is True
    assert overrides(framework, *made("cpu", "CPU_RANKS=2"))[key] is False
    assert overrides(framework, *made("nvd", "TP=4", "PP=2"))[key] is False, "one rank has nothing to reduce"


def test_a_window_of_w_tokens_is_w_minus_one_to_the_left():
    config, spec = made(model="mistral")
    assert overrides("mega", config, spec)["TransformerConfig.window_size"] == (4095, 0)
    assert overrides("nemo", config, spec)["model.config.window_size"] == [4095, 0]
    assert overrides("hf", config, spec)["PretrainedConfig.sliding_window"] == 4096
    assert "PretrainedConfig.sliding_window" not in overrides("hf", *made())


def test_primus_without_a_window_is_the_same_work_only_inside_it():
    assert "sliding window" not in differences("prim", *made("amd", model="mistral"))
    wanted, value, _ = differences("prim", *made("amd", "SL=8192", model="mistral"))["sliding window"]
    assert (wanted, value) == (4096, None)


def test_what_only_llama_has_is_set_only_for_llama():
    keys = {key for model in ("qwen", "mistral") for key in overrides("nemo", *made(model=model))}
    assert not keys & {"model.config.scale_factor", "model.config.old_context_len"}
    assert overrides("nemo", *made())["model.config.old_context_len"] == 8192


def test_nemo_has_nothing_that_differs_from_what_was_asked_and_mega_what_needs_transformer_engine():
    assert differences("nemo", *made()) == {}
    assert set(differences("mega", *made())) == {"persist layer norm"}


def test_what_primus_does_of_its_own_is_named_with_its_reason():
    found = differences("prim", *made("amd"))
    assert set(found) == {
        "initial weights",
        "output projections drawn smaller, by 1/sqrt(2 layers)",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "gradient accumulation fusion",
    }
    assert all(reason for _, _, reason in found.values())


def test_a_key_is_set_before_the_keys_below_it():
    said = list(overrides("nemo", *made()))
    assert said.index("trainer.plugins") < said.index("trainer.plugins.grad_reduce_in_fp32")


def test_one_key_with_two_values_is_an_error(monkeypatch):
    fixed = Fixed(1, "none")
    rows = tuple(MapRow(f"row {n}", always(n), override("key"), fixed, fixed, fixed) for n in (1, 2))
    monkeypatch.setattr(frameworks, "ROWS", rows)
    with pytest.raises(ValueError, match="mega: key is set twice, to 1 and 2"):
        overrides("mega", *made())


def test_both_vendors_get_the_same_variables_in_every_framework_of_theirs():
    # AMD's own benchmark exports the first two; Primus's launcher would leave both at 0
    amd = environment("prim", *made("amd"))
    assert (amd["HSA_NO_SCRATCH_RECLAIM"], amd["NVTE_CK_USES_BWD_V3"]) == ("1", "1")
    assert environment("mega", *made("amd")).items() >= amd.items()
    assert environment("mega", *made("nvd")) == environment("nemo", *made("nvd"))
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in environment("mega", *made("nvd"))
    assert environment("mega", *made("nvd", "TP=2"))["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert all(environment(name, *made("cpu")) == {} for name in FRAMEWORKS)


def test_recomputation_is_set_by_the_names_that_megatron_has():
    full, selective = (made("nvd", f"RECOMPUTE={kind}") for kind in ("full", "selective"))
    for framework, place in (("mega", "TransformerConfig."), ("nemo", "model.config."), ("prim", "")):
        said = overrides(framework, *full)
        names = ("recompute_granularity", "recompute_method", "recompute_num_layers")
        assert [said[place + name] for name in names] == ["full", "uniform", 1]
        said = overrides(framework, *selective)
        assert [said[place + name] for name in names] == ["selective", None, None]
        assert overrides(framework, *made())[place + "recompute_granularity"] is None
    # Megatron's switch for selective recomputation would replace `full`
    assert [overrides("prim", *which)["recompute_activations"] for which in (full, selective)] == [False, True]


def test_the_allocators_segments_grow_on_nvidia_unless_a_person_chose():
    assert environment("mega", *made("nvd"))["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert not [name for name in environment("mega", *made("amd")) if name.endswith("ALLOC_CONF")]


def test_every_row_has_a_name_of_its_own_and_every_fixed_entry_a_reason():
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    for row in ROWS:
        for framework in FRAMEWORKS:
            entry = row.of(framework)
            assert entry.reason if isinstance(entry, Fixed) else entry.keys, f"{row.name}, {framework}"


def test_reports_name_a_setting_that_differs_by_its_row():
    assert {row.resolved: row.name for row in ROWS if row.resolved} == RESOLVED_NAMES


def test_a_tied_embedding_is_set_in_every_framework():
    config, _ = made()
    assert overrides("mega", config, LLAMA_1B.spec)["GPTModel.share_embeddings_and_output_weights"] is True
    assert overrides("hf", config, LLAMA_1B.spec)["PretrainedConfig.tie_word_embeddings"] is True
    assert overrides("nemo", config, LLAMA_1B.spec)["model.config.share_embeddings_and_output_weights"] is True
    assert overrides("prim", config, LLAMA_1B.spec)["untie_embeddings_and_output_weights"] is False


def test_every_key_of_primus_is_one_that_was_looked_up_in_its_release():
    lines = [line for line in KEYS_OF_PRIMUS.read_text().splitlines() if not line.startswith("#")]
    known = {word for line in lines for word in line.split() if not word.endswith(":")}
    named = {key for row in ROWS if isinstance(row.prim, Override) for key in row.prim.keys}
    assert named - known == set()
    assert known - named == set(), "no longer in the map; take them out of the list"


def test_every_key_of_nemo_is_one_that_its_classes_have():
    if not NEMO_PYTHON.exists():
        pytest.skip("no .venv-nemo here; shell/inside/setup_nemo.sh makes it")
    asked = {model: list(overrides("nemo", *made(model=model))) for model in models.NAMES}
    worker = ROOT / "tests" / "workers" / "nemo_keys_worker.py"
    ran = subprocess.run([NEMO_PYTHON, worker], input=json.dumps(asked), capture_output=True, text=True, cwd="/")
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert json.loads(ran.stdout.splitlines()[-1]) == {model: [] for model in models.NAMES}
