"""Check the numbers of every kernel of the suite against float64: loss, rotary embedding, products, optimizer, attention.

Usage:   python -m benchmarks.numerics [--device cuda|cpu]
Writes:  JSON on stdout: for each check `name`, `error`, `limit`, `is_ok` and `note`
Exits:   0 all errors are within their limits, 1 otherwise
Example: python -m benchmarks.numerics --device cpu

An error is the norm of the difference over the norm of the reference (L2). On a GPU the kernels are compiled, as its
jobs compile them, and the shapes are those of a model; on a CPU nothing is compiled, and the shapes are small. A check
that cannot run is a row without an error. One more check is no kernel: a collective of one rank (NCCL, RCCL or gloo).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from train.common import adamw
from train.mega import attention, kernels
from utils.arguments import Parser, first_line, run
from utils.errors import in_one_line

ROUNDED_ONCE = 2.0**-11
"""Limit for bf16 numbers that are computed in float32 and rounded once, against float64 rounded to bf16. The two differ
only beside the middle between two bf16 numbers: if one number in a hundred does, by 2**-8, the error is 4e-4. A second
rounding to bf16, in whatever place, gives 1.5e-3."""
IN_FLOAT32 = 2.0**-20
"""Limit for float32 results of some operations: 16 roundings of 2**-24."""
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


@dataclass(frozen=True)
class Check:
    """One row: the relative error of a result, and the largest that rounding explains."""

    name: str
    error: float | None
    limit: float
    note: str = ""

    @property
    def is_ok(self) -> bool:
        """True if the error is known and within the limit; NaN is not."""
        return self.error is not None and self.error <= self.limit


def relative(values: torch.Tensor, reference: torch.Tensor, limit: float) -> float:
    """Return the norm of the difference over the norm of the float64 reference, rounded first where one is allowed."""
    if limit == ROUNDED_ONCE:
        reference = reference.bfloat16().double()
    return float((values.double() - reference).norm() / reference.norm())


def random(device: torch.device, *shape: int) -> torch.Tensor:
    """Return normal numbers in bf16."""
    return torch.randn(*shape).bfloat16().to(device)


def both_ways(
    name: str,
    kernel: Callable[..., torch.Tensor],
    exact: Callable[..., torch.Tensor],
    inputs: Sequence[torch.Tensor],
    limits: tuple[float, float],
    note: str = "",
) -> Iterator[Check]:
    """Yield the checks of a kernel and of its gradients against a function that gets the same inputs in float64."""
    given = [tensor.clone().requires_grad_() for tensor in inputs]
    doubles = [tensor.double().requires_grad_() for tensor in inputs]
    output, reference = kernel(*given), exact(*doubles)
    gradient = random(output.device, *output.shape)
    output.backward(gradient.to(output.dtype))
    reference.backward(gradient.double())
    forward, backward = limits
    yield Check(name, relative(output.detach(), reference.detach(), forward), forward, note)
    pairs = zip(given, doubles, strict=True)
    errors = [relative(ours.grad, theirs.grad, backward) for ours, theirs in pairs]
    yield Check(f"{name}, gradient", max(errors), backward, note)


def cross_entropy(device: torch.device) -> Iterator[Check]:
    """Check the loss of each token and the gradient that the kernel writes over the logits."""
    tokens, vocabulary = (64, 4096) if device.type == "cpu" else (1024, 128_256)
    labels = torch.randint(vocabulary, (tokens, 1), device=device)

    def kernel(logits: torch.Tensor) -> torch.Tensor:
        return kernels.in_place_cross_entropy(logits * 1, labels, ALONE)  # a leaf cannot be overwritten

    def exact(logits: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")

    logits = 3 * random(device, tokens, 1, vocabulary)
    return both_ways("cross entropy", kernel, exact, [logits], (IN_FLOAT32, ROUNDED_ONCE))


def rotary(device: torch.device) -> Iterator[Check]:
    """Check the rotated values and their gradient; a pair of channels is a complex number that is turned."""
    length = 128 if device.type == "cpu" else 2048
    half = 1000 * torch.rand(length, 1, 1, 64, device=device)
    turn = torch.polar(torch.ones_like(half).double(), half.double())

    def exact(values: torch.Tensor) -> torch.Tensor:
        turned = torch.complex(*values.chunk(2, dim=-1)) * turn
        return torch.cat((turned.real, turned.imag), dim=-1)

    angles = torch.cat((half, half), dim=-1)
    values = random(device, length, 1, 8, 128)
    limits = ROUNDED_ONCE, ROUNDED_ONCE
    return both_ways("rotary embedding", lambda one: kernels.fused_rotary(one, angles), exact, [values], limits)


def weight_gradient(device: torch.device) -> Iterator[Check]:
    """Check the product that is added to a float32 buffer, and the suite's own test of it, `is_exact`."""
    kernels.install()
    operand, gradient, buffer = random(device, 2048, 512), random(device, 2048, 256), random(device, 256, 512).float()
    reference = buffer.double() + gradient.double().t() @ operand.double()
    kernels.wgrad_gemm_accum_fp32(operand, gradient, buffer)
    yield Check("weight gradient", relative(buffer, reference, SUM_IN_FLOAT32), SUM_IN_FLOAT32)
    yield Check("weight gradient, is_exact", float(not kernels.is_exact(device)), 0.0)


def optimizer(device: torch.device) -> Iterator[Check]:
    """Check the change of the masters of bf16 weights in five steps against torch's AdamW in float64.

    Half of the gradients are as small as epsilon, so that its value and its place count.
    """
    for states, limit in CHANGE.items():
        start = 0.02 * random(device, 512, 128)
        weight, exact = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.double())
        settings: dict[str, Any] = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
        ours = adamw.FusedAdamW([weight], **settings, state_dtype=states)
        reference = torch.optim.AdamW([exact], **settings)
        for _ in range(5):
            weight.grad = 0.01 * random(device, 512, 128)
            weight.grad[::2] *= 1e-6
            exact.grad = weight.grad.double()
            ours.step()
            reference.step()
        master = adamw.join_master(weight.detach(), ours.state[weight]["remainder"])
        error = relative(master.double() - start.double(), exact.detach() - start.double(), limit)
        yield Check(f"AdamW, states in {states}", error, limit)


def core_attention(device: torch.device) -> Iterator[Check]:
    """Check causal attention of grouped heads and its gradients, with and without a window, and name its kernel."""
    length, heads, groups, width = (96, 4, 2, 32) if device.type == "cpu" else (1024, 32, 8, 128)
    for name, before in (("attention", length), ("attention with a window", length // 4)):
        window = None if before == length else (before, 0)
        core = attention.SdpaCoreAttention(SimpleNamespace(context_parallel_size=1, window_size=window))
        mask = torch.ones(length, length, dtype=torch.bool, device=device).tril().triu(-before)

        def exact(*inputs: torch.Tensor, mask: torch.Tensor = mask) -> torch.Tensor:
            swapped = (tensor.permute(1, 2, 0, 3) for tensor in inputs)
            attended = F.scaled_dot_product_attention(*swapped, attn_mask=mask, enable_gqa=True)
            return attended.permute(2, 0, 1, 3).flatten(2)

        inputs = [random(device, length, 2, count, width) for count in (heads, groups, groups)]
        note = core.backend(*inputs[:2])
        yield from both_ways(name, core, exact, inputs, (ATTENDED, ATTENTION_GRADIENT), note)


def collective(device: torch.device) -> Iterator[Check]:
    """Check that the library of collectives starts and that the sum over one rank changes nothing."""
    backend = "gloo" if device.type == "cpu" else "nccl"  # RCCL has this name too
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    numbers = torch.ones(4, device=device)
    dist.all_reduce(numbers)
    yield Check("collective", float((numbers - 1).norm()), 0.0, f"{backend}, one rank")
    dist.destroy_process_group()


CHECKS = (cross_entropy, rotary, weight_gradient, optimizer, core_attention, collective)


def checks(device: torch.device) -> list[Check]:
    """Return the rows of all checks."""
    torch.manual_seed(0)
    rows: list[Check] = []
    with torch.compiler.set_stance("force_eager" if device.type == "cpu" else "default"):
        for check in CHECKS:
            try:
                rows += check(device)
            except Exception as error:  # noqa: BLE001 - compilers and drivers raise anything; it is a row of the table
                rows.append(Check(check.__name__.replace("_", " "), None, 0.0, in_one_line(repr(error))))
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks and print them."""
    option = {"choices": ("cuda", "cpu"), "default": "cuda", "help": "cuda is also an AMD GPU (default: %(default)s)"}
    parser = Parser({"--device": option}, prog="python -m benchmarks.numerics", description=first_line(__doc__))
    rows = checks(torch.device(parser.parse_args(arguments).device))
    print(json.dumps([asdict(row) | {"is_ok": row.is_ok} for row in rows]))
    return int(not all(row.is_ok for row in rows))


if __name__ == "__main__":
    sys.exit(run(main))
