"""Print the kernels that inductor generates of the suite's functions for a GPU, without a GPU: loads, stores, loops.

Usage:   python -m benchmarks.generated_kernels
Writes:  Markdown on stdout: for each function the loads and stores of each generated Triton kernel, the loops over the
         elements of a row, and the launches; the output for torch 2.11 is in docs/performance.md
Exits:   0; 1 where this torch has no Triton
Example: python -m benchmarks.generated_kernels

torch.compile asks the device for its properties, so a machine without one gets those of an H200 in their place. Only
code is generated, nothing runs: which bytes move is certain, how long it takes is not. Internals of inductor are used;
they were written for torch 2.11.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from train.mega import kernels

TOKENS, HIDDEN, FFN, HEADS, HEAD_DIM, VOCABULARY = 8192, 4096, 14336, 32, 128, 128256
"""Llama 3.1 8B at SL 8192 and MBS 1."""
H200 = types.SimpleNamespace(
    name="NVIDIA H200",
    type="cuda",
    index=0,
    major=9,
    minor=0,
    multi_processor_count=132,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    regs_per_multiprocessor=65536,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 * 2**20,
    total_memory=143771 * 2**20,
    gcnArchName="",
    is_integrated=0,
)
CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
BF16 = torch.bfloat16
Shape = tuple[Sequence[int], Sequence[int] | None, torch.dtype]
"""Sizes, strides (None: contiguous) and dtype of an argument."""


def stand_in_for_a_gpu() -> None:
    """Give inductor the properties of an H200, where it asks torch.cuda and Triton's driver for a device."""
    from torch._dynamo.device_interface import CudaInterface
    from torch.utils import _triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda *_: H200
    torch.cuda.get_device_capability = lambda *_: (H200.major, H200.minor)
    torch.cuda._lazy_init = lambda: None
    fake_tensor.init_gpu_context = lambda device: None
    CudaInterface.Worker.get_device_properties = staticmethod(lambda *_: H200)
    CudaInterface.get_device_properties = staticmethod(lambda *_: H200)
    CudaInterface.get_compute_capability = staticmethod(lambda *_: 90)
    _triton.triton_hash_with_backend = lambda: "none"
    target = GPUTarget("cuda", 90, H200.warp_size)
    driver.set_active(types.SimpleNamespace(get_current_target=lambda: target, get_current_device=lambda: 0))


def generated(function: Callable[..., Any], arguments: Sequence[Shape]) -> str:
    """Return the Python code, with Triton kernels, that inductor generates of a function of tensors on a GPU."""
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes import post_grad
    from torch._inductor.fx_passes.reinplace import reinplace_inplaceable_ops
    from torch._inductor.fx_utils import FakeTensorUpdater
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        on_cpu, on_gpu = ([_empty(shape, device) for shape in arguments] for device in (CPU, GPU))
        # tracing runs the operators, which a GPU that is not there cannot: the graph is made of a CPU and moved
        graph = make_fx(
            torch.func.functionalize(function), decomposition_table=select_decomp_table(), tracing_mode="real"
        )(*on_cpu)
    for node in graph.graph.nodes:
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": GPU}
    graph.graph.eliminate_dead_code()
    with V.set_fake_mode(mode), torch.no_grad():
        post_grad.prepare_softmax_extra_check = lambda match: True  # it asks whether the graph is of a GPU
        post_grad.lazy_init()
        for patterns in post_grad.pass_patterns:
            patterns.apply(graph.graph)
        reinplace_inplaceable_ops(FakeTensorUpdater(graph.graph), graph.graph)
        graph.recompile()
        for node, tensor in zip(graph.graph.find_nodes(op="placeholder"), on_gpu, strict=True):
            node.meta["val"] = tensor
        lowering = GraphLowering(graph, example_inputs=on_gpu, is_inference=True)
        with V.set_graph_handler(lowering), V.set_debug_handler(DebugContext()):
            lowering.run(*on_gpu)
            code, _ = lowering.codegen()
    return str(code.value)


def _empty(shape: Shape, device: torch.device) -> torch.Tensor:
    size, strides, dtype = shape
    if strides is None:
        return torch.empty(size, dtype=dtype, device=device)
    return torch.empty_strided(size, strides, dtype=dtype, device=device)


def functions() -> dict[str, tuple[Callable[..., Any], list[Shape]]]:
    """Return the compiled functions of a training step of mega by name, with the arguments of one layer."""
    half_of_ffn: Shape = ((TOKENS, FFN), (2 * FFN, 1), BF16)
    half_of_heads: Shape = ((TOKENS, 1, HEADS, HEAD_DIM // 2), (HIDDEN, HIDDEN, HEAD_DIM, 1), BF16)
    table: Shape = ((TOKENS, 1, 1, HEAD_DIM // 2), None, torch.float32)
    logits: Shape = ((TOKENS, 1, VOCABULARY), None, BF16)
    labels: Shape = ((TOKENS, 1), None, torch.int64)
    number: Shape = ((TOKENS, 1), None, torch.float32)
    return {
        "SwiGLU, gradient": (kernels.write_swiglu_gradient, [((TOKENS, FFN), None, BF16), *[half_of_ffn] * 4]),
        "rotary embedding of all queries": (
            kernels.turn,
            [half_of_heads, half_of_heads, table, table] + [half_of_heads] * 2,
        ),
        "cross entropy, statistics": (lambda *given: kernels.statistics(*given, first=0), [logits, labels]),
        "cross entropy, gradient": (
            lambda *given: kernels.write_gradient(*given, first=0),
            [logits, labels, number, number],
        ),
    }


def main() -> int:
    """Run the command."""
    stand_in_for_a_gpu()
    shown = re.compile(r"def triton_|tl\.load|tl\.store|for r\w*_offset|\.run\(")
    for name, (function, arguments) in functions().items():
        print(f"{name}\n")
        for line in generated(function, arguments).splitlines():
            if shown.search(line):
                print(f"    {line.strip()}")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
