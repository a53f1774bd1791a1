"""Decode steps and prompts of a mixture of experts that a part of a GPU's memory does not hold.

    python benchmarks/gpu/placed.py [--shape qwen3-30b-a3b:int4] [--gpu-memory-gib 8 …]
        [--cpu-experts LAYERS …]

Random weights. `--gpu-memory-gib 0` is the whole GPU.
"""

import argparse
import time
from pathlib import Path

import torch
from decode import CUBINS, load_rows
from timing import median_us

from swiftchat.engine.api.params import EngineConfig, NumLayers, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine


def expert_step_bytes(engine: Engine) -> int:
    """Return the bytes of the experts in main memory that one token reads."""
    moe = engine.decoder.config.moe
    assert moe is not None
    return engine.info.host_bytes * moe.experts_per_token // moe.num_experts


@torch.inference_mode()
def measure(
    shape: str,
    gpu_memory_bytes: int | None,
    cpu_experts: NumLayers = "auto",
    num_threads: int | None = None,
) -> None:
    """Print the times of an engine with a part of a GPU, or with experts in main memory."""
    started = time.perf_counter()
    config = EngineConfig(
        device="cuda",
        dummy=shape,
        dtype="bfloat16",
        ctx_size_tokens=4096,
        gpu_memory_bytes=gpu_memory_bytes,
        cpu_experts=cpu_experts,
        num_threads=num_threads,
    )
    engine = build_engine(Path(), config, cubins=CUBINS)
    print(f"{shape}, {gpu_memory_bytes}: {engine.info.note or 'all on the GPU'}", flush=True)
    print(f"  loaded in {time.perf_counter() - started:.0f} s, {engine.info.num_threads} threads")
    steps = engine.graphs.decode.graphs
    for num_rows in (1, 4):
        load_rows(engine, num_rows, 256, SamplingParams(temperature=0))
        graph = steps.graph(num_rows)
        us = median_us(graph.replay)
        read = expert_step_bytes(engine)
        print(
            f"  {num_rows} rows: {us:.0f} us a step, {num_rows * 1e6 / us:.1f} tokens/s; "
            f"experts in main memory of one token {read / 1e6:.0f} MB"
            f" ({read * num_rows / us / 1e3:.1f} GB/s over the whole step)",
            flush=True,
        )
    prompt = [5 + i % 1000 for i in range(2048)]
    for attempt in range(2):
        torch.cuda.synchronize()
        started = time.perf_counter()
        params = SamplingParams(temperature=0, max_tokens=1)
        engine.add(1, [7 + attempt, *prompt], params)
        while engine.has_work:
            engine.step()
        print(f"  prompt of 2049 tokens: {2049 / (time.perf_counter() - started):.0f} tokens/s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="qwen3-30b-a3b:int4")
    parser.add_argument("--gpu-memory-gib", type=float, nargs="*", default=[8])
    parser.add_argument("--cpu-experts", type=int, nargs="*", default=[])
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    for gib in arguments.gpu_memory_gib:
        measure(arguments.shape, int(gib * 2**30) or None, "auto", arguments.threads)
    for num_layers in arguments.cpu_experts:
        measure(arguments.shape, None, num_layers, arguments.threads)


if __name__ == "__main__":
    main()
