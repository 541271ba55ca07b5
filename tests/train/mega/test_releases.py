"""The releases of megatron-core differ in names and forms only: mega trains the same numbers with each.

The forms of both releases are written down here, so that either is tested with the one that is installed. One test
trains with both: Megatron-Bridge's environment has another release.

TransformerEngine is used where it has what megatron-core calls, and refused by the name of what is missing. Its
packages here are stand-ins: the names and parameters of its releases, without any function.
"""

import functools
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from checkout import ROOT
from toydata import write_toy_data

from tests.support.launching import assert_same_work, case, python_of, train
from train.mega import engine, optimizer, recompute
from utils.errors import ConfigError

BOUND = 1e-6
"""Largest relative difference of a loss or gradient norm. Measured: none at all, 22 November 2026, on x86-64."""
VERSION = "import importlib.metadata as m; print(m.version('megatron-core'))"


@pytest.mark.parametrize("is_partial", [False, True], ids=["0.16", "0.19"])
def test_the_parts_of_the_mlp_are_those_that_the_layer_is_built_from(is_partial):
    parts = SimpleNamespace(linear_fc1="first", linear_fc2="second")
    mlp = functools.partial(dict, submodules=parts) if is_partial else SimpleNamespace(submodules=parts)
    recompute.mlp_parts(SimpleNamespace(submodules=SimpleNamespace(mlp=mlp))).linear_fc1 = "ours"
    assert (mlp()["submodules"] if is_partial else mlp.submodules).linear_fc1 == "ours"


@pytest.mark.parametrize("appended", [(), ("gtp_remat_size",)], ids=["0.16", "0.19"])
def test_a_linear_layer_gets_its_values_in_the_order_of_the_installed_release(monkeypatch, appended):
    order = (*recompute.LINEAR_SETTINGS[:7], *appended)
    assert order[:7] == (
        *("bias", "gradient_accumulation_fusion", "allreduce_dgrad", "sequence_parallel"),
        *("grad_output_buffer", "wgrad_deferral_limit", "tp_group"),
    )
    monkeypatch.setattr(recompute, "LINEAR_SETTINGS", order)
    settings = {name: name.upper() for name in reversed(order) if name != "wgrad_deferral_limit"}
    wanted = tuple(None if name == "wgrad_deferral_limit" else name.upper() for name in order)
    assert recompute.linear_values(settings) == wanted


CALL = {"no_weight_decay_cond": None, "scale_lr_cond": None, "lr_mult": 1.0, "use_gloo_process_groups": True}
"""What nemo_toolkit 2.3.3 and 2.7.0 pass to megatron-core's function that builds the optimizer, by name."""


def of_0_12(config, chunks, no_weight_decay_cond=None, scale_lr_cond=None, lr_mult=1.0, use_gloo_process_groups=True):
    return config, chunks, use_gloo_process_groups


def of_0_16(config, chunks, config_overrides=None, use_gloo_process_groups=True):
    return config, chunks, use_gloo_process_groups


@pytest.mark.parametrize("release", [of_0_12, of_0_16])
def test_nemos_call_of_the_optimizer_is_taken_by_releases_with_and_without_its_conditions(release):
    core = SimpleNamespace(get_megatron_optimizer=release)
    for _ in range(2):
        optimizer.accept_conditions(core)
        assert core.get_megatron_optimizer("c", "m", **CALL) == ("c", "m", True)
    assert (core.get_megatron_optimizer is release) == (release is of_0_12)


@pytest.mark.parametrize("condition", [{"no_weight_decay_cond": str}, {"scale_lr_cond": str}, {"lr_mult": 2.0}])
def test_a_condition_that_would_be_lost_is_an_error(condition):
    core = SimpleNamespace(get_megatron_optimizer=of_0_16)
    optimizer.accept_conditions(core)
    with pytest.raises(ConfigError, match="has a condition set"):
        core.get_megatron_optimizer("c", "m", **CALL | condition)


@pytest.mark.full("mega with another release of megatron-core, about 20 s and the environment of Megatron-Bridge")
def test_mega_trains_the_same_numbers_with_both_releases(tmp_path):
    other = python_of("bridge")
    versions = [subprocess.check_output([python, "-c", VERSION]) for python in (sys.executable, other)]
    if versions[0] == versions[1]:
        pytest.skip(f"{other} has the same megatron-core as this Python")
    prefix = write_toy_data(tmp_path / "toy" / "text")
    cases = {model: case(model) for model in ("qwen", "qwen3moe")}
    here, there = (
        train("mega", cases, tmp_path / name, prefix, python=python)
        for name, python in (("here", sys.executable), ("there", other))
    )
    for model in cases:
        assert_same_work(there[model], here[model], (BOUND, BOUND))
        assert there[model].ok["learning_rates"] == here[model].ok["learning_rates"]


# TransformerEngine

LINEAR = (
    "self, in_features, out_features, sequence_parallel=False, fuse_wgrad_accumulation=False, tp_group=None, tp_size=1,"
    " get_rng_state_tracker=None, rng_tracker_name=None, init_method=None, bias=True, return_bias=False,"
    " params_dtype=None, parallel_mode=None, parameters_split=None, device='cuda', ub_overlap_ag=False,"
    " ub_overlap_rs=False, ub_overlap_rs_dgrad=False, ub_bulk_dgrad=False, ub_bulk_wgrad=False, ub_name=None,"
    " delay_wgrad_compute=False, symmetric_ar_type=None, name=None"
)
LAYER_NORM_LINEAR = (
    "self, in_features, out_features, eps=1e-5, sequence_parallel=False, fuse_wgrad_accumulation=False, tp_group=None,"
    " tp_size=1, get_rng_state_tracker=None, init_method=None, bias=True, normalization='LayerNorm', return_bias=False,"
    " params_dtype=None, parallel_mode=None, return_layernorm_output=False, return_layernorm_output_gathered=False,"
    " parameters_split=None, zero_centered_gamma=False, device='cuda', ub_overlap_ag=False, ub_name=None, name=None"
)
ATTENTION = (
    "self, num_attention_heads, kv_channels, num_gqa_groups=None, attention_dropout=0.0, qkv_format='sbhd',"
    " attn_mask_type='causal', window_size=None, sequence_parallel=False, tp_size=1, get_rng_state_tracker=None,"
    " tp_group=None, layer_number=None, attention_type='self', cp_group=None, cp_global_ranks=None, cp_stream=None,"
    " cp_comm_type='p2p', softmax_scale=None"
)
FORWARD = "self, query_layer, key_layer, value_layer, attention_mask=None, qkv_format=None, attn_mask_type=None"
MODULES = {
    "pytorch/__init__.py": f"""
class Linear:
    def __init__({LINEAR}): pass
    def forward(self, inp, is_first_microbatch=None, fp8_output=False, fp8_grad=False): pass
class LayerNormLinear:
    def __init__({LAYER_NORM_LINEAR}): pass
    def forward(self, inp, is_first_microbatch=None, fp8_output=False, fp8_grad=False): pass
class DotProductAttention:
    def __init__({ATTENTION}): pass
    def forward({FORWARD}): pass
class LayerNorm:
    def __init__(self, normalized_shape=None, eps=1e-5, sequence_parallel=None, hidden_size=None, **kwargs): pass
class RMSNorm(LayerNorm): pass
class GroupedLinear: pass
""",
    "pytorch/fp8.py": """
class FP8GlobalStateManager: pass
def fp8_autocast(enabled=True, calibrating=False, fp8_recipe=None, fp8_group=None, _graph=False): pass
""",
    "pytorch/tensor.py": "class QuantizedTensor: pass",
    "pytorch/distributed.py": """
class CudaRNGStatesTracker: pass
def activation_recompute_forward(activation_recompute=False, recompute_phase=False): pass
def checkpoint(function, *args, **kwargs): pass
""",
    "pytorch/module/__init__.py": "",
    "pytorch/module/base.py": "def get_dummy_wgrad(shape, dtype, zero=False): pass",
    "pytorch/attention/__init__.py": "",
    "pytorch/attention/rope.py": """
def apply_rotary_pos_emb(t, freqs, tensor_format='sbhd', start_positions=None, interleaved=False, fused=False,
                         cu_seqlens=None, cp_size=1, cp_rank=0): pass
""",
    "common/__init__.py": "",
    "common/recipe.py": "class DelayedScaling: pass\nclass Format: pass",
}
ROUTER = """
def fused_topk_with_score_function(logits, topk): pass
def fused_compute_score_for_moe_aux_loss(logits, topk, score_function): pass
def fused_moe_aux_loss(probs, tokens_per_expert, total_num_tokens, num_experts, topk, coeff): pass
"""
WITH_ROUTER = MODULES | {"pytorch/router.py": ROUTER}
PRIMUS = "2.4.0.dev0+64767829"
"""Version in rocm/primus v25.11; the router came with 2.7."""


def write(folder, version, modules):
    for path, text in {"__init__.py": f"__version__ = {version!r}", **modules}.items():
        file = folder / "transformer_engine" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Return how to install a stand-in for this test."""

    def install(version, modules):
        write(tmp_path, version, modules)
        monkeypatch.syspath_prepend(tmp_path)

    engine.reason_against.cache_clear()
    yield install
    for name in [name for name in sys.modules if name.split(".")[0] == engine.PACKAGE]:
        del sys.modules[name]
    engine.reason_against.cache_clear()


@pytest.mark.parametrize(
    ("version", "modules"),
    [(PRIMUS, MODULES), ("2.9.0", WITH_ROUTER), ("2.12.0", WITH_ROUTER), ("2.20.0", WITH_ROUTER)],
    ids=["primus", "2.9", "2.12", "2.20"],
)
def test_every_release_with_the_signatures_is_taken(installed, version, modules):
    installed(version, modules)
    assert engine.reason_against() is None
    assert [engine.is_chosen(layers, has_gpu=True) for layers in ("auto", "te", "local")] == [True, True, False]


@pytest.mark.parametrize(
    ("version", "modules", "reason"),
    [
        ("2.9.0", MODULES, r"2.9.0 cannot be imported: .*No module named 'transformer_engine.pytorch.router'"),
        (
            "2.20.0",
            WITH_ROUTER | {"pytorch/__init__.py": MODULES["pytorch/__init__.py"].replace("return_bias=False,", "")},
            r"2.20.0 lacks pytorch.Linear\(return_bias\), pytorch.LayerNormLinear\(return_bias\)",
        ),
        (
            PRIMUS,
            MODULES | {"pytorch/fp8.py": "FP8GlobalStateManager = 1"},
            rf"{PRIMUS.replace('+', '[+]')} lacks pytorch.fp8.fp8_autocast",
        ),
        ("2.12.0", {"pytorch/__init__.py": "raise OSError('libcudart.so: not found\\nmore')"}, "OSError: libcudart.so"),
        ("unknown", WITH_ROUTER, "TransformerEngine unknown: megatron-core cannot read this version"),
    ],
    ids=["no router", "parameter", "name", "library", "version"],
)
def test_another_is_refused_in_one_line_that_says_what_is_missing(installed, version, modules, reason):
    installed(version, modules)
    with pytest.raises(
        ConfigError, match=f"LAYERS=te: TransformerEngine .*{reason.removeprefix('TransformerEngine ')}"
    ) as refused:
        engine.is_chosen("te", has_gpu=True)
    assert "\n" not in str(refused.value) and str(refused.value).endswith("; use LAYERS=local or auto")
    assert not engine.is_chosen("auto", has_gpu=True) and not engine.is_chosen("local", has_gpu=True)


def test_without_a_gpu_or_a_package_the_layers_are_local(installed):
    assert engine.reason_against() == "TransformerEngine is not installed"
    assert not engine.is_chosen("auto", has_gpu=True)
    with pytest.raises(ConfigError, match="LAYERS=te: TransformerEngine needs a GPU; use LAYERS=local or auto"):
        engine.is_chosen("te", has_gpu=False)


@pytest.mark.full("megatron-core is imported by mega as on a GPU, about 10 s")
def test_one_that_cannot_be_used_is_hidden_from_megatron_core(tmp_path):
    """Half of a TransformerEngine stops the import of megatron-core, which trusts that the rest is there."""
    write(tmp_path, "2.12.0", WITH_ROUTER | {"pytorch/fp8.py": ""})
    code = (
        "import torch; torch.cuda.is_available = lambda: True\n"
        "import train.train_mega, megatron.core.tensor_parallel.layers as layers; print(layers.HAVE_TE)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.strip()) == (0, "False"), ran.stderr[-2000:]
