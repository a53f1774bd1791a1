"""Decode attention of one row against the bandwidth ceiling of the same run.

    python benchmarks/gpu/decode_attention.py [context …] [--kv-dtype auto fp8] [--heads 8x128 …]

KV heads and their elements are those of --heads; the cache is bf16 or, with --kv-dtype, quantized.
A CUDA graph holds at least 32 launches, each over blocks of its own, so that together they read
more than L2 holds.
"""

import argparse
import itertools
from dataclasses import dataclass

import torch
from timing import captured, median_us

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.decode_attention import (
    decode_attention,
    decode_attention_workspace,
)
from swiftchat.cuda.quantized_kv import KV_SCHEMES, KVScales
from swiftchat.engine.gpu.bandwidth import bandwidth_ceiling_bytes_per_s

BLOCK_SIZE = 64
FOOTPRINT = 2**28  # minimum bytes read by all launches of a graph: five times the L2


@dataclass(frozen=True)
class Heads:
    """KV heads, the elements of each, and the query heads of each."""

    kv: int
    dim: int
    group: int

    def token_bytes(self, kv_dtype: str) -> int:
        if kv_dtype == "int5":
            return self.kv * (self.dim * 11 // 8 + 2 * 4)
        return 2 * self.kv * (2 * self.dim if kv_dtype == "auto" else self.dim + 4)


def kv_scales_of(kv_dtype: str, rows: tuple[int, int, int], head_dim: int) -> KVScales | None:
    """Return equal scales and random upper bits for a quantized cache."""
    if kv_dtype == "auto":
        return None
    bits = []
    if kv_dtype == "int5":
        for size in (head_dim // 4, head_dim // 8):
            shape = (rows[0], rows[1] // 2, rows[2], size)
            bits.append(torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8))
    return KVScales(kv_dtype, torch.full(rows, 0.02, device="cuda"), *bits)


def launch_us(gpu: Gpu, context: int, heads: Heads, kv_dtype: str) -> float:
    """Median time of one launch."""
    layers = max(32, -(-FOOTPRINT // (context * heads.token_bytes(kv_dtype))))
    blocks = -(-context // BLOCK_SIZE)
    rows = (layers * blocks, 2 * heads.kv, BLOCK_SIZE)
    scales = kv_scales_of(kv_dtype, rows, heads.dim)
    dtype = torch.bfloat16 if scales is None else torch.int8
    row_size = heads.dim // 2 if kv_dtype == "int5" else heads.dim
    cache = torch.empty(*rows, row_size, device="cuda", dtype=dtype)
    for part in cache.split(1024):
        part.normal_() if scales is None else part.random_(0, 100)
    tables = torch.randperm(layers * blocks, device="cuda").int().view(layers, 1, blocks)
    length = torch.tensor([context], device="cuda", dtype=torch.int32)
    q = torch.randn(1, heads.kv * heads.group, heads.dim, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(q)
    workspace = decode_attention_workspace(gpu, *q.shape)
    # Clones, because each table must be aligned to 16 bytes.
    layer_tables = [tables[layer].clone() for layer in range(layers)]

    def run() -> None:
        for table in layer_tables:
            decode_attention(
                gpu,
                q,
                cache,
                block_tables=table,
                context_lens=length,
                scale=heads.dim**-0.5,
                out=out,
                workspace=workspace,
                new_tokens=1,
                kv_scales=scales,
            )

    return median_us(captured(run).replay) / layers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "contexts", type=int, nargs="*", default=[128, 200, 1024, 2048, 8192, 32768, 131072]
    )
    parser.add_argument("--kv-dtype", nargs="+", choices=["auto", *KV_SCHEMES], default=["auto"])
    parser.add_argument("--heads", nargs="+", default=["8x128"], help="KV heads x elements")
    parser.add_argument(
        "--groups", type=int, nargs="+", default=[4, 8], help="queries of a KV head"
    )
    args = parser.parse_args()
    gpu = Gpu(torch.device("cuda", 0), CubinCache(None))
    ceiling = (bandwidth_ceiling_bytes_per_s(torch.device("cuda", 0)) or 0) / 1e12
    print(f"{torch.cuda.get_device_name()}, bandwidth ceiling {ceiling:.2f} TB/s (cuBLAS)")
    cases = itertools.product(args.kv_dtype, args.heads, args.groups, args.contexts)
    for kv_dtype, size, group, context in cases:
        heads = Heads(*map(int, size.split("x")), group)
        us = launch_us(gpu, context, heads, kv_dtype)
        rate = context * heads.token_bytes(kv_dtype) / us / 1e6
        print(
            f"{kv_dtype}, {size}, group {group}, context {context:6}: {us:7.2f} µs, "
            f"{rate:5.2f} TB/s, {rate / ceiling:4.0%} of the ceiling",
            flush=True,
        )
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
