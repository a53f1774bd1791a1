"""A step of beam search on the GPU, beside one of greedy decoding, with random weights.

    python benchmarks/gpu/beams.py [--shape llama-3.1-8b[:int4]] [--beams 4 8] [--prompt 1024]

Times are those of the host's clock, median of the steps of an answer: beam search chooses the beams
on the host, between two steps.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.errors import SwiftchatError

CUBINS = Path(tempfile.gettempdir(), "swiftchat-bench-cubins")


def step_ms(engine: Engine, prompt: list[int], num_tokens: int, beams: int | None) -> float:
    """Return the median time of a step after the first ones, which capture graphs."""
    params = SamplingParams(temperature=0, max_tokens=num_tokens, beams=beams, speculate="off")
    engine.add(0, prompt, params)
    times: list[float] = []
    while engine.has_work:
        started = time.perf_counter()
        for _, event in engine.step():
            if isinstance(event, SwiftchatError):
                raise event
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times[len(times) // 2 :])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--beams", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of the answer")
    found = parser.parse_args(arguments)
    most = max(found.beams)
    context = found.prompt + found.tokens + 64
    config = EngineConfig(
        device=found.device,
        dummy=found.shape,
        ctx_size_tokens=context,
        cache_tokens=(most + 1) * context,
        max_num_seqs=most,
    )
    engine = build_engine(Path(), config, cubins=CUBINS)
    rng = random.Random(0)
    prompt = [rng.randrange(3, engine.vocab_size) for _ in range(found.prompt)]
    device = torch.cuda.get_device_name() if found.device == "cuda" else found.device
    print(f"{device}, torch {torch.__version__}, {found.shape}, {found.prompt} tokens of prompt")
    plain = step_ms(engine, prompt, found.tokens, None)
    print(f"greedy: {plain:.3f} ms a step", flush=True)
    for beams in found.beams:
        beam = step_ms(engine, prompt, found.tokens, beams)
        print(f"{beams} beams: {beam:.3f} ms a step, {beam / plain:.2f} of greedy", flush=True)


if __name__ == "__main__":
    main()
