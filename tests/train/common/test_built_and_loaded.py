"""Kernels that ran are read from TransformerEngine and torch themselves, and the functions of hf from its model.

Float32 products are IEEE's or said not to be; RECOMPUTE repeats what it says; gradients are summed in float32. Whoever
fetches the samples, they are the same in the same order; and waiting for them is measured and said.

The modules of TransformerEngine are made up: the mapping that its releases keep, with the values that they put there.
"""

import enum
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from types import SimpleNamespace

import psutil
import pytest
import torch
from checkout import ROOT, settings_of
from packaging.version import Version
from processes import wait_until_gone
from torch.utils._python_dispatch import TorchDispatchMode
from toydata import write_toy_data

from tests.support.launching import case, train
from train import train_hf
from train.common import kernels
from train.hf import model, resolved
from utils import models

NVIDIA = enum.IntEnum("FusedAttnBackend", {"F16_arbitrary_seqlen": 1, "FP8": 2})
AMD = enum.IntEnum("FusedAttnBackend", {"AOTriton": 0, "CK": 1})
OLDER = enum.Enum("NVTE_Fused_Attn_Backend", {"NVTE_CK": 1})  # TransformerEngine 2.12: the enumeration of its C++
CPU = {"attention_backend": "torch_sdpa", "layer_implementation": "megatron_core_local", "precision": "bf16"}
ENGINE = CPU | {"attention_backend": "transformer_engine:auto", "layer_implementation": "transformer_engine"}


@pytest.fixture
def choice(monkeypatch):
    """The mapping of TransformerEngine's module for attention, before it has chosen."""
    names = ("use_flash_attention", "flash_attention_backend", "use_fused_attention", "fused_attention_backend")
    state = dict.fromkeys((*names, "use_unfused_attention"))
    module = "transformer_engine.pytorch.attention.dot_product_attention"
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(_attention_backends=state))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91400)
    return state


@pytest.mark.parametrize(
    ("chosen", "backend", "library"),
    [
        ({"use_flash_attention": True, "flash_attention_backend": Version("2.8.3")}, "flash", "flash_attn 2.8.3"),
        ({"fused_attention_backend": NVIDIA.F16_arbitrary_seqlen}, "fused", "cudnn 91400"),
        ({"fused_attention_backend": NVIDIA.FP8}, "fused_fp8", "cudnn 91400"),
        ({"fused_attention_backend": AMD.CK}, "fused", "ck"),
        ({"fused_attention_backend": AMD.AOTriton}, "fused", "aotriton"),
        ({"fused_attention_backend": OLDER.NVTE_CK}, "fused", "ck"),
        ({"use_unfused_attention": True}, "unfused", "torch"),
    ],
)
def test_the_attention_that_transformer_engine_took_is_named_with_its_library(choice, chosen, backend, library):
    is_fused = "fused_attention_backend" in chosen
    choice.update(dict.fromkeys((name for name in choice if name.startswith("use_")), False))
    choice.update({"use_fused_attention": is_fused}, **chosen)
    found = kernels.read(ENGINE)
    assert (found["attention_backend"], found["attention_library"]) == (f"transformer_engine:{backend}", library)


@pytest.mark.parametrize(
    ("number", "backend", "library"), [(1, "fused", "cudnn 91400"), (2, "fused_fp8", "cudnn 91400"), (7, "fused", None)]
)
def test_the_number_that_transformer_engine_2_20_gives_is_a_name_by_its_own_list(
    choice, monkeypatch, number, backend, library
):
    module = "transformer_engine.pytorch.cpp_extensions.fused_attn"
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(FusedAttnBackend=NVIDIA))
    choice.update(use_fused_attention=True, fused_attention_backend=number)
    found = kernels.read(ENGINE)
    assert found["attention_backend"] == f"transformer_engine:{backend}" and found.get("attention_library") == library
    reasons = found.get("reasons", {})
    assert "7 is not a valid" in reasons["attention_backend"] if library is None else reasons == {}
    monkeypatch.delitem(sys.modules, module)
    assert kernels.read(ENGINE)["attention_backend"] == "transformer_engine:fused", "a release without the list"


def test_a_version_of_cudnn_that_torch_refuses_to_tell_leaves_the_library_with_the_reason(choice, monkeypatch):
    def differs():
        raise RuntimeError("cuDNN version incompatibility: compiled against (9, 19, 0), found (9, 14, 0)")

    monkeypatch.setattr(torch.backends.cudnn, "version", differs)
    choice.update(use_fused_attention=True, fused_attention_backend=NVIDIA.F16_arbitrary_seqlen)
    found = kernels.read(ENGINE)
    assert (found["attention_backend"], found["attention_library"]) == ("transformer_engine:fused", "cudnn")
    assert "found (9, 14, 0)" in found["reasons"]["attention_library"]


def test_a_transformer_engine_that_does_not_tell_leaves_what_was_asked_of_it(choice, monkeypatch):
    asked = {"attention_backend": "transformer_engine:auto", "float32_matmul_precision": "highest"}
    torch.set_float32_matmul_precision("highest")
    assert kernels.read(ENGINE) == asked, "no step has run"
    monkeypatch.delitem(sys.modules, "transformer_engine.pytorch.attention.dot_product_attention")
    assert kernels.read(ENGINE) == asked


@pytest.mark.parametrize(
    ("kernel", "preferred_of_rocm", "library"),
    [
        ("torch_sdpa", None, None),  # a CPU
        ("torch_sdpa:cudnn", None, "cudnn 91400"),
        *((f"torch_sdpa:{name}", None, "torch") for name in ("flash", "efficient", "math")),
        ("torch_sdpa:flash", "Default", "aotriton"),
        ("torch_sdpa:flash", "AOTriton", "aotriton"),
        ("torch_sdpa:flash", "Ck", "ck"),
        ("torch_varlen:flash", "Ck", "ck"),
        ("torch_sdpa:math", "Ck", "torch"),
    ],
)
def test_torchs_kernels_are_named_with_the_library_of_the_platform(monkeypatch, kernel, preferred_of_rocm, library):
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91400)
    if preferred_of_rocm:
        preferred = getattr(torch._C._ROCmFABackend, preferred_of_rocm)
        monkeypatch.setattr(torch.version, "hip", "7.15")
        monkeypatch.setattr(torch.backends.cuda, "preferred_rocm_fa_library", lambda: preferred)
    assert kernels.read(CPU | {"attention_backend": kernel}).get("attention_library") == library


def test_the_tf32_of_nvidias_images_is_turned_off_and_what_turns_it_on_again_is_seen(monkeypatch):
    code = f"""
import torch
from train.common import kernels
built = {CPU!r} | {{"precision": "fp32"}}
read = lambda: kernels.read(built)["float32_matmul_precision"]
print(read(), torch.backends.cuda.matmul.allow_tf32)
torch.set_float32_matmul_precision("highest")
print(read(), torch.backends.cuda.matmul.allow_tf32)
torch.backends.cuda.matmul.fp32_precision = "tf32"  # transformers' way, after which torch refuses to read the older one
print(read())
"""
    monkeypatch.setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["high", "True", "highest", "False", "high"]


LOCAL = {"layer_implementation": "megatron_core_local"}


@pytest.mark.parametrize(
    ("cuda", "override", "built", "precision"),
    [
        (None, "", {"precision": "fp32"}, "highest"),  # ROCm's TransformerEngine computes in float32
        ("13.0", "", {"precision": "fp32"}, "high"),
        ("13.0", "", {"precision": "fp32"} | LOCAL, "highest"),
        ("13.0", "", {}, "highest"),
        ("13.0", "0", {"precision": "fp32"}, "highest"),
    ],
)
def test_float32_products_of_transformer_engine_on_cuda_are_tf32_unless_cublas_is_told(
    monkeypatch, cuda, override, built, precision
):
    torch.set_float32_matmul_precision("highest")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
    assert kernels.read(ENGINE | built)["float32_matmul_precision"] == precision


# The model of hf

TOKENS, LAYERS = 64, 4
LINEAR = 7 * LAYERS + 1
"""q, k, v, o, gate, up, down of each layer, and the output layer."""


def model_of(name, dtype=torch.float32, kind="none"):
    built = model.build_model(models.get(name, "tiny"), dtype=dtype).train()
    model.set_recompute(built, kind)
    assert model.read_recompute(built) == kind
    return built


def backward(built, seed=0):
    tokens = torch.randint(0, 4096, (2, TOKENS), generator=torch.Generator().manual_seed(seed))
    count = torch.tensor(2 * TOKENS)
    built(input_ids=tokens, labels=tokens, shift_labels=tokens, num_items_in_batch=count).loss.backward()


# The functions of a model


@pytest.mark.parametrize("name", models.NAMES)
def test_every_function_of_a_stock_model_is_transformers_own(name):
    built = model_of(name)
    assert resolved._kernels(built) == "stock" and not any(resolved._fused_ops(built).values())


PLACES = {
    "rms_norm_fusion": lambda built: (built.model.layers[0].input_layernorm, "forward"),
    "bias_activation_fusion": lambda built: (built.model.layers[0].mlp, "forward"),
    "cross_entropy_loss_fusion": lambda built: (built, "forward"),
    "apply_rope_fusion": lambda built: (sys.modules[type(built.model.layers[0].self_attn).__module__], resolved.ROTARY),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_function_of_liger_is_named_and_any_other_stops_the_job(name, monkeypatch):
    built = model_of("llama")
    holder, attribute = PLACES[name](built)
    monkeypatch.setattr(holder, attribute, SimpleNamespace(__module__="liger_kernel.ops"))
    assert resolved._kernels(built) == "liger"
    assert [key for key, is_on in resolved._fused_ops(built).items() if is_on] == [name]
    monkeypatch.setattr(holder, attribute, SimpleNamespace(__module__="train.hf.fused"))
    with pytest.raises(RuntimeError, match="functions of train, wanted those of transformers"):
        resolved._kernels(built)


# Recomputation


class CountOperators(TorchDispatchMode):
    """Counts what is computed, without the results that selective recomputation has kept."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def test_selective_repeats_norms_and_activation_but_neither_products_nor_attention():
    counted = {}
    for kind in ("none", "selective", "full"):
        with CountOperators() as counter:
            backward(model_of("llama", kind=kind))
        counted[kind] = counter.calls
    none, selective, full = counted.values()
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    # one product forward and two backward for each weight; computing a layer again repeats its forward ones
    assert none["mm"] == selective["mm"] == 3 * LINEAR
    # the last product of a layer, whose result nobody needs, may be left out
    assert full["mm"] >= 3 * LINEAR + 6 * LAYERS
    assert (none[attention], selective[attention], full[attention]) == (LAYERS, LAYERS, 2 * LAYERS)
    assert (none["silu"], selective["silu"], full["silu"]) == (LAYERS, 2 * LAYERS, 2 * LAYERS)
    assert none["rsqrt"] == 2 * LAYERS + 1
    assert selective["rsqrt"] == full["rsqrt"] == 4 * LAYERS + 1


# Sums of gradients


def test_gradients_of_bf16_weights_add_up_in_float32():
    built = model_of("llama", torch.bfloat16)
    train_hf.add_gradients_in(torch.float32, built)
    parts = []
    for seed in range(4):
        backward(built, seed)
        parts.append({name: one.grad.clone() for name, one in built.named_parameters()})
        built.zero_grad()
    for seed in range(4):
        backward(built, seed)
    for name, parameter in built.named_parameters():
        total = sum(part[name].double() for part in parts)
        assert parameter.dtype is torch.bfloat16 and parameter.grad.dtype is torch.float32
        assert (parameter.grad.double() - total).norm() <= 1e-6 * total.norm()
        assert all(torch.equal(part[name], part[name].bfloat16().float()) for part in parts), "autograd's are bf16"


# Loading

STEPS, GLOBAL_BATCH, MICRO_BATCHES = 5, 8, 4
SLEEP_SECONDS = 0.05
SHORT = (f"TRAIN_ITERS={STEPS}",)
WATCHED = ("note_samples", STEPS * GLOBAL_BATCH)
CASES = {
    "alone": case("llama", *SHORT, plants=(WATCHED,)),
    "slow": case("llama", *SHORT, plants=(WATCHED, ("slow_samples", 1))),
    # every second micro batch is slow, so one of the two workers is always late
    "workers": case("llama", *SHORT, plants=(WATCHED, ("slow_samples", 2), ("workers", 2))),
}


@pytest.mark.full("loading by workers and from a slow disk in mega and hf, about 30 s")
@pytest.mark.parametrize("framework", ["mega", "hf"])
def test_workers_change_no_sample_and_waiting_for_slow_ones_is_measured_and_said(framework, tmp_path, monkeypatch):
    prefix = write_toy_data(tmp_path / "toy" / "text")
    with tempfile.TemporaryDirectory(prefix="t") as folder:  # workers of loaders leave their sockets there
        monkeypatch.setenv("TMPDIR", folder)
        trained = train(framework, CASES, tmp_path / framework, prefix)
    alone, slow, by_workers = (trained[name] for name in CASES)
    assert {ran.notes[0]["tokens"] for ran in trained.values()} == {alone.notes[0]["tokens"]}
    assert by_workers.ok["loss_values"] == slow.ok["loss_values"] == alone.ok["loss_values"]
    assert by_workers.notes[0]["workers"] == [2] * STEPS * MICRO_BATCHES, "they live through the last step"
    assert alone.notes[0]["workers"] == [0] * STEPS * MICRO_BATCHES

    waits, planted = slow.ok["data_wait_seconds"], GLOBAL_BATCH * SLEEP_SECONDS
    # accelerate holds one micro batch more than the Trainer has asked for, and the last step has nothing to ask for
    ahead = planted / MICRO_BATCHES if framework == "hf" else 0.0
    assert waits[-1] >= planted - ahead and all(wait >= planted for wait in waits[:-1])
    assert all(wait <= seconds for wait, seconds in zip(waits, slow.ok["step_times"], strict=True))
    fraction = slow.ok["performance_metrics"]["data_wait_fraction"]
    assert 0 <= alone.ok["performance_metrics"]["data_wait_fraction"] < fraction <= 1
    (warning,) = slow.ok["warnings"]  # 0.4 s for the samples of a step: above 1 % of any shorter than 40 s
    assert warning.startswith(f"data: waiting for samples took {100 * fraction:.3g} % of a step (limit 1 %)")
    assert f"warning: {warning}" in slow.printed


@pytest.mark.parametrize("platform", ["nvd", "amd"])
@pytest.mark.parametrize("accumulation", [1, 2, 7, 8, 64])
def test_on_a_gpu_a_whole_step_and_one_micro_batch_more_are_fetched_ahead_and_pinned(platform, accumulation):
    arguments = train_hf.loader_arguments(
        settings_of("DATASET=synth MBS=1", f"GBS={accumulation}", platform=platform, gpus=1)
    )
    assert arguments["num_workers"] == 2, "the default of Megatron-LM"
    assert arguments["prefetch_factor"] == math.ceil((accumulation + 1) / 2)
    assert arguments["pin_memory"] and arguments["persistent_workers"]


@pytest.mark.parametrize(("platform", "is_gpu"), [("cpu", False), ("nvd", True), ("amd", True)])
def test_the_trainer_takes_the_arguments_of_the_loader_and_copies_without_waiting(monkeypatch, platform, is_gpu):
    known = train_hf.TrainingArguments.__dataclass_fields__
    taken = {}
    monkeypatch.setattr(train_hf, "TrainingArguments", lambda **keywords: taken.update(keywords))
    config = settings_of("DATASET=synth", platform=platform, gpus=1)
    train_hf.training_arguments(config)
    wanted = {f"dataloader_{name}": value for name, value in train_hf.loader_arguments(config).items()}
    assert wanted.items() <= taken.items() and wanted.keys() <= known.keys()
    assert taken["accelerator_config"]["non_blocking"] is is_gpu


RANK = """
import os, sys, time, torch
from train import train_hf
from utils.settings.config import load

arguments = train_hf.loader_arguments(load("cpu", arguments=["CPU_RANKS=1"], environ={}))
arguments |= {"num_workers": 2, "persistent_workers": True}
# torch's worker looks who its rank is only after this
initialize = (lambda worker: time.sleep(1)) if "starting" in sys.argv else None
loader = torch.utils.data.DataLoader(torch.arange(100), worker_init_fn=initialize, **arguments)
train_hf.tie_workers(loader)
batches = iter(loader)
if "running" in sys.argv:
    next(batches)
print(*(worker.pid for worker in batches._workers), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("moment", ["running", "starting"])
def test_workers_end_when_their_rank_is_killed(moment):
    with tempfile.TemporaryDirectory(prefix="t") as folder:  # multiprocessing leaves its sockets in it
        command = [sys.executable, "-c", RANK, moment]
        environment = {**os.environ, "TMPDIR": folder}
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as rank:
            workers = [psutil.Process(int(pid)) for pid in rank.stdout.readline().split()]
            rank.kill()
        assert len(workers) == 2
        wait_until_gone(workers)
