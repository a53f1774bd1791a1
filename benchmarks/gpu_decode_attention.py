"""Decode attention at batch 1 against the read ceiling of the same run, bf16, 8 KV heads, d = 128.

    python benchmarks/gpu_decode_attention.py [context ...]

One CUDA graph holds a launch for each layer, at least 32, every one over its own blocks of a cache
larger than L2.
"""

import sys

import torch
from gpu_timing import captured, median_us, read_ceiling_bytes_per_s

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.decode_attention import decode_attention, decode_attention_workspace

KV_HEADS, HEAD_DIM, BLOCK_SIZE = 8, 128, 64
TOKEN_BYTES = 2 * KV_HEADS * HEAD_DIM * 2
FOOTPRINT = 2**28  # bytes that all launches of a graph read at least: five times the L2


def launch_us(gpu: Gpu, context: int, group: int) -> float:
    """Time of a launch among others like it."""
    layers = max(32, -(-FOOTPRINT // (context * TOKEN_BYTES)))
    blocks = -(-context // BLOCK_SIZE)
    cache = torch.empty(
        layers * blocks, 2 * KV_HEADS, BLOCK_SIZE, HEAD_DIM, device="cuda", dtype=torch.bfloat16
    )
    for part in cache.split(1024):
        part.normal_()
    tables = torch.randperm(layers * blocks, device="cuda").int().view(layers, 1, blocks)
    length = torch.tensor([context], device="cuda", dtype=torch.int32)
    q = torch.randn(1, KV_HEADS * group, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(q)
    workspace = decode_attention_workspace(gpu, *q.shape)
    # Each table starts at 16 bytes, as the operation demands.
    rows = [tables[layer].clone() for layer in range(layers)]

    def run() -> None:
        for row in rows:
            decode_attention(
                gpu, q, cache, row, length, HEAD_DIM**-0.5, out, workspace, settled=True
            )

    return median_us(captured(run).replay) / layers


def main() -> None:
    contexts = [int(arg) for arg in sys.argv[1:]] or [128, 200, 1024, 2048, 8192, 32768, 131072]
    gpu = Gpu(torch.device("cuda", 0), CubinCache(None))
    ceiling = read_ceiling_bytes_per_s(torch.device("cuda", 0)) / 1e12
    print(f"{torch.cuda.get_device_name()}, read ceiling {ceiling:.2f} TB/s (cuBLAS)")
    for group in (4, 8):
        for context in contexts:
            us = launch_us(gpu, context, group)
            rate = context * TOKEN_BYTES / us / 1e6
            print(f"group {group}, context {context:6}: {us:7.2f} µs, {rate:5.2f} TB/s, "
                  f"{rate / ceiling:4.0%} of the ceiling", flush=True)  # fmt: skip
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
