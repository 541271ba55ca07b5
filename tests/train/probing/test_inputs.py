"""Arguments of a repeated call are as recorded; integers stay inside their tables; written tensors are restored."""

import pytest
import torch

from train.probing.inputs import UnrepeatableError, bytes_of, make
from train.probing.safe import UnsafeError, beyond

CPU = torch.device("cpu")


def tensor(*shape, stride=None, dtype="float32"):
    """Return a described tensor, row-major unless strides are given."""
    if stride is None:
        stride = [1] * len(shape)
        for place in range(len(shape) - 2, -1, -1):
            stride[place] = stride[place + 1] * shape[place + 1]
    return {"shape": list(shape), "stride": list(stride), "dtype": dtype}


def call(operator, *args, **kwargs):
    return {"operator": operator, "args": list(args), "kwargs": kwargs}


def test_tensors_have_the_recorded_shape_stride_and_dtype():
    made = make(call("aten::mm.default", tensor(3, 5, dtype="bfloat16"), tensor(5, 7, stride=[1, 5])), CPU)
    left, right = made.args
    assert (tuple(left.shape), left.stride(), left.dtype) == ((3, 5), (5, 1), torch.bfloat16)
    assert (tuple(right.shape), right.stride(), right.dtype) == ((5, 7), (1, 5), torch.float32)
    assert made.operator is torch.ops.aten.mm.default


def test_numbers_are_normally_distributed_and_differ_between_tensors():
    made = make(call("aten::add.Tensor", tensor(3_000_000), tensor(3_000_000)), CPU)
    for values in made.args:
        assert abs(float(values.mean())) < 0.01 and abs(float(values.std()) - 1) < 0.01
        # of a normal distribution 95.45 % are within two standard deviations
        assert float((values.abs() < 2).float().mean()) == pytest.approx(0.9545, abs=0.003)
    assert not torch.equal(*made.args)


def test_an_expanded_tensor_has_the_storage_of_what_it_repeats():
    described = tensor(4, 1000, stride=[0, 1])
    made = make(call("aten::add.Tensor", described, tensor(4, 1000)), CPU)
    assert made.args[0].untyped_storage().nbytes() == 4000
    assert bytes_of(call("aten::relu.default", described)) == 4000


def test_the_second_place_of_a_tensor_is_the_same_tensor():
    made = make(call("aten::add.out", tensor(3), tensor(3), alpha=2, out={"same": 0}), CPU)
    assert made.keywords["out"] is made.args[0] and made.keywords["alpha"] == 2


def test_indices_of_an_embedding_stay_below_its_rows_and_reach_them_all():
    described = call("aten::embedding.default", tensor(50, 8), tensor(4, 1000, dtype="int64"))
    indices = make(described, CPU).args[1]
    assert (int(indices.min()), int(indices.max())) == (0, 49)


@pytest.mark.parametrize(
    ("operator", "args", "limits"),
    [
        ("embedding", {"weight": tensor(50, 8), "indices": tensor(3, dtype="int64")}, {"indices": 50}),
        ("embedding_dense_backward", {"indices": tensor(3, dtype="int64"), "num_weights": 70}, {"indices": 70}),
        ("gather", {"self": tensor(4, 9), "dim": -1, "index": tensor(4, 1, dtype="int64")}, {"index": 9}),
        ("scatter_add_", {"self": tensor(4, 9), "dim": 0, "index": tensor(4, 1, dtype="int64")}, {"index": 4}),
        ("index", {"self": tensor(6, 9), "indices": [None, tensor(3, dtype="int64")]}, {"indices": [6, 9]}),
        ("nll_loss_forward", {"self": tensor(6, 32), "target": tensor(6, dtype="int64")}, {"target": 32}),
        ("add", {"self": tensor(3, dtype="int64")}, {}),
        ("copy_", {"self": tensor(3, dtype="int64")}, {}),
    ],
)
def test_the_range_of_integers_is_that_of_the_table_they_choose_from(operator, args, limits):
    assert beyond(operator, args) == limits


@pytest.mark.parametrize(
    ("operator", "args"),
    [
        ("bincount", {"self": tensor(3, dtype="int64")}),
        ("_embedding_bag", {"weight": tensor(5, 2), "indices": tensor(3, dtype="int64")}),
        ("index", {"self": tensor(6, 9), "indices": [tensor(6, dtype="bool")]}),
        ("gather", {"self": tensor(4, 9), "index": tensor(4, 1, dtype="int64")}),
    ],
)
def test_integers_without_a_safe_range_are_refused(operator, args):
    with pytest.raises(UnsafeError):
        beyond(operator, args)


def test_a_call_with_unsafe_integers_is_not_made():
    with pytest.raises(UnrepeatableError, match="no safe range"):
        make(call("aten::bincount.default", tensor(3, dtype="int64")), CPU)


@pytest.mark.parametrize("name", ["aten::no_such_thing.default", "aten::mm.no_overload", "nowhere::mm.default"])
def test_an_operator_that_this_torch_lacks_is_named(name):
    with pytest.raises(UnrepeatableError, match=name):
        make(call(name, tensor(3)), CPU)


def test_a_tensor_that_a_call_writes_gets_its_first_values_back():
    made = make(call("aten::mul_.Scalar", tensor(64), 0.5), CPU)
    (values,) = made.args[:1]
    first = values.clone()
    made.operator(*made.args)
    assert made.writes and not torch.equal(values, first)
    made.restore()
    assert torch.equal(values, first)
    assert not make(call("aten::mul.Tensor", tensor(3), tensor(3)), CPU).writes
