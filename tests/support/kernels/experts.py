"""Random experts of a layer for kernel tests, in every scheme that the kernels read."""

from collections.abc import Iterable

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.expert_matrices import ExpertMatrices
from swiftchat.cuda.ops.moe.experts import expert_down, expert_gate_up
from swiftchat.cuda.packed_layout import PACKINGS
from tests.support.kernels.case import ROUNDING, Inputs, assert_close, poisoned
from tests.support.kernels.packed_matrices import packed

# The scheme of matrices, their group size and the dtype of activations.
PLAIN_CASES = [("PLAIN", 0, dtype) for dtype in (torch.bfloat16, torch.float16, torch.float32)]
PACKED_CASES = [
    (*packing, dtype) for packing in PACKINGS for dtype in (torch.bfloat16, torch.float16)
]
ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "gelu_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
}
# Rows, experts, chosen ones, columns and outputs.
GATE_UP_SIZES = [
    (1, 16, 8, 2048, 768),
    (1, 6, 4, 2880, 96),
    (3, 8, 2, 640, 104),
    (16, 5, 3, 128, 24),
    (2, 4, 1, 4224, 40),
]
DOWN_SIZES = [
    (1, 12, 8, 768, 2048),
    (1, 6, 4, 2880, 512),
    (3, 8, 2, 1536, 97),
    (16, 24, 20, 128, 48),
    (2, 4, 1, 4224, 33),
    (4, 7, 3, 384, 576),
]
Case = tuple[str, int, torch.dtype]


class Experts:
    """Matrices [num_experts, rows, columns] of a scheme with biases, for kernels and in fp64."""

    def __init__(
        self,
        make: Inputs,
        scheme: str,
        group_size: int,
        shape: tuple[int, int, int],
        magnitude: float | None = None,
    ) -> None:
        num_experts, rows, columns = shape
        self._form, self._rows, self._columns = (scheme, group_size), rows, columns
        # Rows of biases are not aligned to 16 bytes.
        self._biases = make.normal(num_experts, rows + 6)
        self.biases = self._biases[:, :rows].double()
        second: list[Tensor] | None = None
        if scheme == "PLAIN":
            plain = make.normal(num_experts, rows, columns, scale=columns**-0.5)
            first, self.exact = list(plain), plain.double()
        else:
            size = columns**-0.5 if magnitude is None else magnitude
            pairs = [
                packed(make, scheme, group_size, rows, columns, magnitude=size)
                for _ in range(num_experts)
            ]
            first = [matrix.tiles for matrix, _ in pairs]
            scales = [m.row_scale for m, _ in pairs if m.row_scale is not None]
            second = scales or None
            self.exact = torch.stack([exact for _, exact in pairs])
        self._tensors = first, second

    def matrices(self, *, biased: bool) -> ExpertMatrices:
        (scheme, group_size), (first, second) = self._form, self._tensors
        return ExpertMatrices(
            scheme,
            self._rows,
            self._columns,
            addresses(first),
            None if second is None else addresses(second),
            addresses(list(self._biases)) if biased else None,
            group_size,
        )

    def products(self, x: Tensor, ids: Tensor, *, biased: bool) -> Tensor:
        """Return matrix · x + bias of the chosen experts, fp64; x [n, 1 or chosen, columns]."""
        each = (self.exact[ids.long()] @ x.double().unsqueeze(-1))[..., 0]
        return each + self.biases[ids.long()] if biased else each


def check_gate_up(gpu: Gpu, case: Case, size: tuple[int, int, int, int, int]) -> None:
    """Compare expert_gate_up with fp64. Tolerance: one rounding; fp32 the order of a sum."""
    (scheme, group, dtype), (n, experts, chosen, k, inner) = case, size
    if group and k % group:
        k = 2816
    make = Inputs(k + inner, dtype)
    x, own = make.normal(n, k), Experts(make, scheme, group, (experts, 2 * inner, k))
    ids = chosen_ids(make, n, experts, chosen)
    activations = list(ACTIVATIONS) if scheme == "PLAIN" else ["silu"]
    for activation, biased in zip([*activations, "silu"], [False, True, True], strict=False):
        out = poisoned(n, chosen, inner, dtype=dtype)
        expert_gate_up(gpu, x, own.matrices(biased=biased), ids, out, activation)
        gate, up = own.products(x.unsqueeze(1), ids, biased=biased).chunk(2, -1)
        assert_close(out, ACTIVATIONS[activation](gate) * up, max(ROUNDING[dtype], 2e-5))


def check_limit(gpu: Gpu, case: Case, k: int, inner: int, n: int = 3) -> None:
    """The same with biases, a limit, and weights of inputs."""
    scheme, group, dtype = case
    make = Inputs(k, dtype)
    x, own = make.normal(n, k), Experts(make, scheme, group, (6, 2 * inner, k))
    ids, out = chosen_ids(make, n, 6, 4), poisoned(n, 4, inner, dtype=dtype)
    matrices = own.matrices(biased=True)
    weights = make.normal(n, 4, dtype=torch.float32).abs()
    for each in (None, weights):
        expert_gate_up(
            *(gpu, x, matrices, ids, out, "gelu_sigmoid"),
            limit=1.5,
            input_weights=each,
        )
        inputs = x.unsqueeze(1).double() * (1 if each is None else each.double().unsqueeze(-1))
        wide = own.products(inputs, ids, biased=True)
        gate, up = wide.chunk(2, -1)
        gate, up = gate.clamp(max=1.5), up.clamp(-1.5, 1.5) + 1
        expected = gate * torch.sigmoid(1.702 * gate) * up
        assert_close(out, expected, max(ROUNDING[dtype], 2e-5))


def check_input_weights(gpu: Gpu, case: Case, size: tuple[int, int, int, int, int]) -> None:
    """Compare expert_gate_up with fp64 where weights multiply the experts' inputs."""
    (scheme, group, dtype), (n, experts, chosen, k, inner) = case, size
    if group and k % group:
        k = 2816
    make = Inputs(k + inner, dtype)
    x, own = make.normal(n, k), Experts(make, scheme, group, (experts, 2 * inner, k))
    ids, out = chosen_ids(make, n, experts, chosen), poisoned(n, chosen, inner, dtype=dtype)
    weights = make.normal(n, chosen, dtype=torch.float32).sigmoid()
    matrices = own.matrices(biased=False)
    expert_gate_up(gpu, x, matrices, ids, out, "silu", input_weights=weights)
    inputs = x.unsqueeze(1).double() * weights.double().unsqueeze(-1)
    gate, up = own.products(inputs, ids, biased=False).chunk(2, -1)
    assert_close(out, ACTIVATIONS["silu"](gate) * up, max(ROUNDING[dtype], 2e-5))


def check_down(gpu: Gpu, case: Case, size: tuple[int, int, int, int, int]) -> None:
    """Compare expert_down with fp64. Tolerance: fp32 results, whose sums differ by their order."""
    (scheme, group, dtype), (n, experts, chosen, inner, rows) = case, size
    if group and inner % group:
        inner = 2816
    make = Inputs(inner + rows, dtype)
    x, own = make.normal(n, chosen, inner), Experts(make, scheme, group, (experts, rows, inner))
    ids = chosen_ids(make, n, experts, chosen)
    weights = make.normal(n, chosen, dtype=torch.float32).abs()
    out = expected = poisoned(n, rows, dtype=torch.float32)
    for biased in (False, True):
        out = poisoned(n, rows, dtype=torch.float32)
        expert_down(gpu, x, own.matrices(biased=biased), ids, weights, out)
        each = own.products(x, ids, biased=biased)
        expected = (each * weights.double().unsqueeze(-1)).sum(1)
        assert_close(out, expected, 2e-5)
    before = out.clone()
    expert_down(gpu, x, own.matrices(biased=True), ids, weights, out, accumulate=True)
    assert_close(out, before.double() + expected, 2e-5)
    expert_down(gpu, x, own.matrices(biased=False), ids, None, out)
    assert_close(out, own.products(x, ids, biased=False).sum(1), 2e-5)


def chosen_ids(make: Inputs, n: int, num_experts: int, chosen: int) -> Tensor:
    return torch.stack([make.permutation(num_experts)[:chosen] for _ in range(n)])


def addresses(tensors: Iterable[Tensor]) -> Tensor:
    return torch.tensor([tensor.data_ptr() for tensor in tensors], device="cuda")
