"""Kernels that ran are read from TransformerEngine and torch themselves; float32 products are IEEE's or said not to be.

The modules of TransformerEngine are made up: the mapping that its releases keep, with the values that they put there.
"""

import enum
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from checkout import ROOT
from packaging.version import Version

from train.common import kernels

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


def test_a_transformer_engine_that_does_not_tell_leaves_what_was_asked_of_it(choice, monkeypatch):
    asked = {"attention_backend": "transformer_engine:auto", "float32_matmul_precision": "highest"}
    torch.set_float32_matmul_precision("highest")
    assert kernels.read(ENGINE) == asked, "no step has run"
    monkeypatch.delitem(sys.modules, "transformer_engine.pytorch.attention.dot_product_attention")
    assert kernels.read(ENGINE) == asked


def test_torchs_kernels_are_named_with_the_library_of_the_platform(monkeypatch):
    def library(kernel):
        return kernels.read(CPU | {"attention_backend": kernel}).get("attention_library")

    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91400)
    assert library("torch_sdpa") is None, "a CPU"
    assert library("torch_sdpa:cudnn") == "cudnn 91400"
    assert library("torch_sdpa:flash") == library("torch_sdpa:efficient") == library("torch_sdpa:math") == "torch"
    monkeypatch.setattr(torch.version, "hip", "7.15")
    for preferred, wanted in (("Default", "aotriton"), ("AOTriton", "aotriton"), ("Ck", "ck")):
        one = getattr(torch._C._ROCmFABackend, preferred)
        monkeypatch.setattr(torch.backends.cuda, "preferred_rocm_fa_library", lambda one=one: one)
        assert library("torch_sdpa:flash") == library("torch_varlen:flash") == wanted
    assert library("torch_sdpa:math") == "torch"


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


def test_float32_products_of_transformer_engine_on_cuda_are_tf32_unless_cublas_is_told(monkeypatch):
    def precision(**built):
        return kernels.read(ENGINE | built)["float32_matmul_precision"]

    torch.set_float32_matmul_precision("highest")
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    assert precision(precision="fp32") == "highest", "ROCm's TransformerEngine computes in float32"
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert precision(precision="fp32") == "high"
    assert precision(precision="fp32", layer_implementation="megatron_core_local") == precision() == "highest"
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert precision(precision="fp32") == "highest"
