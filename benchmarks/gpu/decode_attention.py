"""Decode attention of one row against the bandwidth ceiling of the same run.

    python benchmarks/gpu/decode_attention.py [--kv-dtype auto fp8] [context ...]

8 KV heads of 128 elements; the cache is bf16 or, with --kv-dtype, quantized. A CUDA graph holds at
least 32 launches, each over blocks of its own, so that together they read more than L2 holds.
"""

import argparse
import itertools

import torch
from timing import bandwidth_ceiling_bytes_per_s, captured, median_us

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.decode_attention import decode_attention, decode_attention_workspace
from swiftchat.cuda.quantized_kv import KV_SCHEMES, KVScales

KV_HEADS, HEAD_DIM, BLOCK_SIZE = 8, 128, 64
GROUPS = (4, 8)
FOOTPRINT = 2**28  # minimum bytes read by all launches of a graph: five times the L2


def token_bytes(kv_dtype: str) -> int:
    if kv_dtype == "int5":
        return KV_HEADS * (HEAD_DIM * 11 // 8 + 2 * 4)
    return 2 * KV_HEADS * (2 * HEAD_DIM if kv_dtype == "auto" else HEAD_DIM + 4)


def kv_scales_of(kv_dtype: str, rows: tuple[int, int, int]) -> KVScales | None:
    """Return equal scales and random upper bits for a quantized cache."""
    if kv_dtype == "auto":
        return None
    bits = []
    if kv_dtype == "int5":
        for size in (HEAD_DIM // 4, HEAD_DIM // 8):
            shape = (rows[0], rows[1] // 2, rows[2], size)
            bits.append(torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8))
    return KVScales(kv_dtype, torch.full(rows, 0.02, device="cuda"), *bits)


def launch_us(gpu: Gpu, context: int, group: int, kv_dtype: str) -> float:
    """Median time of one launch."""
    layers = max(32, -(-FOOTPRINT // (context * token_bytes(kv_dtype))))
    blocks = -(-context // BLOCK_SIZE)
    rows = (layers * blocks, 2 * KV_HEADS, BLOCK_SIZE)
    scales = kv_scales_of(kv_dtype, rows)
    dtype = torch.bfloat16 if scales is None else torch.int8
    row_size = HEAD_DIM // 2 if kv_dtype == "int5" else HEAD_DIM
    cache = torch.empty(*rows, row_size, device="cuda", dtype=dtype)
    for part in cache.split(1024):
        part.normal_() if scales is None else part.random_(0, 100)
    tables = torch.randperm(layers * blocks, device="cuda").int().view(layers, 1, blocks)
    length = torch.tensor([context], device="cuda", dtype=torch.int32)
    q = torch.randn(1, KV_HEADS * group, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
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
                scale=HEAD_DIM**-0.5,
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
    args = parser.parse_args()
    gpu = Gpu(torch.device("cuda", 0), CubinCache(None))
    ceiling = bandwidth_ceiling_bytes_per_s(torch.device("cuda", 0)) / 1e12
    print(f"{torch.cuda.get_device_name()}, bandwidth ceiling {ceiling:.2f} TB/s (cuBLAS)")
    for kv_dtype, group, context in itertools.product(args.kv_dtype, GROUPS, args.contexts):
        us = launch_us(gpu, context, group, kv_dtype)
        rate = context * token_bytes(kv_dtype) / us / 1e6
        print(
            f"{kv_dtype}, group {group}, context {context:6}: {us:7.2f} µs, {rate:5.2f} TB/s, "
            f"{rate / ceiling:4.0%} of the ceiling",
            flush=True,
        )
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
