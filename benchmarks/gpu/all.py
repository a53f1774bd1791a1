"""All GPU figures of docs/performance-gpu.md in one run, as a Markdown table with their limits.

    python benchmarks/gpu/all.py [--only llama-3.1-8b … attention several]

Random weights in published shapes; one engine a shape gives all its figures. Steps are replayed
graphs with sampling, timed by device events, median of 25; prompts are timed by the host's clock,
first token included. The bandwidth ceiling is measured in the same run. "several" needs at least
two GPUs.
"""

import argparse
import gc
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from decode import CUBINS, load_rows, prefill_ms, step_bytes
from first_token import median_ms
from prefill_attention import layer_us, ours, tflops, torchs
from timing import median_us
from torch.nn.attention import SDPBackend
from tp import run_alone
from verification import verification

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.gpu.bandwidth import bandwidth_ceiling_bytes_per_s
from swiftchat.engine.schedule.sequence import Row, TokenSequence
from swiftchat.errors import SwiftchatError

SAMPLED = SamplingParams(temperature=0.7, top_p=0.95)
GREEDY = SamplingParams(temperature=0)
CONTEXT = 1024  # tokens, of decode and verification steps

# The largest accepted value of a figure; of TFLOP/s, the smallest.
LIMITS = {
    "llama-3.1-8b, 1 row": 3700,
    "llama-3.1-8b, 8 rows / 1 row": 1.12,
    "llama-3.1-8b, 16 rows": 4400,
    "llama-3.1-8b, verification of 5 rows / 1 row": 1.08,
    "llama-3.1-8b, verification of 9 rows / 1 row": 1.15,
    "llama-3.1-8b, first token of 64 after 0 cached tokens": 8,
    "llama-3.1-8b, first token of 30 after 30000 cached tokens": 10,
    "llama-3.1-8b, prefill of 8192 tokens": 215,
    "llama-3.1-8b:int8, 1 row": 2050,
    "llama-3.1-8b:int8, 8 rows / 1 row": 1.15,
    "llama-3.1-8b:fp8, 1 row": 2050,
    "llama-3.1-8b:int4, 1 row": 1400,
    "llama-3.1-8b:int4, 8 rows / 1 row": 1.25,
    "llama-3.1-8b:int4, verification of 5 rows / 1 row": 1.25,
    "llama-3.1-8b:w8a8-fp8, prefill of 8192 tokens": 164,
    "llama-3.2-1b, 1 row": 710,
    "llama-3.2-1b:int4, 1 row": 400,
    "smollm2-135m, 1 row": 333,
    "qwen3-30b-a3b, 1 row": 2200,
    "gpt-oss-20b:mxfp4, 1 row": 2857,
    "attention, head size 128, 2048 tokens, ours": 350,
    "attention, head size 128, 8192 tokens, ours": 600,
    "llama-3.1-8b, --tp 2": 2.05,
    "llama-3.1-8b, --tp 4": 1.22,
    "llama-3.1-8b:int4, --tp 4": 0.70,
    "llama-3.1-70b, --tp 4": 9.2,
}


@dataclass(frozen=True)
class Figure:
    """A result in its unit; `of_ceiling` is the share of the bandwidth ceiling, if it means one."""

    name: str
    value: float
    unit: str
    of_ceiling: float | None = None

    def row(self) -> str:
        share = "" if self.of_ceiling is None else f"{self.of_ceiling:.0%}"
        limit = f"{LIMITS[self.name]:g}" if self.name in LIMITS else ""
        return f"| {self.name} | {self.value:.4g} {self.unit} | {share} | {limit} |"


@dataclass(frozen=True)
class Subject:
    """An engine with a shape, and the bandwidth ceiling in bytes a second."""

    shape: str
    engine: Engine
    ceiling: float


def step_us(engine: Engine, rows: int, context: int) -> float:
    load_rows(engine, rows, context, SAMPLED)
    return median_us(engine.graphs.decode.graphs.graph(rows).replay)


def decode(of: Subject) -> Iterator[Figure]:
    """Steps of one and of eight rows."""
    one, eight = (step_us(of.engine, rows, CONTEXT) for rows in (1, 8))
    share = step_bytes(of.engine, 1, CONTEXT) / one * 1e6 / of.ceiling
    yield Figure(f"{of.shape}, 1 row", one, "µs", share)
    yield Figure(f"{of.shape}, 8 rows", eight, "µs")
    yield Figure(f"{of.shape}, 8 rows / 1 row", eight / one, "×")


def many_rows(of: Subject) -> Iterator[Figure]:
    for rows in (16, 32, 64, 128, 256):
        yield Figure(f"{of.shape}, {rows} rows", step_us(of.engine, rows, 768), "µs")


def verified_rows(of: Subject) -> Iterator[Figure]:
    """Verification steps of one sequence, relative to a step of one row."""
    engine = of.engine
    one = step_us(engine, 1, CONTEXT)
    graphs = verification(engine).graphs
    sequence = TokenSequence(0, [5] * (CONTEXT + 1), GREEDY)
    sequence.num_computed = CONTEXT
    sequence.block_table = list(range(-(-(CONTEXT + 40) // engine.config.block_size)))
    for rows in (2, 5, 8, 9):
        graphs.batch.load_rows([Row(sequence, 1, (5,) * (rows - 1))], [7])
        us = median_us(graphs.graph(rows).replay)
        yield Figure(f"{of.shape}, verification of {rows} rows / 1 row", us / one, "×")


def first_tokens(of: Subject) -> Iterator[Figure]:
    engine = of.engine
    while engine.can_prepare:
        engine.prepare()
    prefix = random.Random(0).choices(range(1, engine.vocab_size), k=30_000)
    for cached, tokens in (([], 64), (prefix, 30)):
        name = f"{of.shape}, first token of {tokens} after {len(cached)} cached tokens"
        yield Figure(name, median_ms(engine, cached, tokens, 5), "ms")


def prefill(of: Subject) -> Iterator[Figure]:
    yield Figure(f"{of.shape}, prefill of 8192 tokens", prefill_ms(of.engine, 8192), "ms")


SUBJECTS: dict[str, tuple[Callable[[Subject], Iterator[Figure]], ...]] = {
    "llama-3.1-8b": (decode, verified_rows, prefill, first_tokens, many_rows),
    "llama-3.1-8b:int8": (decode, prefill),
    "llama-3.1-8b:fp8": (decode, prefill),
    "llama-3.1-8b:int4": (decode, verified_rows, prefill, many_rows),
    "llama-3.1-8b:w8a8-fp8": (prefill,),
    "llama-3.2-1b": (decode,),
    "llama-3.2-1b:int4": (decode,),
    "smollm2-135m": (decode,),
    "qwen3-30b-a3b": (decode,),
    "gpt-oss-20b:mxfp4": (decode,),
    "deepseek-v2-lite": (decode,),
    "granite-4-h-tiny": (decode,),
    "gemma-3-4b": (decode,),
    "qwen3-next-80b-a3b:int4": (decode,),
    "llama-3.1-8b:nvfp4": (decode, prefill),
    "qwen3-30b-a3b:nvfp4": (decode,),
}


def figures_of(shape: str, ceiling: float) -> Iterator[Figure]:
    """Build one engine and measure everything with it."""
    gc.collect()
    torch.cuda.empty_cache()
    kinds = SUBJECTS[shape]
    rows = 256 if many_rows in kinds else 16
    context = 30_512 if first_tokens in kinds else 8704 if prefill in kinds else 2 * CONTEXT
    config = EngineConfig(
        device="cuda",
        dummy=shape,
        ctx_size_tokens=context,
        cache_tokens=max(rows * 1024, 2 * context),
        max_num_seqs=rows,
    )
    engine = build_engine(Path(), config, cubins=CUBINS)
    for kind in kinds:
        yield from kind(Subject(shape, engine, ceiling))


def attention() -> Iterator[Figure]:
    """Prefill attention, causal, of 32 query heads and 8 KV heads in bf16."""
    gpu = Gpu(torch.device("cuda", 0), CubinCache(CUBINS))
    path = "wgmma" if gpu.arch == "sm_90a" else "mma"
    for dim in (64, 128, 256):
        for length in (2048, 8192):
            runs: dict[str, Callable[[], object]] = {"ours": ours(gpu, length, path, dim)}
            runs["cuDNN"] = torchs(length, SDPBackend.CUDNN_ATTENTION, dim)
            for who, run in runs.items():
                rate = tflops(length, layer_us(run, length), dim)
                name = f"attention, head size {dim}, {length} tokens, {who}"
                yield Figure(name, rate, "TFLOP/s")


def several() -> Iterator[Figure]:
    """Tensor parallelism, in processes of their own."""
    for tp in (2, 4):
        for shape in ("llama-3.1-8b", "llama-3.1-8b:int4", "llama-3.1-70b"):
            if tp > torch.cuda.device_count() or (shape == "llama-3.1-70b" and tp < 4):
                continue
            found = run_alone(tp, 1, shape, [CONTEXT], 1)
            if "failed" in found:
                raise RuntimeError(f"{shape}, --tp {tp}: ended with code {found['failed']}")
            step_ms, start_s = float(found["ms a step at 1024"]), float(found["start_s"])
            yield Figure(f"{shape}, --tp {tp}", step_ms, "ms")
            yield Figure(f"{shape}, --tp {tp}, start", start_s, "s")


@torch.inference_mode()
def main() -> None:
    names = [*SUBJECTS, "attention", "several"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    only = parser.parse_args().only
    ceiling = bandwidth_ceiling_bytes_per_s(torch.device("cuda", 0))
    assert ceiling is not None, "no memory for the measurement of the bandwidth ceiling"
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {ceiling / 1e12:.2f} TB/s")
    print("\n| figure | result | of the ceiling | limit |\n|---|---|---|---|")
    others = {"attention": attention, "several": several}
    for name in only:
        started = time.perf_counter()
        try:
            for figure in others[name]() if name in others else figures_of(name, ceiling):
                print(figure.row(), flush=True)
        except SwiftchatError as error:  # the other figures still count
            print(f"| {name}: {error} | | | |", flush=True)
        print(f"| ({name} took {time.perf_counter() - started:.0f} s) | | | |", flush=True)


if __name__ == "__main__":
    main()
