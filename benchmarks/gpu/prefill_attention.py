"""Prefill attention of a layer with 32 query and 8 KV heads in bf16, causal, beside torch's.

    python benchmarks/gpu/prefill_attention.py [--head-dim 64 128 256]

Calls are replayed in a CUDA graph, so that launches take no time. TFLOP/s count the unmasked half
of the scores: 4 · S² / 2 · heads · head_dim per median time.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from timing import captured, median_us
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.prefill_attention import prefill_attention

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


def layer_us(work: Callable[[], object], length: int) -> float:
    """Return the median time of a call, of as many as take about a millisecond."""
    calls = max(1, 8192 // length)

    def run() -> None:
        for _ in range(calls):
            work()

    return median_us(captured(run).replay, repeats=11) / calls


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128, 256])
    args = parser.parse_args()
    gpu = Gpu(torch.device("cuda", 0), CubinCache(None))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    paths = ("mma", "wgmma") if gpu.arch == "sm_90a" else ("mma",)
    for head_dim in args.head_dim:
        for length in (2048, 8192, 32768):
            rivals = {
                "flash": torchs(length, SDPBackend.FLASH_ATTENTION, head_dim),
                "cuDNN": torchs(length, SDPBackend.CUDNN_ATTENTION, head_dim),
            } | {f"ours {path}": ours(gpu, length, path, head_dim) for path in paths}
            found = {}
            for name, work in rivals.items():
                us = layer_us(work, length)
                found[name] = f"{us / 1e3:.3f} ms ({tflops(length, us, head_dim):.0f} TFLOP/s)"
            print(
                f"head_dim {head_dim}, {length} tokens: "
                + ", ".join(f"{name} {text}" for name, text in found.items()),
                flush=True,
            )


if __name__ == "__main__":
    main()
