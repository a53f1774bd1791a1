"""All GPU figures of docs/performance.md in one run, as a Markdown table with their limits.

    python benchmarks/gpu/all.py [--only decode rows verification first prefill attention several]

Random weights in published shapes. Steps are replayed graphs with sampling, timed by device events,
median of 25; prompts are timed by the host's clock, first token included. The bandwidth ceiling is
measured in the same run. "several" needs at least two GPUs.
"""

import argparse
import gc
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from decode import CUBINS, load_rows, prefill_ms
from first_token import median_ms
from prefill_attention import ours, tflops, torchs
from timing import bandwidth_ceiling_bytes_per_s, median_us
from torch.nn.attention import SDPBackend
from tp import run_alone
from verification import verification

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.schedule.scheduler import Row, Sequence
from swiftchat.errors import SwiftchatError

SAMPLED = SamplingParams(temperature=0.7, top_p=0.95)
GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True)
class Figure:
    """A result in its unit; `of_ceiling` is the share of the bandwidth ceiling, if it means one."""

    name: str
    value: float
    unit: str
    of_ceiling: float | None = None
    limit: float | None = None

    def row(self) -> str:
        share = "" if self.of_ceiling is None else f"{self.of_ceiling:.0%}"
        limit = "" if self.limit is None else f"{self.limit:g}"
        return f"| {self.name} | {self.value:.4g} {self.unit} | {share} | {limit} |"


def dummy_engine(shape: str, context: int, rows: int = 1, **settings: object) -> Engine:
    gc.collect()
    torch.cuda.empty_cache()
    config = EngineConfig(
        device="cuda",
        dummy=shape,
        ctx_size_tokens=context + 512,
        cache_tokens=(rows + 1) * (context + 512),
        max_num_seqs=max(rows, 16),
        **settings,  # type: ignore[arg-type]
    )
    return build_engine(Path(), config, cubins=CUBINS)


def step_us(engine: Engine, rows: int, context: int) -> float:
    load_rows(engine, rows, context, SAMPLED)
    return median_us(engine.graph_decode.runner.graph(rows).replay)


def decode(ceiling: float) -> Iterator[Figure]:
    """A step of one and of eight rows, by shape and weights; limits of one row."""
    for shape, context, limit in (
        ("llama-3.1-8b", 1024, 3700),
        ("llama-3.1-8b:int8", 1024, 2050),
        ("llama-3.1-8b:fp8", 1024, 2050),
        ("llama-3.1-8b:int4", 1024, 1400),
        ("llama-3.2-1b", 1024, 710),
        ("llama-3.2-1b:int4", 1024, 400),
        ("smollm2-135m", 128, 333),
    ):
        engine = dummy_engine(shape, context, 8)
        one = step_us(engine, 1, context)
        weights = engine.info.weights_bytes - engine.info.table_bytes
        share = weights / one * 1e6 / ceiling
        yield Figure(f"{shape}, {context} tokens, 1 row", one, "µs", share, limit)
        eight = step_us(engine, 8, context)
        yield Figure(f"{shape}, 8 rows", eight, "µs")
        yield Figure(f"{shape}, 8 rows / 1 row", eight / one, "×", limit=1.12)
        del engine


def many_rows(ceiling: float) -> Iterator[Figure]:
    for shape in ("llama-3.1-8b", "llama-3.1-8b:int4"):
        engine = dummy_engine(shape, 768, 256)
        for rows in (16, 32, 64, 128, 256):
            us = step_us(engine, rows, 768)
            yield Figure(f"{shape}, 768 tokens, {rows} rows", us, "µs")
        del engine


def verified_rows(ceiling: float) -> Iterator[Figure]:
    """Verification steps of one sequence, relative to a step of one row."""
    limits = {("llama-3.1-8b", 5): 1.08, ("llama-3.1-8b", 9): 1.15, ("llama-3.1-8b:int4", 5): 1.25}
    for shape in ("llama-3.1-8b", "llama-3.1-8b:int4"):
        engine = dummy_engine(shape, 1024)
        one = step_us(engine, 1, 1024)
        runner = verification(engine).runner
        sequence = Sequence(0, [5] * 1025, GREEDY)
        sequence.num_computed = 1024
        sequence.block_table = list(range(-(-1064 // engine.config.block_size)))
        for rows in (2, 5, 8, 9):
            runner.batch.load_rows([Row(sequence, 1, (5,) * (rows - 1))], [7])
            us = median_us(runner.graph(rows).replay)
            name = f"{shape}, verification of {rows} rows / 1 row"
            yield Figure(name, us / one, "×", limit=limits.get((shape, rows)))
        del engine, runner


def first_tokens(ceiling: float) -> Iterator[Figure]:
    engine = dummy_engine("llama-3.1-8b", 30_000)
    while engine.can_prepare:
        engine.prepare()
    prefix = random.Random(0).choices(range(1, engine.vocab_size), k=30_000)
    for cached, tokens, limit in (([], 64, 8), (prefix, 30, 10)):
        name = f"llama-3.1-8b, first token of {tokens} after {len(cached)} cached tokens"
        yield Figure(name, median_ms(engine, cached, tokens, 5), "ms", limit=limit)


def prefill(ceiling: float) -> Iterator[Figure]:
    schemes = {"": 215, ":int8": None, ":int4": None, ":fp8": None, ":w8a8-fp8": 164}
    for scheme, limit in schemes.items():
        engine = dummy_engine(f"llama-3.1-8b{scheme}", 8192)
        name = f"llama-3.1-8b{scheme}, prefill of 8192 tokens"
        yield Figure(name, prefill_ms(engine, 8192), "ms", limit=limit)
        del engine


def attention(ceiling: float) -> Iterator[Figure]:
    """Prefill attention, causal, of 32 query heads and 8 KV heads in bf16."""
    gpu = Gpu(torch.device("cuda", 0), CubinCache(CUBINS))
    path = "wgmma" if gpu.arch == "sm_90a" else "mma"
    for dim in (64, 128, 256):
        for length, limit in ((2048, 350), (8192, 600)):
            runs: dict[str, Callable[[], object]] = {"ours": ours(gpu, length, path, dim)}
            runs["cuDNN"] = torchs(length, SDPBackend.CUDNN_ATTENTION, dim)
            for who, run in runs.items():
                rate = tflops(length, median_us(run), dim)
                name = f"attention, head size {dim}, {length} tokens, {who}"
                yield Figure(
                    name, rate, "TFLOP/s", limit=limit if (who, dim) == ("ours", 128) else None
                )


def several(ceiling: float) -> Iterator[Figure]:
    """Tensor parallelism, in processes of their own."""
    limits = {("llama-3.1-8b", 2): 2.05, ("llama-3.1-8b", 4): 1.22, ("llama-3.1-70b", 4): 9.2}
    for tp in (2, 4):
        for shape in ("llama-3.1-8b", "llama-3.1-8b:int4", "llama-3.1-70b"):
            if tp > torch.cuda.device_count() or (shape == "llama-3.1-70b" and tp < 4):
                continue
            found = run_alone(tp, 1, shape, [1024], 1)
            limit = limits.get((shape, tp))
            if "failed" in found:
                raise RuntimeError(f"{shape}, --tp {tp}: ended with code {found['failed']}")
            step_ms, start_s = float(found["ms a step at 1024"]), float(found["start_s"])
            yield Figure(f"{shape}, --tp {tp}", step_ms, "ms", limit=limit)
            yield Figure(f"{shape}, --tp {tp}, start", start_s, "s")


SECTIONS: dict[str, Callable[[float], Iterator[Figure]]] = {
    "decode": decode,
    "rows": many_rows,
    "verification": verified_rows,
    "first": first_tokens,
    "prefill": prefill,
    "attention": attention,
    "several": several,
}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    only = parser.parse_args().only
    ceiling = bandwidth_ceiling_bytes_per_s(torch.device("cuda", 0))
    assert ceiling is not None, "no memory for the measurement of the bandwidth ceiling"
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {ceiling / 1e12:.2f} TB/s")
    print("\n| figure | result | of the ceiling | limit |\n|---|---|---|---|")
    for section in only:
        started = time.perf_counter()
        try:
            for figure in SECTIONS[section](ceiling):
                print(figure.row(), flush=True)
        except SwiftchatError as error:  # the other sections still count
            print(f"| {section}: {error} | | | |", flush=True)
        print(f"| ({section} took {time.perf_counter() - started:.0f} s) | | | |", flush=True)


if __name__ == "__main__":
    main()
