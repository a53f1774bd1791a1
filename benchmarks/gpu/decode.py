"""A decode step on the GPU with random weights: the whole step, and each kernel.

    python benchmarks/gpu/decode.py [--shape llama-3.1-8b[:int4]] [--context 1024 …] [--rows 1 …]

Steps are replayed graphs, timed by device events. The bandwidth ceiling is the fastest read
measured in the same run (cuBLAS GEMV of a large matrix).
"""

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch
from timing import captured, median_us

from swiftchat.cuda.gpu import Launch
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.gpu.bandwidth import bandwidth_ceiling_bytes_per_s
from swiftchat.engine.model.state_cache import bytes_per_sequence
from swiftchat.engine.schedule.sequence import TokenSequence

CUBINS = Path(tempfile.gettempdir(), "swiftchat-bench-cubins")


def load_rows(engine: Engine, num_rows: int, context: int, params: SamplingParams) -> None:
    """Load sequences of `context` computed tokens into the decode batch."""
    size = engine.config.block_size
    sequences = []
    for row in range(num_rows):
        sequence = TokenSequence(row, [5] * (context + 1), params)
        sequence.num_computed = context
        blocks = -(-min(context + 200, engine.ctx_size_tokens) // size)
        sequence.block_table = list(range(row * blocks, (row + 1) * blocks))
        assert (row + 1) * blocks <= engine.allocator.num_blocks
        sequence.state_slot, sequence.spare_slot = 2 * row, 2 * row + 1
        sequences.append(sequence)
    engine.graphs.decode.graphs.batch.load(sequences, [7] * num_rows)


def step_bytes(engine: Engine, num_rows: int, context: int) -> int:
    """Return the bytes that a step has to read, and those of states that it reads and writes.

    Of the experts, as many as rows choose that agree no more than by chance.
    """
    weights = engine.info.weights_bytes - engine.info.table_bytes
    config = engine.decoder.config
    if config.moe is not None:
        idle = (1 - config.moe.experts_per_token / config.moe.num_experts) ** num_rows
        weights -= int(idle * engine.info.expert_bytes)
    kv_bytes = sum(tensor.nbytes for tensor in engine.cache.tensors)
    num_tokens = engine.allocator.num_blocks * engine.config.block_size
    states = 2 * num_rows * bytes_per_sequence(config)
    return weights + num_rows * context * kv_bytes // num_tokens + states


def breakdown(engine: Engine, num_rows: int, ceiling: float) -> None:
    """Time each kernel of a step: all its launches in a graph of their own, in order."""
    gpu, kinds = engine.gpu, defaultdict(list)
    gpu.launches = []
    engine.graphs.decode.graphs.launch_kernels(num_rows)
    for launch in gpu.launches:
        kind = f"{launch.spec.name} {launch.spec.defines.get('EPILOGUE', '').lower()}"
        kinds[kind].append(launch)
    gpu.launches = None
    for kind, launches in kinds.items():
        if not kind.startswith("advance"):
            print_kind(kind, launches, ceiling)


def print_kind(kind: str, launches: list[Launch], ceiling: float) -> None:
    repeats = max(1, 8 // len(launches))

    def run() -> None:
        for launch in launches * repeats:
            launch.repeat()

    us = median_us(captured(run).replay) / repeats
    rate = sum(launch.num_bytes for launch in launches) / us * 1e6
    print(
        f"    {kind:24} {len(launches):3} x {us / len(launches):7.2f} us = {us:7.0f} us"
        f"   {rate / 1e12:.2f} TB/s {rate / ceiling:4.0%}"
    )


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-dtype", default="auto")
    parser.add_argument("--context", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--prefill", type=int, nargs="*", default=[])
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--breakdown", action="store_true")
    args = parser.parse_args()
    ceiling = bandwidth_ceiling_bytes_per_s(torch.device("cuda", 0))
    print(f"{torch.cuda.get_device_name()}; bandwidth ceiling {ceiling / 1e12:.2f} TB/s")
    longest = min(max([*args.context, *args.prefill, 1024]) + 512, 131_072)
    config = EngineConfig(
        device="cuda",
        dtype=args.dtype,
        dummy=args.shape,
        ctx_size_tokens=longest,
        cache_tokens=max(args.rows) * longest + 8192,
        max_num_seqs=max([*args.rows, 16]),
        kv_dtype=args.kv_dtype,
    )
    started = time.perf_counter()
    engine = build_engine(Path(), config, cubins=CUBINS)
    took, memory_gb = time.perf_counter() - started, torch.cuda.memory_allocated() / 1e9
    print(
        f"{args.shape}: ready in {took:.2f} s, of which {engine.gpu.compile_s:.2f} s compiling; "
        f"{memory_gb:.1f} GB"
    )
    elements, *scales = engine.cache.tensors
    if scales:  # these bytes are finite values in int8 and in fp8
        elements.random_(0, 100)
        scales[0].fill_(0.02)
    else:
        elements.normal_()
    params = SamplingParams(temperature=args.temperature)
    for tensor in engine.cache.states.tensors:
        tensor.normal_()
    for num_rows in args.rows:
        for context in args.context:
            load_rows(engine, num_rows, context, params)
            graph = engine.graphs.decode.graphs.graph(num_rows)
            us = median_us(graph.replay)
            moved = step_bytes(engine, num_rows, context)
            print(
                f"  rows {num_rows:2} context {context:6}: {us:7.0f} us a step, "
                f"{num_rows * 1e6 / us:7.1f} tok/s, {moved / us / 1e6:.2f} TB/s "
                f"{moved / us * 1e6 / ceiling:.0%}",
                flush=True,
            )
            if args.breakdown:
                breakdown(engine, num_rows, ceiling)
    for length in args.prefill:
        ms = prefill_ms(engine, length)
        print(f"  prefill {length}: {ms:.1f} ms, {length / ms * 1e3:.0f} tok/s", flush=True)
    measure_loop(engine)


def prefill_ms(engine: Engine, length: int) -> float:
    """Return the time of a prompt until its first token, by the host's clock, median of three."""
    times = []
    for i in range(4):
        # A unique first token, so that no cached prefix is reused.
        prompt = [(7 * j + i * 1000 + length + 11) % engine.vocab_size for j in range(length)]
        engine.add(i, prompt, SamplingParams(temperature=0, max_tokens=1))
        torch.cuda.synchronize()
        started = time.perf_counter()
        while engine.has_work:
            engine.step()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[1:])


def measure_loop(engine: Engine) -> None:
    """Tokens a second of the whole generation loop, in wall time."""
    engine.add(
        0, [11, 12, 13], SamplingParams(temperature=0.7, max_tokens=300, seed=1, speculate="off")
    )
    for _ in range(20):
        engine.step()
    torch.cuda.synchronize()
    started, count = time.perf_counter(), 0
    while engine.has_work:
        count += len(engine.step())
    print(f"  loop: {count / (time.perf_counter() - started):.1f} tok/s over {count} tokens")


if __name__ == "__main__":
    main()
