"""Private torch interfaces, each against the public expression that replaces it."""

import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from swiftchat.engine.linear import torch_private

# bf16 results: values, scales and the result are each rounded to 8 bits.
BF16_TOLERANCE = 3 * 2.0**-8


def assert_near(found: torch.Tensor, expected: torch.Tensor, sizes: torch.Tensor) -> None:
    """Compare sums; `sizes` are the sums of the absolute values of their terms."""
    assert found.shape == expected.shape
    assert ((found.double() - expected.double()).abs() <= BF16_TOLERANCE * sizes.double()).all()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="not an x86 processor")
def test_onednn_has_no_16_bit_gemm_below_avx512() -> None:
    code = (
        "import torch\n"
        "from swiftchat.engine.linear.torch_private import has_onednn_gemm\n"
        "print([has_onednn_gemm(dtype) for dtype in (torch.bfloat16, torch.float16)])"
    )
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[False, False]"


@pytest.mark.gpu
def test_int8_gemm_on_a_gpu_equals_the_exact_sums() -> None:
    x = torch.randint(-128, 128, (32, 64), dtype=torch.int8, device="cuda")
    values = torch.randint(-128, 128, (64, 48), dtype=torch.int8, device="cuda")
    out = torch.empty(32, 48, dtype=torch.int32, device="cuda")
    torch_private.matmul_int8_cuda(x, values, out)
    assert torch.equal(out.double(), x.double() @ values.double())


@pytest.mark.gpu
def test_fp8_gemm_on_a_gpu_equals_the_scaled_sums() -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no fp8 tensor cores")
    x = torch.randn(32, 64, device="cuda").to(torch.float8_e4m3fn)
    values = torch.randn(48, 64, device="cuda").to(torch.float8_e4m3fn).t()
    scales = torch.rand(256, device="cuda")[:32].unsqueeze(1)
    scale = torch.rand(1, 48, device="cuda")
    bias = torch.randn(48, dtype=torch.bfloat16, device="cuda")
    found = torch_private.matmul_fp8_cuda(x, values, scales, scale, bias, torch.bfloat16)
    sums = x.double() @ values.double()
    sizes = x.double().abs() @ values.double().abs() * scales * scale + bias.double().abs()
    assert_near(found, sums * scales * scale + bias, sizes)


def test_gloo_group_gathers_tensors_of_all_ranks() -> None:
    store = torch.distributed.HashStore()
    tensors = torch.arange(12.0).reshape(2, 2, 3)

    def gather(rank: int) -> torch.Tensor:
        group = torch_private.gloo_group(store, rank, 2, 60, "127.0.0.1")
        gathered = torch.empty(2, 2, 3)
        torch_private.all_gather_into(group, gathered, tensors[rank : rank + 1])
        return gathered

    with ThreadPoolExecutor(2) as pool:
        for gathered in pool.map(gather, range(2)):
            assert torch.equal(gathered, tensors)
