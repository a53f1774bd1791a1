"""Tokens per second of many sequences at a time with random weights, beside transformers.

    python benchmarks/gpu/batch.py [--shape llama-3.1-8b] [--rows 1 8 …] [--input 512]

The sequences of a run have different prompts of the same length and begin together, as lines of
`swiftchat batch`. The peer is the continuous batching of transformers (`generate_batch`) on a
model of the same shape, a Llama, in the same run; `--no-peer` leaves it out. Each number of
sequences runs twice, and the second run counts: the first compiles kernels and captures graphs.
"""

import argparse
import gc
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Tokens
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.errors import SwiftchatError
from swiftchat.weights.model.dummy import DUMMY_CONFIGS

CUBINS = Path(tempfile.gettempdir(), "swiftchat-bench-cubins")
Prompts = list[list[int]]


def run_engine(engine: Engine, prompts: Prompts, num_tokens: int) -> tuple[float, float, int]:
    """Answer all prompts; return seconds to the last first token, seconds in all, and tokens."""
    params = SamplingParams(temperature=0, max_tokens=num_tokens, speculate="off")
    started = time.perf_counter()
    for i, prompt in enumerate(prompts):
        engine.add(i, prompt, params)
    begun: set[int] = set()
    found, first_s = 0, 0.0
    while engine.has_work:
        for i, event in engine.step():
            if isinstance(event, SwiftchatError):
                raise event
            if isinstance(event, Tokens):
                found += len(event.ids)
                if i not in begun:
                    begun.add(i)
                    first_s = time.perf_counter() - started
    return first_s, time.perf_counter() - started, found


def measure_engine(arguments: argparse.Namespace, vocab_size: int) -> None:
    context = arguments.input + arguments.output + 1
    most, size = max(arguments.rows), EngineConfig.block_size
    config = EngineConfig(
        device=arguments.device,
        dtype=arguments.dtype,
        dummy=arguments.shape,
        ctx_size_tokens=context,
        cache_tokens=(most + 1) * (-(-context // size) + 1) * size,
        max_num_seqs=most,
    )
    engine = build_engine(Path(), config, cubins=CUBINS)
    for num_rows in arguments.rows:
        for run in range(2):  # other prompts, which the prefix cache does not have
            prompts = random_prompts(num_rows, arguments.input, vocab_size, run)
            first_s, total_s, found = run_engine(engine, prompts, arguments.output)
        decode = (found - num_rows) / max(total_s - first_s, 1e-9)
        print(
            f"engine: {num_rows} sequences: {found / total_s:.0f} tok/s in all, {total_s:.2f} s; "
            f"all prompts after {first_s:.2f} s, then {decode:.0f} tok/s",
            flush=True,
        )


def measure_peer(arguments: argparse.Namespace, fields: dict[str, object]) -> None:
    """Print the same for transformers; say so if it cannot run."""
    try:
        import transformers
        from transformers.generation import continuous_batching  # noqa: F401  (newer versions)
    except ImportError as error:
        print(f"transformers: {error}")
        return
    torch.manual_seed(0)
    others = ("architectures", "model_type", "torch_dtype")
    config = transformers.LlamaConfig(**{k: v for k, v in fields.items() if k not in others})
    with torch.device(arguments.device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, arguments.dtype)
        ).eval()
    greedy = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=arguments.output, eos_token_id=-1, pad_token_id=0
    )
    settings = None
    if arguments.device == "cpu":  # by default the cache takes most of the memory
        context = arguments.input + arguments.output
        settings = transformers.ContinuousBatchingConfig(
            num_blocks=max(arguments.rows) * (-(-context // 32) + 1), max_batch_tokens=256
        )
    generate: Callable[..., dict[str, object]] = model.generate_batch
    for num_rows in arguments.rows:
        for run in range(2):
            prompts = random_prompts(num_rows, arguments.input, config.vocab_size, run)
            started = time.perf_counter()
            answers = generate(
                prompts, generation_config=greedy, continuous_batching_config=settings
            )
            total_s = time.perf_counter() - started
        found = sum(len(one.generated_tokens) for one in answers.values())  # type: ignore[attr-defined]
        print(
            f"transformers: {num_rows} sequences: {found / total_s:.0f} tok/s in all, "
            f"{total_s:.2f} s, {found} tokens",
            flush=True,
        )


def random_prompts(num_rows: int, length: int, vocab_size: int, seed: int) -> Prompts:
    rng = random.Random(seed * 1000 + num_rows)
    return [[rng.randrange(3, vocab_size) for _ in range(length)] for _ in range(num_rows)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="llama-3.1-8b", help="a known name, or a config.json")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64, 128, 256])
    parser.add_argument("--input", type=int, default=512)
    parser.add_argument("--output", type=int, default=512)
    parser.add_argument("--no-peer", action="store_true")
    found = parser.parse_args(arguments)
    fields = dict(DUMMY_CONFIGS.get(found.shape) or json.loads(Path(found.shape).read_text()))
    device = torch.cuda.get_device_name() if found.device == "cuda" else found.device
    print(f"{device}, torch {torch.__version__}, {found.shape} in {found.dtype}")
    measure_engine(found, int(fields["vocab_size"]))
    if not found.no_peer:
        gc.collect()
        if found.device == "cuda":
            torch.cuda.empty_cache()
        measure_peer(found, fields)


if __name__ == "__main__":
    main()
