"""Prefill attention of a Llama-3.1-8B layer in bf16, causal, beside torch's.

    python benchmarks/gpu/prefill_attention.py

TFLOP/s count the unmasked half of the scores: 4 · S² / 2 · heads · head_dim per median time.
"""

from collections.abc import Callable
from functools import partial

import torch
from timing import median_us
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.prefill_attention import prefill_attention

HEADS, KV_HEADS, BLOCK = 32, 8, 64


def tflops(length: int, us: float, head_dim: int = 128) -> float:
    return 4 * length**2 / 2 * HEADS * head_dim / us / 1e6


def ours(gpu: Gpu, length: int, path: str, head_dim: int = 128) -> Callable[[], None]:
    num_blocks = length // BLOCK
    q = torch.randn(length, HEADS, head_dim, device="cuda").bfloat16()
    cache = torch.randn(num_blocks, 2 * KV_HEADS, BLOCK, head_dim, device="cuda").bfloat16()
    tables = torch.randperm(num_blocks, device="cuda").int()[None]
    starts = torch.tensor([0, length], dtype=torch.int32, device="cuda")
    return partial(
        prefill_attention,
        gpu,
        q,
        cache,
        block_tables=tables,
        query_starts=starts,
        context_lens=starts[1:].clone(),
        max_num_tokens=length,
        scale=head_dim**-0.5,
        out=torch.empty_like(q),
        path=path,
    )


def torchs(length: int, backend: SDPBackend, head_dim: int = 128) -> Callable[[], Tensor]:
    q = torch.randn(1, HEADS, length, head_dim, device="cuda").bfloat16()
    k, v = (torch.randn(1, KV_HEADS, length, head_dim, device="cuda").bfloat16() for _ in range(2))

    def work() -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return work


def main() -> None:
    gpu = Gpu(torch.device("cuda", 0), CubinCache(None))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for length in (2048, 8192, 32768):
        rivals = {
            "flash": torchs(length, SDPBackend.FLASH_ATTENTION),
            "cuDNN": torchs(length, SDPBackend.CUDNN_ATTENTION),
            "ours mma": ours(gpu, length, "mma"),
        }
        if gpu.arch == "sm_90a":
            rivals["ours wgmma"] = ours(gpu, length, "wgmma")
        found = {name: median_us(work) for name, work in rivals.items()}
        print(
            f"{length} tokens: "
            + ", ".join(
                f"{name} {us / 1e3:.3f} ms ({tflops(length, us):.0f} TFLOP/s)"
                for name, us in found.items()
            )
        )


if __name__ == "__main__":
    main()
