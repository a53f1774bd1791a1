"""Helpers of kernel tests: random inputs, poisoned outputs, tolerances."""

import torch
from torch import Tensor

from swiftchat.engine.model.quantized_kv import quantize_kv

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Half a unit in the last place of a result rounded once, and room for the order of an fp32 sum.
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2e-6}


class Inputs:
    """Random tensors that depend on the seed and the device only."""

    def __init__(self, seed: int, dtype: torch.dtype = torch.float32, device: str = "cuda") -> None:
        self._options = {
            "generator": torch.Generator(device).manual_seed(seed),
            "device": device,
        }
        self.dtype = dtype

    def normal(self, *shape: int, dtype: torch.dtype | None = None, scale: float = 1.0) -> Tensor:
        values = torch.randn(shape, **self._options) * scale
        return values.to(dtype or self.dtype)

    def integers(
        self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32
    ) -> Tensor:
        """Return integers in [low, high)."""
        return torch.randint(low, high, shape, dtype=dtype, **self._options)

    def permutation(self, n: int) -> Tensor:
        return torch.randperm(n, **self._options).int()


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    """Return an output filled with NaN, or with the lowest integer."""
    if dtype.is_floating_point:
        return torch.full(shape, float("nan"), dtype=dtype, device="cuda")
    return torch.full(shape, torch.iinfo(dtype).min, dtype=dtype, device="cuda")


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Assert a relative error norm of at most `tolerance` and finite results."""
    found, expected = found.double(), expected.double()
    assert found.shape == expected.shape
    assert found.isfinite().all(), f"{(~found.isfinite()).sum()} of {found.numel()} not finite"
    error = torch.linalg.vector_norm(found - expected)
    norm = torch.linalg.vector_norm(expected)
    assert error <= tolerance * norm, f"relative error {error / norm:.2e} > {tolerance:.2e}"


def quantize_rows(scheme: str, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize rows for an 8-bit cache; return int8 values, fp32 scales and exact fp64 elements."""
    values, scales = quantize_kv(scheme, rows)
    as_stored = values if scheme == "int8" else values.view(torch.float8_e4m3fn)
    return values, scales, as_stored.double() * scales.double().unsqueeze(-1)
