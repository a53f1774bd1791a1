"""act_and_mul against torch in fp64. Tolerance: one rounding of the result; fp32 exponentials."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.layers.act_and_mul import KINDS, act_and_mul, sigmoid_gate
from tests.support.kernels.case import DTYPES, ROUNDING, Inputs, assert_close, poisoned

pytestmark = pytest.mark.gpu


def reference(x: Tensor, kind: str, gated: bool) -> Tensor:
    x = x.double()
    gate, up = x.chunk(2, -1) if gated else (x, torch.ones(1, device=x.device))
    if kind == "gelu_tanh":
        return F.gelu(gate, approximate="tanh") * up
    if kind == "relu2":
        return F.relu(gate).square() * up
    return getattr(F, kind)(gate) * up


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gated", [False, True])
# The largest takes four rows a thread, with rows left over; 37 has no vectors.
@pytest.mark.parametrize(("n", "width"), [(1, 14_336), (3, 1032), (5, 37), (1023, 8200)])
def test_equals_torch(gpu: Gpu, dtype, kind: str, gated: bool, n: int, width: int) -> None:
    make = Inputs(n * width, dtype)
    columns = 2 * width if gated else width
    # Wide, so that both tails of each function are met.
    x, out = make.normal(n, columns, scale=4), poisoned(n, width, dtype=dtype)
    act_and_mul(gpu, x, out, kind, gated=gated)
    assert_close(out, reference(x, kind, gated), ROUNDING[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "width"), [(1, 256), (7, 37), (1023, 8200)])
def test_a_factor_of_its_own(gpu: Gpu, dtype, n: int, width: int) -> None:
    make = Inputs(n * width, dtype)
    x, up = make.normal(n, width, scale=4), make.normal(n, width)
    out, expected = poisoned(n, width, dtype=dtype), reference(x, "gelu_tanh", False)
    act_and_mul(gpu, x, out, "gelu_tanh", up=up)
    assert_close(out, expected * up.double(), ROUNDING[dtype])
    act_and_mul(gpu, x, x, "gelu_tanh", up=up)
    assert torch.equal(x, out)


@pytest.mark.parametrize("kind", KINDS)
def test_large_inputs_give_finite_results(gpu: Gpu, kind: str) -> None:
    x = torch.tensor([[-3e4, -100.0, -0.0, 0.0, 88.0, 3e4, 100.0, -88.0]], device="cuda")
    out = poisoned(1, 8, dtype=torch.float32)
    act_and_mul(gpu, x, out, kind)
    assert_close(out, reference(x, kind, False), ROUNDING[torch.float32])
    assert (out[0, [0, 2, 3]] == 0).all()


def test_in_place(gpu: Gpu) -> None:
    make = Inputs(3, torch.bfloat16)
    x = make.normal(6, 520)
    expected = reference(x, "silu", False)
    act_and_mul(gpu, x, x, "silu")
    assert_close(x, expected, ROUNDING[torch.bfloat16])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "width"), [(1, 4096), (7, 40), (5, 36), (1023, 8200)])
def test_sigmoid_gate(gpu: Gpu, dtype, n: int, width: int) -> None:
    """The gates are columns of a wider matrix, which is poisoned elsewhere."""
    make = Inputs(n * width, dtype)
    x, whole = make.normal(n, width), poisoned(n, 3 * width + 64, dtype=dtype)
    first = 64 + width - width % 8
    gates = whole[:, first : first + width]
    gates.copy_(make.normal(n, width, scale=4))
    expected = x.double() * gates.double().sigmoid()
    if whole.stride(0) * whole.itemsize % 16:
        with pytest.raises(ValueError, match="rows that are aligned to 16 bytes"):
            sigmoid_gate(gpu, x, gates)
        return
    sigmoid_gate(gpu, x, gates)
    assert_close(x, expected, ROUNDING[dtype])


def test_wrong_arguments_raise(gpu: Gpu) -> None:
    make = Inputs(2)
    x, out = make.normal(4, 64), make.normal(4, 64)
    with pytest.raises(ValueError, match="relu2, not 'tanh'"):
        act_and_mul(gpu, x, out, "tanh")
    with pytest.raises(ValueError, match=r"x must be .*128"):
        act_and_mul(gpu, x, out, "silu", gated=True)
    with pytest.raises(ValueError, match="up must be"):
        act_and_mul(gpu, x, out, "silu", up=make.normal(4, 32))
    with pytest.raises(ValueError, match=r"x must be .*\[4, 64\], not .*\[4, 32\]"):
        sigmoid_gate(gpu, x, out[:, :32])
    act_and_mul(gpu, x[:0], out[:0], "silu")
