"""Check the numbers of every kernel of the suite against float64: loss, rotary embedding, product, AdamW, attention.

Usage:   python -m benchmarks.numerics [--device cuda|cpu]
Writes:  JSON on stdout: for each check `name`, `error`, `limit`, `is_ok` and `note`; on stderr those that failed
Exits:   0 all errors are within their limits, 1 otherwise
Example: python -m benchmarks.numerics --device cpu

An error is the norm of the difference over the norm of the reference (L2). On a GPU the kernels are compiled, as its
jobs compile them; on a CPU they are not. A check that cannot run is a row without an error. One more check is no
kernel: a collective of one rank (NCCL, RCCL or gloo).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from train.common import adamw
from train.mega import attention, kernels
from utils.arguments import Parser, run
from utils.errors import in_one_line

ROUNDED_ONCE = 2.0**-11
"""Limit for bf16 numbers that are computed in float32 and rounded once, against float64 rounded to bf16. The two differ
only beside the middle between two bf16 numbers: if one number in a hundred does, by 2**-8, the error is 4e-4. A second
rounding to bf16, in whatever place, gives 1.5e-3."""
IN_FLOAT32 = 2.0**-18
"""Limit for float32 results of sums over a vocabulary: 64 roundings of 2**-24."""
SUM_IN_FLOAT32 = 2.0**-15
"""Limit for float32 sums of some thousand products: the square root of 2,048 roundings of 2**-24 is 2.7e-6. Products
that are rounded to bf16 before they are added give 1e-3."""
ATTENDED = 2.0**-7
"""Limit for attention: the probabilities and the output are rounded to bf16, each by at most 2**-8."""
ATTENTION_GRADIENT = 2.0**-6
"""Limit for its gradients: probabilities, their gradients and the output are rounded, 3 x 2**-8 at most."""
CHANGE = {torch.float32: 2.0**-13, torch.bfloat16: 2.0**-7}
"""Limit for the change of the weights in some steps, by dtype of the moments. float32: a master of 0.02 is rounded by
6e-10 in a step that moves it by 3e-4. bf16: each moment is rounded by at most 2**-8, and the square root halves one."""
ALONE = SimpleNamespace(rank=lambda: 0, size=lambda: 1)
"""A group of one rank."""


Rows = list[dict[str, Any]]
Function = Callable[..., torch.Tensor]


def row(name: str, error: float | None, limit: float, note: str = "") -> Rows:
    """Return the row of a check; NaN is not within a limit, and neither is None, of a check that cannot run."""
    is_ok = error is not None and error <= limit
    return [{"name": name, "error": error, "limit": limit, "is_ok": is_ok, "note": note}]


def relative(values: torch.Tensor, reference: torch.Tensor, limit: float) -> float:
    """Return the norm of the difference over the norm of the float64 reference, rounded first where one is allowed."""
    # otherwise the rounding that is allowed would be the error
    if limit == ROUNDED_ONCE:
        reference = reference.bfloat16().double()
    return float((values.double() - reference).norm() / reference.norm())


def random(*shape: int) -> torch.Tensor:
    """Return normal numbers in bf16."""
    return torch.randn(*shape, dtype=torch.bfloat16)


def both_ways(
    name: str,
    kernel: Function,
    exact: Function,
    inputs: Sequence[torch.Tensor],
    limits: tuple[float, float],
    note: str = "",
) -> Rows:
    """Return the rows of a kernel and of its gradients; `exact` gets the same inputs in float64."""
    # a kernel may write over its input
    given = [tensor.clone().requires_grad_() for tensor in inputs]
    doubles = [tensor.double().requires_grad_() for tensor in inputs]
    output, reference = kernel(*given), exact(*doubles)
    # a gradient of ones would hide an error in its use
    gradient = random(*output.shape)
    output.backward(gradient.to(output.dtype))
    reference.backward(gradient.double())
    forward, backward = limits
    error = relative(output.detach(), reference.detach(), forward)
    errors = [relative(tensor.grad, exact.grad, backward) for tensor, exact in zip(given, doubles, strict=True)]
    return row(name, error, forward, note) + row(f"{name}, gradient", max(errors), backward, note)


def cross_entropy() -> Rows:
    """Check the loss of each token and the gradient that the kernel writes over the logits."""
    labels = torch.randint(128_256, (64, 1))

    def kernel(logits: torch.Tensor) -> torch.Tensor:
        return kernels.in_place_cross_entropy(logits * 1, labels, ALONE)  # a leaf cannot be overwritten

    def exact(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")

    return both_ways("cross entropy", kernel, exact, [3 * random(64, 1, 128_256)], (IN_FLOAT32, ROUNDED_ONCE))


def rotary() -> Rows:
    """Check the rotated values and their gradient; a pair of channels is a complex number that is turned."""
    half = 1000 * torch.rand(512, 1, 1, 64)
    angles = torch.cat((half, half), dim=-1)
    turn = torch.polar(torch.ones_like(half).double(), half.double())

    def exact(values: torch.Tensor) -> torch.Tensor:
        turned = torch.complex(*values.chunk(2, dim=-1)) * turn
        return torch.cat((turned.real, turned.imag), dim=-1)

    def kernel(values: torch.Tensor) -> torch.Tensor:
        return kernels.fused_rotary(values, angles)

    return both_ways("rotary embedding", kernel, exact, [random(512, 1, 8, 128)], (ROUNDED_ONCE, ROUNDED_ONCE))


def weight_gradient() -> Rows:
    """Check the product that is added to a float32 buffer, and the suite's own test of it, `is_exact`."""
    kernels.install()
    operand, gradient, buffer = random(2048, 512), random(2048, 256), random(256, 512).float()
    reference = buffer.double() + gradient.double().t() @ operand.double()
    kernels.wgrad_gemm_accum_fp32(operand, gradient, buffer)
    rows = row("weight gradient", relative(buffer, reference, SUM_IN_FLOAT32), SUM_IN_FLOAT32)
    return rows + row("weight gradient, is_exact", float(not kernels.is_exact(buffer.device)), 0.0)


def optimizer() -> Rows:
    """Check the change of the masters of bf16 weights in five steps against torch's AdamW in float64.

    Half of the gradients are as small as epsilon, so that its value and its place count.
    """
    rows = []
    for states, limit in CHANGE.items():
        start = 0.02 * random(512, 128)
        weight, exact = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.double())
        settings: dict[str, Any] = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
        ours = adamw.FusedAdamW([weight], state_dtype=states, **settings)
        reference = torch.optim.AdamW([exact], **settings)
        for _ in range(5):
            weight.grad = 0.01 * random(512, 128)
            weight.grad[::2] *= 1e-6
            exact.grad = weight.grad.double()
            ours.step()
            reference.step()
        master = adamw.join_master(weight.detach(), ours.state[weight]["remainder"])
        error = relative(master.double() - start.double(), exact.detach() - start.double(), limit)
        rows += row(f"AdamW, states in {str(states)[6:]}", error, limit)
    return rows


def core_attention() -> Rows:
    """Check causal attention of grouped heads and its gradients, with and without a window, and name its kernel."""
    rows = []
    for name, window, before in (("attention", None, 256), ("attention with a window", (63, 0), 63)):
        core = attention.SdpaCoreAttention(SimpleNamespace(context_parallel_size=1, window_size=window))
        mask = torch.ones(256, 256, dtype=torch.bool).tril().triu(-before)

        def exact(*inputs: torch.Tensor, mask: torch.Tensor = mask) -> torch.Tensor:
            swapped = (tensor.permute(1, 2, 0, 3) for tensor in inputs)
            attended = F.scaled_dot_product_attention(*swapped, attn_mask=mask, enable_gqa=True)
            return attended.permute(2, 0, 1, 3).flatten(2)

        inputs = [random(256, 2, heads, 128) for heads in (8, 2, 2)]
        rows += both_ways(name, core, exact, inputs, (ATTENDED, ATTENTION_GRADIENT), core.backend(*inputs[:2]))
    return rows


def collective() -> Rows:
    """Check that the library of collectives starts and that the sum over one rank changes nothing."""
    numbers = torch.ones(4)
    backend = "gloo" if numbers.device.type == "cpu" else "nccl"  # RCCL has this name too
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(numbers)
    dist.destroy_process_group()
    return row("collective", float((numbers - 1).norm()), 0.0, f"{backend}, one rank")


CHECKS = (cross_entropy, rotary, weight_gradient, optimizer, core_attention, collective)


def rows_of_all() -> Rows:
    """Return the rows of all checks on torch's default device."""
    torch.manual_seed(0)
    rows = []
    for check in CHECKS:
        try:
            rows += check()
        except Exception as error:  # noqa: BLE001 - compilers and drivers raise anything; it is a row of the table
            rows += row(check.__name__, None, 0.0, in_one_line(repr(error)))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks and print them."""
    option = {"choices": ("cuda", "cpu"), "default": "cuda", "help": "cuda is also an AMD GPU (default: %(default)s)"}
    device = Parser({"--device": option}, module="benchmarks.numerics").parse_args(arguments).device
    torch.set_default_device(device)
    # the jobs of a CPU do not compile their kernels either
    torch.compiler.set_stance("force_eager" if device == "cpu" else "default")
    rows = rows_of_all()
    print(json.dumps(rows), flush=True)
    failed = [row["name"] for row in rows if not row["is_ok"]]
    print(f"error: {', '.join(failed)}" if failed else f"{len(rows)} checks within their limits", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(run(main))
