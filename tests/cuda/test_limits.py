"""Limits of `linear` that depend on the GPU, for GPUs of all architectures."""

from types import SimpleNamespace

import pytest
import torch

from swiftchat.cuda.ops.linear.layout import MAX_GEMV_ROWS, linear_fits

# Shared memory a block can have on sm_80, sm_86/sm_89/sm_120 and sm_90.
SHARED_BYTES = {"sm_80": 166_912, "sm_89": 101_376, "sm_90a": 232_448}


@pytest.mark.parametrize("arch", SHARED_BYTES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("k", [8, 48, 576, 896, 4096, 14_336, 28_672])
def test_linear_fits_on_every_architecture(arch: str, dtype: torch.dtype, k: int) -> None:
    gpu = SimpleNamespace(
        block_shared_bytes=SHARED_BYTES[arch], num_sms=128, has_copy_engine=arch == "sm_90a"
    )
    weight = torch.empty(16, k, dtype=dtype, device="meta")
    fits = [linear_fits(gpu, n, weight, splittable=True) for n in range(1, MAX_GEMV_ROWS + 2)]  # type: ignore[arg-type]
    assert fits[0] and not fits[-1]
    assert fits == sorted(fits, reverse=True), "more vectors fit where fewer do not"
    whole = [linear_fits(gpu, n, weight) for n in range(1, MAX_GEMV_ROWS + 1)]  # type: ignore[arg-type]
    assert all(split or not one for one, split in zip(whole, fits, strict=False))
