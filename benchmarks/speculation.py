"""Decoding with and without speculation, on the tasks of speculation_tasks.txt and on open chat.

    python benchmarks/speculation.py MODEL [--draft MODEL|HEADS] [--speculate auto|draft|ngram]

MODEL is a model directory or a GGUF file, HEADS a directory of prediction heads. Each task is
answered in turns without and with speculation, `--repeats` times; the fastest decode of each
counts, because other programs only slow it down. Answers of a CPU engine with native kernels must
be equal.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Finished, Speculated, Tokens
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.heads.open import are_heads
from swiftchat.weights.store import default_store

TASKS = Path(__file__).with_name("speculation_tasks.txt")
OPEN_CHAT = (
    "Tell me about the history of Rome.",
    "What should I consider when I buy a bicycle?",
    "Write a short story about a fox and a clock.",
    "Explain how a refrigerator works.",
)


@dataclass
class Run:
    """One answer: its ids, its decode steps' duration, and what speculation did."""

    ids: list[int]
    decode_s: float
    speculated: Speculated | None


def tasks() -> dict[str, str]:
    """Return the prompts by name."""
    parts = TASKS.read_text("utf-8").split("\n=== ")[1:]
    return {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in parts}


def answer(engine: Engine, key: int, prompt: Sequence[int], params: SamplingParams) -> Run:
    engine.add(key, list(prompt), params)
    ids: list[int] = []
    end: Finished | None = None
    while engine.has_work:
        for _, event in engine.step():
            if isinstance(event, Tokens):
                ids += event.ids
            elif isinstance(event, Finished):
                end = event
    assert end is not None
    return Run(ids, end.decode_s, end.speculated)


def compare(
    engine: Engine, prompts: dict[str, list[int]], params: SamplingParams, repeats: int
) -> None:
    """Print a line for each prompt, and the sums."""
    plain_s = speculative_s = 0.0
    num_tokens = num_equal = num_proposed = num_accepted = num_steps = key = 0
    for name, prompt in prompts.items():
        best: dict[str, Run] = {}
        key += 1  # all runs find the prompt in the prefix cache, and so start from the same bits
        answer(engine, key, prompt, replace(params, max_tokens=1))
        for _ in range(repeats):
            for mode in ("off", params.speculate):
                key += 1
                run = answer(engine, key, prompt, replace(params, speculate=mode))
                if mode not in best or run.decode_s < best[mode].decode_s:
                    best[mode] = run
        plain, fast = best["off"], best[params.speculate]
        found = fast.speculated or Speculated("none", 0, 0, 0, 1.0)
        n = len(plain.ids)
        rates = n / plain.decode_s, len(fast.ids) / fast.decode_s
        print(
            f"{name:18} {n:4} tokens  plain {rates[0]:6.0f}/s  speculative {rates[1]:6.0f}/s  "
            f"{rates[1] / rates[0]:5.2f} x  accepted {found.num_accepted:3}/{found.num_proposed:3}"
            f"  estimated {found.gain:4.2f} x{'' if plain.ids == fast.ids else '  other text'}"
        )
        num_equal += plain.ids == fast.ids
        num_tokens += n
        plain_s += plain.decode_s
        speculative_s += fast.decode_s * n / len(fast.ids)
        num_proposed += found.num_proposed
        num_accepted += found.num_accepted
        num_steps += found.num_steps
    print(
        f"all: {num_tokens} tokens, plain {num_tokens / plain_s:.0f}/s, speculative "
        f"{num_tokens / speculative_s:.0f}/s: {plain_s / speculative_s:.2f} x; acceptance rate "
        f"{num_accepted / max(1, num_proposed):.2f}, {num_accepted / max(1, num_steps):.2f} "
        f"accepted tokens a verification step; {num_equal} of {len(prompts)} texts equal"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype")
    parser.add_argument("--draft")
    parser.add_argument("--speculate", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    path = default_store().resolve(args.model)
    draft = args.draft
    if draft is not None and not are_heads(Path(draft)):
        draft = str(default_store().resolve(draft))
    config = EngineConfig(
        device=args.device,
        dtype=args.dtype,
        ctx_size_tokens=2048,
        num_threads=args.threads,
        draft=draft,
    )
    engine, tokenizer = build_engine(path, config), Tokenizer.load(path)
    print(engine.info.device)
    params = SamplingParams(
        temperature=args.temperature,
        max_tokens=args.max_tokens,
        seed=1,
        speculate=args.speculate,
        stop_ids=tuple(tokenizer.eos_ids),
    )

    def encoded(text: str) -> list[int]:
        return list(tokenizer.prompt([{"role": "user", "content": text}]).ids)

    compare(engine, {n: encoded(t) for n, t in tasks().items()}, params, args.repeats)
    chats = {f"chat-{i}": encoded(text) for i, text in enumerate(OPEN_CHAT)}
    compare(engine, chats, params, args.repeats)


if __name__ == "__main__":
    main()
