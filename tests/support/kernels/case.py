"""Helpers of kernel tests: random inputs, poisoned outputs, tolerances."""

import torch
from torch import Tensor

from swiftchat.cuda.quantized_kv import KVScales
from swiftchat.engine.model.int5_kv import pack_kv, unpack_kv
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


def quantize_cache(scheme: str, cache: Tensor) -> tuple[Tensor, KVScales, Tensor]:
    """Quantize a cache [num_blocks, 2 * num_kv_heads, block_size, head_dim].

    Returns it as the kernels take it, and its exact elements in fp64; those of int5 are rotated.
    Rows that are not finite get the largest values and a NaN scale.
    """
    if scheme != "int5":
        values, scales = quantize_kv(scheme, cache)
        as_stored = values if scheme == "int8" else values.view(torch.float8_e4m3fn)
        numbers = as_stored.double() * scales.double().unsqueeze(-1)
        values[~scales.isfinite()] = 127
        return values, KVScales(scheme, scales), numbers
    parts = pack_kv(cache.transpose(1, 2).flatten(0, 1))
    numbers = unpack_kv((*parts[:-1], torch.ones_like(parts[-1])), torch.float32).double()
    numbers *= parts[-1].double().unsqueeze(-1)
    blocks = [
        part.view(len(cache), -1, *part.shape[1:]).transpose(1, 2).contiguous()
        for part in (*parts, numbers)
    ]
    values, key_bits, value_bits, scales, numbers = blocks
    values[~scales.isfinite()] = -1
    return values, KVScales(scheme, scales, key_bits, value_bits), numbers


def hadamard_matrix(size: int) -> Tensor:
    """Sylvester's matrix over sqrt(size) in fp64: signs are the parity of the common bits."""
    numbers = torch.arange(size, device="cuda")
    common = numbers.unsqueeze(1) & numbers
    parity = sum((common >> bit) & 1 for bit in range(size.bit_length())) % 2
    return (1 - 2 * parity).double() / size**0.5
