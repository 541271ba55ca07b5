"""The check of kernels against float64: all pass as they are, and a fault planted in any of them is found."""

import json

import pytest
import torch
import torch.nn.functional as F

from benchmarks import numerics
from train.common import adamw
from train.mega import attention, kernels


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    monkeypatch.setattr(kernels, "compiled", lambda function: function)
    yield
    torch.set_default_device(None)


def failing(check):
    torch.manual_seed(0)
    return [row["name"] for row in check() if not row["is_ok"]]


def test_every_kernel_of_the_suite_passes_on_a_cpu(capsys):
    with torch.compiler.set_stance("default"):  # main sets its own
        assert numerics.main(["--device", "cpu"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 13 and all(row["error"] <= row["limit"] for row in rows)
    assert {row["note"] for row in rows if row["name"].startswith("attention")} == {"torch_sdpa"}


def rounds_twice(first, second, cosine, sine, turned_first, turned_second):
    """Turn with products that are rounded to bf16 before they are added."""
    turned_first.copy_((first * cosine).bfloat16() - (second * sine).bfloat16())
    turned_second.copy_((second * cosine).bfloat16() + (first * sine).bfloat16())


def turns_on(ctx, gradient):
    """Turn the gradient forward once more in place of back."""
    return kernels._turned(gradient, *ctx.saved_tensors), None, None


def without_label(logits, labels, log_sum, gradient, first):
    logits.copy_((logits.float() - log_sum.unsqueeze(-1)).exp() * gradient.unsqueeze(-1))


def rounded_product(inputs, gradient, buffer):
    buffer.add_((gradient.t().float() @ inputs.float()).bfloat16())


def epsilon_inside(weight, remainder, moment1, moment2, gradient, clip, *numbers):
    """Add epsilon before the bias correction, as some optimizers do."""
    decay, one_minus_beta1, beta2, one_minus_beta2, step_size, root_correction2, epsilon = numbers
    adamw_update(
        *(weight, remainder, moment1, moment2, gradient, clip, decay, one_minus_beta1, beta2, one_minus_beta2),
        *(step_size, root_correction2, epsilon / root_correction2),
    )


def decay_once_more(weight, remainder, moment1, moment2, gradient, clip, decay, *numbers):
    adamw_update(weight, remainder, moment1, moment2, gradient, clip, decay * 0.99999, *numbers)


adamw_update = adamw.update
scaled_loss = kernels.statistics


@pytest.mark.parametrize(
    ("check", "module", "name", "fault", "found"),
    [
        ("rotary", kernels, "turn", rounds_twice, ["rotary embedding", "rotary embedding, gradient"]),
        ("rotary", kernels._Rotary, "backward", staticmethod(turns_on), ["rotary embedding, gradient"]),
        ("cross_entropy", kernels, "write_gradient", without_label, ["cross entropy, gradient"]),
        (
            "cross_entropy",
            kernels,
            "statistics",
            lambda *inputs: [one * 1.00001 for one in scaled_loss(*inputs)],
            ["cross entropy"],
        ),
        ("weight_gradient", kernels, "wgrad_gemm_accum_fp32", rounded_product, ["weight gradient"]),
        ("weight_gradient", kernels, "is_exact", lambda device: False, ["weight gradient, is_exact"]),
        ("optimizer", adamw, "update", epsilon_inside, ["AdamW, states in float32", "AdamW, states in bfloat16"]),
        ("optimizer", adamw, "update", decay_once_more, ["AdamW, states in float32"]),
    ],
)
def test_a_wrong_kernel_is_found(monkeypatch, check, module, name, fault, found):
    monkeypatch.setattr(module, name, fault)
    assert failing(getattr(numerics, check)) == found


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"is_causal": False, "attn_mask": None}, "attention"),  # a token sees those after it
        ({"scale": 0.09}, "attention"),  # 128 ** -0.5 is 0.0884
        ({"attn_mask": torch.ones(256, 256, dtype=torch.bool).tril().triu(-64)}, "attention with a window"),  # one more
    ],
)
def test_wrong_attention_is_found(monkeypatch, changes, wrong):
    right = attention.SdpaCoreAttention._arguments

    def arguments(self, query, key, value):
        is_meant = (self.window_size is not None) == ("window" in wrong)
        return right(self, query, key, value) | (changes if is_meant else {})

    monkeypatch.setattr(attention.SdpaCoreAttention, "_arguments", arguments)
    assert failing(numerics.core_attention) == [wrong, f"{wrong}, gradient"]


def test_a_check_that_cannot_run_is_a_row_with_its_reason(monkeypatch, capsys):
    def refuses(*_, **__):
        raise RuntimeError("no kernel image is available\nfor execution")

    monkeypatch.setattr(F, "cross_entropy", refuses)
    monkeypatch.setattr(numerics, "CHECKS", (numerics.cross_entropy,))
    with torch.compiler.set_stance("default"):
        assert numerics.main(["--device", "cpu"]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert row["error"] is None and "no kernel image is available" in row["note"] and "\n" not in row["note"]
