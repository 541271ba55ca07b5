"""AdamW with 16-bit remainders: exact to a float64 reference, small, without reads of the device inside a step."""

import numpy
import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from train.common import adamw

DTYPES = (torch.float32, torch.bfloat16)
SETTINGS = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
LENGTH = 1024
GRADIENTS = {
    "normal": lambda noise: noise,
    "zero": lambda noise: 0 * noise,
    "denormal": lambda noise: noise * 1e-41,
    "huge": lambda noise: noise * 1e18,
    "overflowing": lambda noise: noise * 1e25,
}


def single(numbers):
    """Round float64 to float32: of one operation on float32 numbers this is the float32 operation (53 > 2 x 24 + 1)."""
    return numpy.asarray(numbers, dtype=numpy.float64).astype(numpy.float32).astype(numpy.float64)


def brain(numbers):
    """Round to bf16, to nearest with ties to even, by arithmetic on the bits of float32."""
    bits = numpy.asarray(numbers, dtype=numpy.float32).view(numpy.uint32).astype(numpy.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return (rounded << 16).astype(numpy.uint32).view(numpy.float32).astype(numpy.float64)


def bits_of(tensor):
    return tensor.view(torch.int32 if tensor.dtype is torch.float32 else torch.int16).tolist()


def noise(seed, scale=1.0):
    return torch.randn(LENGTH, generator=torch.Generator().manual_seed(seed)) * scale


class NoHostRead(TorchDispatchMode):
    """Fails at the first read of a number: `item`, `float`, `bool`. On a CPU `tolist` is no operator."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "_local_scalar_dense" in str(function):
            raise AssertionError("the host reads a number of the device")
        return function(*args, **(kwargs or {}))


class Reference:
    """AdamW (arXiv 1711.05101, algorithm 2) in float64; results are rounded where the optimizer rounds them."""

    def __init__(self, weight, state_dtype):
        self.master = weight.double().numpy()
        self.round_state = single if state_dtype is torch.float32 else brain
        self.first = self.second = numpy.zeros(LENGTH)
        self.steps = 0

    def step(self, gradient, clip):
        self.steps += 1
        beta1, beta2 = SETTINGS["betas"]
        rate = SETTINGS["lr"] / (1 - beta1**self.steps)
        with numpy.errstate(over="ignore", invalid="ignore"):
            gradient = single(gradient.double().numpy() * single(clip))
            first = single(self.first + single(single(1 - beta1) * single(gradient - self.first)))
            square = single(single(single(1 - beta2) * gradient) * gradient)
            second = single(single(self.second * single(beta2)) + square)
            root = single(single(numpy.sqrt(second)) / single((1 - beta2**self.steps) ** 0.5))
            change = single(single(single(rate) * first) / single(root + single(SETTINGS["eps"])))
            kept = single(self.master * single(1 - SETTINGS["lr"] * SETTINGS["weight_decay"]))
            self.master = single(kept - change)
        self.first, self.second = self.round_state(first), self.round_state(second)


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("gradient_dtype", DTYPES)
@pytest.mark.parametrize("state_dtype", DTYPES)
@pytest.mark.parametrize("weight_dtype", DTYPES)
def test_update_is_that_of_float64_with_the_same_roundings_bit_by_bit(
    weight_dtype, state_dtype, gradient_dtype, kind, monkeypatch
):
    monkeypatch.setattr(adamw, "CPU_CHUNK", 300)  # several pieces, the last one shorter
    # of a CPU's vector library about one square root in six is one ulp off
    monkeypatch.setattr(torch.Tensor, "sqrt", lambda numbers: numbers.double().pow(0.5).float())
    parameter = torch.nn.Parameter(noise(0, 0.02).to(weight_dtype))
    optimizer = adamw.FusedAdamW([parameter], **SETTINGS, state_dtype=state_dtype)
    optimizer.clip_coefficient = torch.tensor(0.37)
    reference = Reference(parameter.detach(), state_dtype)
    for step in range(1, 6):
        parameter.decoupled_grad = GRADIENTS[kind](noise(step)).to(gradient_dtype)
        optimizer.step()
        reference.step(parameter.decoupled_grad, 0.37)
        state = optimizer.state[parameter]
        is_bf16 = weight_dtype is torch.bfloat16
        master = adamw.join_master(parameter.detach(), state["remainder"]) if is_bf16 else parameter.detach()
        assert bits_of(master) == bits_of(torch.from_numpy(reference.master).float())
        if is_bf16:
            assert bits_of(parameter.detach().float()) == bits_of(torch.from_numpy(brain(reference.master)).float())
        for name, expected in (("exp_avg", reference.first), ("exp_avg_sq", reference.second)):
            assert state[name].dtype is state_dtype
            assert bits_of(state[name].float()) == bits_of(torch.from_numpy(expected).float())
    assert (master != noise(0, 0.02).to(weight_dtype)).all(), "weight decay alone changes every master"


def test_remainder_gives_the_master_back_and_the_weight_is_its_nearest():
    generator = torch.Generator().manual_seed(0)
    lower = [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF, *torch.randint(0, 2**16, (4,), generator=generator).tolist()]
    upper = numpy.arange(2**16, dtype=numpy.uint32)
    upper = upper[(upper & 0x7F80) != 0x7F80]  # without infinities and NaN
    for low in lower:
        bits = (upper << 16) | low
        master = torch.from_numpy(bits.view(numpy.float32).copy())
        weight, remainder = adamw.split_master(master)
        nearest = (bits.astype(numpy.uint64) + 0x7FFF + (upper & 1)) >> 16
        assert (weight.view(torch.int16).numpy().view(numpy.uint16) == nearest).all()
        # only a tie above an even weight is one ulp off; an ulp is 1 in the bits
        expected = bits - ((upper & 1) == 0) if low == 0x8000 else bits
        again = adamw.join_master(weight, remainder)
        assert (again.view(torch.int32).numpy().view(numpy.uint32) == expected).all()
        assert (again.to(torch.bfloat16) == weight).all(), "the weight is the nearest of what is kept, too"


def test_nan_and_infinity_stay_what_they_are():
    patterns = [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001]
    master = torch.from_numpy(numpy.array(patterns, dtype=numpy.uint32).view(numpy.float32))
    weight, remainder = adamw.split_master(master)
    for kept in (weight.float(), adamw.join_master(weight, remainder)):
        assert kept[:2].tolist() == [float("inf"), float("-inf")]
        assert kept[2:].isnan().all()


def test_float32_weights_move_as_those_of_torch():
    ours, theirs = (torch.nn.Parameter(noise(0, 0.02)) for _ in range(2))
    optimizers = adamw.FusedAdamW([ours], **SETTINGS), torch.optim.AdamW([theirs], **SETTINGS)
    for step in range(1, 21):
        ours.grad, theirs.grad = noise(step), noise(step)
        for optimizer in optimizers:
            optimizer.step()
    # 20 steps of at most 3e-3; each rounds numbers below 0.1, whose half ulp is 4e-9, a few times
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("weight_dtype", "state_dtype", "gradient_dtype", "most"),
    [
        (torch.bfloat16, torch.bfloat16, torch.float32, 12),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16, 10),
        (torch.bfloat16, torch.float32, torch.float32, 16),
        (torch.float32, torch.float32, torch.float32, 16),
    ],
)
def test_bytes_of_a_parameter(weight_dtype, state_dtype, gradient_dtype, most):
    parameter = torch.nn.Parameter(noise(0).to(weight_dtype))
    parameter.decoupled_grad = noise(1).to(gradient_dtype)
    optimizer = adamw.FusedAdamW([parameter], **SETTINGS, state_dtype=state_dtype)
    optimizer.step()
    tensors = [parameter, parameter.decoupled_grad, *optimizer.state[parameter].values()]
    assert sum(tensor.nbytes for tensor in tensors) == most * LENGTH


@pytest.mark.parametrize("clip", [None, torch.tensor(0.5)])
def test_a_step_reads_nothing(clip):
    parameter = torch.nn.Parameter(noise(0).to(torch.bfloat16))
    parameter.decoupled_grad = noise(1)
    optimizer = adamw.FusedAdamW([parameter], **SETTINGS)
    optimizer.clip_coefficient = clip
    with NoHostRead():
        optimizer.step()
        optimizer.step()
    with pytest.raises(AssertionError, match="the host reads"), NoHostRead():
        float(parameter.detach().float().sum())


@pytest.mark.full("torch.compile traces, about 5 s")
def test_steps_learning_rates_and_lengths_compile_nothing_again():
    counter = CompileCounter()
    compiled = torch.compile(adamw.update, backend=counter, fullgraph=True)
    for step, length in enumerate((256, 1280, 384, 640, 1001, 33, 255), 1):
        group = {**SETTINGS, "lr": SETTINGS["lr"] / step, "step": step}
        numbers = adamw.scalars(group, torch.tensor(1.0 / step), torch.device("cpu"))
        dtypes = (torch.bfloat16, torch.int16, torch.bfloat16, torch.bfloat16, torch.float32)
        with torch.no_grad():
            compiled(*(adamw.rows(torch.ones(length, dtype=dtype)) for dtype in dtypes), *numbers)
    assert counter.frame_count == 2, "one for rows, one for lengths that make no rows"


def test_the_local_part_of_a_dtensor_is_updated():
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,))
        whole, gradient = noise(0).view(8, -1).to(torch.bfloat16), noise(1).view(8, -1).to(torch.bfloat16)
        sharded, plain = (
            torch.nn.Parameter(distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)),
            torch.nn.Parameter(whole[4:].clone()),
        )
        sharded.grad = distribute_tensor(gradient, mesh, [Shard(0)], src_data_rank=None)
        plain.grad = gradient[4:]
        for parameter in (sharded, plain):
            adamw.FusedAdamW([parameter], **SETTINGS).step()
        assert torch.equal(sharded.to_local(), plain)
        assert not torch.equal(plain, whole[4:])
    finally:
        destroy_process_group()
