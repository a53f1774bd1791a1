"""Decode attention at batch 1 against the read ceiling of the same run, 8 KV heads, d = 128:
caches in bf16 and, with --kv-dtype, in codes.

    python benchmarks/gpu_decode_attention.py [--kv-dtype auto fp8] [context ...]

One CUDA graph holds a launch for each layer, at least 32, every one over its own blocks of a cache
larger than L2.
"""

import argparse
import itertools

import torch
from gpu_timing import bandwidth_ceiling_bytes_per_s, captured, median_us

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.decode_attention import decode_attention, decode_attention_workspace
from swiftchat.cuda.quantized_kv import KV_SCHEMES, KVScales

KV_HEADS, HEAD_DIM, BLOCK_SIZE = 8, 128, 64
GROUPS = (4, 8)
FOOTPRINT = 2**28  # bytes that all launches of a graph read at least: five times the L2


def token_bytes(form: str) -> int:
    return 2 * KV_HEADS * (2 * HEAD_DIM if form == "auto" else HEAD_DIM + 4)


def launch_us(gpu: Gpu, context: int, group: int, form: str) -> float:
    """Time of a launch among others like it."""
    layers = max(32, -(-FOOTPRINT // (context * token_bytes(form))))
    blocks = -(-context // BLOCK_SIZE)
    rows = (layers * blocks, 2 * KV_HEADS, BLOCK_SIZE)
    codes, dtype = None, torch.bfloat16
    if form != "auto":
        codes, dtype = KVScales(form, torch.full(rows, 0.02, device="cuda")), torch.int8
    cache = torch.empty(*rows, HEAD_DIM, device="cuda", dtype=dtype)
    for part in cache.split(1024):
        part.normal_() if codes is None else part.random_(0, 100)
    tables = torch.randperm(layers * blocks, device="cuda").int().view(layers, 1, blocks)
    length = torch.tensor([context], device="cuda", dtype=torch.int32)
    q = torch.randn(1, KV_HEADS * group, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(q)
    workspace = decode_attention_workspace(gpu, *q.shape)
    # Each table starts at 16 bytes, as the operation demands.
    of_layers = [tables[layer].clone() for layer in range(layers)]

    def run() -> None:
        for table in of_layers:
            decode_attention(
                gpu,
                q,
                cache,
                block_tables=table,
                context_lens=length,
                scale=HEAD_DIM**-0.5,
                out=out,
                workspace=workspace,
                early_reads=True,
                kv_scales=codes,
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
    print(f"{torch.cuda.get_device_name()}, read ceiling {ceiling:.2f} TB/s (cuBLAS)")
    for form, group, context in itertools.product(args.kv_dtype, GROUPS, args.contexts):
        us = launch_us(gpu, context, group, form)
        rate = context * token_bytes(form) / us / 1e6
        print(
            f"{form}, group {group}, context {context:6}: {us:7.2f} µs, {rate:5.2f} TB/s, "
            f"{rate / ceiling:4.0%} of the ceiling",
            flush=True,
        )
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
