"""What kernel tests share: random inputs, poisoned outputs, and the tolerance of a dtype."""

import torch
from torch import Tensor

from swiftchat.engine.model.quantized_kv import quantize_kv

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Half a unit in the last place of a result rounded once, and room for the order of an fp32 sum.
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2e-6}


class Inputs:
    """Random tensors, the same for the same seed on the same device."""

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
        """Integers from low up to and without high."""
        return torch.randint(low, high, shape, dtype=dtype, **self._options)

    def permutation(self, n: int) -> Tensor:
        return torch.randperm(n, **self._options).int()


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    """An output nobody has written: NaN, or the lowest integer."""
    if dtype.is_floating_point:
        return torch.full(shape, float("nan"), dtype=dtype, device="cuda")
    return torch.full(shape, torch.iinfo(dtype).min, dtype=dtype, device="cuda")


def assert_close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Norm of the error at most `tolerance` times the norm of `expected` (fp64); no NaN passes."""
    found, expected = found.double(), expected.double()
    assert found.shape == expected.shape
    assert found.isfinite().all(), f"{(~found.isfinite()).sum()} of {found.numel()} not finite"
    error = torch.linalg.vector_norm(found - expected)
    norm = torch.linalg.vector_norm(expected)
    assert error <= tolerance * norm, f"relative error {error / norm:.2e} > {tolerance:.2e}"


def coded(form: str, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows as a cache in 8 bits keeps them: int8 codes, fp32 factors, and the numbers in fp64."""
    codes, factors = quantize_kv(form, rows)
    whole = codes if form == "int8" else codes.view(torch.float8_e4m3fn)
    return codes, factors, whole.double() * factors.double().unsqueeze(-1)
