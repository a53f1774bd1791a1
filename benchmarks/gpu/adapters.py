"""A decode step on the GPU with random LoRA adapters on all matrices, against a plain step.

    python benchmarks/gpu/adapters.py [--shape llama-3.1-8b[:int4]] [--rank 16] [--rows 1 8]

Every row has an adapter of its own. Steps are replayed graphs, timed by device events. With
`--separate`, also those whose changes are computed by kernels of their own.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from decode import CUBINS, load_rows
from timing import median_us

from swiftchat.engine.adapters.tunings import MAX_SETS
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.gpu.fused.deltas import FusedDeltas
from swiftchat.engine.linear.adapted import AdapterSet, Delta, LowRankPart


def random_set(engine: Engine, rank: int) -> AdapterSet:
    """Return low-rank changes of q, k, v, o, gate, up and down in every layer."""
    config, dtype = engine.decoder.config, engine.decoder.weights.dtype
    hidden, attention, mlp = config.hidden_size, config.attention, config.mlp
    inner = 0 if mlp is None else mlp.intermediate_size
    q, kv = (n * attention.head_dim for n in (attention.num_heads, attention.num_kv_heads))
    shapes = {
        "qkv": (hidden, (q, kv, kv)),
        "o": (q, (hidden,)),
        "gate_up": (hidden, (inner, inner)),
        "down": (inner, (hidden,)),
    }

    def part(first: int, columns: int, rows: int) -> LowRankPart:
        options = {"dtype": dtype, "device": engine.device}
        a = torch.randn(rank, columns, **options)
        return LowRankPart(first, a, torch.randn(rows, rank, **options) / 1000)

    deltas = {}
    for layer in range(config.num_layers):
        for name, (columns, parts) in shapes.items():
            starts = [sum(parts[:i]) for i in range(len(parts))]
            made = [part(at, columns, n) for at, n in zip(starts, parts, strict=True)]
            deltas[name, layer] = Delta(made)
    return AdapterSet(deltas)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--separate", action="store_true")
    args = parser.parse_args()
    config = EngineConfig(device="cuda", dummy=args.shape, ctx_size_tokens=16384)
    engine = build_engine(Path(tempfile.gettempdir()), config, cubins=CUBINS)
    graphs = engine.graphs.decode.graphs
    for number in range(max(args.rows)):
        graphs.put_adapters(number, random_set(engine, args.rank), MAX_SETS)
    for num_rows in args.rows:
        plain_us = measure(engine, num_rows, args.context, adapted=False)
        print(f"{args.shape} {num_rows} rows: plain {plain_us:.0f} us")
        for in_linear in (True, False) if args.separate else (True,):
            FusedDeltas.in_linear = in_linear
            us = measure(engine, num_rows, args.context, adapted=True)
            name = "in the matmuls" if in_linear else "separate kernels"
            print(f"  rank {args.rank} {name}: {us:.0f} us, {us / plain_us:.3f}x", flush=True)


def measure(engine: Engine, num_rows: int, context: int, *, adapted: bool) -> float:
    """Return the microseconds of a step whose rows have an adapter each."""
    graphs = engine.graphs.decode.graphs
    graphs.discard_adapted_graphs()
    graphs.graph(num_rows, adapted=adapted)
    load_rows(engine, num_rows, context, SamplingParams(temperature=0))
    graphs.batch.adapter_sets[:num_rows] = torch.arange(num_rows, dtype=torch.int32)
    return median_us(lambda: graphs.replay(num_rows, adapted=adapted))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
