"""Decode steps of answers with a JSON schema beside plain ones, with random weights on a GPU.

    python benchmarks/gpu/grammar.py TOKENIZER [--shape llama-3.1-8b] [--rows 1 8] [--tokens 120]

TOKENIZER is a model directory or a vocabulary file whose ids the model has. Prints ms per token by
the host clock, from the first token to the last: plain, with masks applied on the device, and with
the host as sampler; also the time that the host takes for one mask, and for one answer with forced
tokens in captured chunks.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Tokens
from swiftchat.engine.api.vocabulary import ConstraintSpec, Vocabulary
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.schedule.constraint import Constraint
from swiftchat.engine.schedule.token_trie import TokenTrie
from swiftchat.tokenizer import Tokenizer

CUBINS = Path(tempfile.gettempdir(), "swiftchat-bench-cubins")
# As many objects as the answer has room for.
SCHEMA = {
    "type": "array",
    "minItems": 1000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "kind": {"enum": ["circle", "square", "triangle"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 9}, "maxItems": 3},
        },
        "required": ["name", "age", "kind", "tags"],
        "additionalProperties": False,
    },
    "x-guidance": {"whitespace_pattern": "( |\n {0,24})?"},
}


def ms_per_token(
    engine: Engine, num_rows: int, num_tokens: int, spec: ConstraintSpec | None
) -> float:
    """Return the median of five runs, all rows together."""
    found = []
    for run in range(6):
        for row in range(num_rows):
            prompt = [(31 * run + 7 * row + i * i) % 90_000 for i in range(64)]
            params = SamplingParams(
                temperature=0.7, max_tokens=num_tokens, seed=row, speculate="off"
            )
            engine.add(row, prompt, params, spec)
        times = []
        while engine.has_work:
            events = engine.step()
            if any(isinstance(event, Tokens) for _, event in events):
                times.append(time.perf_counter())
        found.append((times[-1] - times[0]) / (num_tokens - 1) * 1e3)
    return statistics.median(found[1:])


def mask_us(trie: TokenTrie, spec: ConstraintSpec, text_ids: list[int]) -> list[float]:
    """Return the times of the masks along a text, in µs."""
    constraint, found = Constraint(trie, spec.grammar, len(trie.vocabulary.pieces)), []
    for token in text_ids:
        started = time.perf_counter()
        constraint.accept(token)
        found.append((time.perf_counter() - started) * 1e6)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--tokens", type=int, default=120)
    args = parser.parse_args()
    tokenizer = Tokenizer.load(args.tokenizer)
    pieces, special = tuple(tokenizer.token_bytes()), tuple(tokenizer.special_tokens.values())
    vocabulary = Vocabulary(pieces, special, tokenizer.eos_ids or special[:1])
    spec = ConstraintSpec(json.dumps({"grammars": [{"json_schema": SCHEMA}]}), vocabulary)
    person = {"name": "Ada Lovelace", "age": 36, "kind": "circle", "tags": ["first", "program"]}
    times = mask_us(TokenTrie(vocabulary), spec, tokenizer.encode(json.dumps([person] * 3)[:-2]))
    print(f"mask: median {statistics.median(times):.0f} us, longest {max(times):.0f} us")
    config = EngineConfig(
        device="cuda",
        dummy=args.shape,
        ctx_size_tokens=2048,
        cache_tokens=2048 * max(args.rows),
        max_num_seqs=max(args.rows),
    )
    engine = build_engine(Path(), config, cubins=CUBINS)
    assert engine.graphs.decode is not None
    for num_rows in args.rows:
        plain = ms_per_token(engine, num_rows, args.tokens, None)
        masked = ms_per_token(engine, num_rows, args.tokens, spec)
        launch = engine.graphs.decode._launch
        engine.graphs.decode._launch = lambda *_: False  # type: ignore[method-assign]
        by_host = ms_per_token(engine, num_rows, args.tokens, spec)
        engine.graphs.decode._launch = launch  # type: ignore[method-assign]
        print(
            f"{num_rows:2} rows, ms per token: plain {plain:.3f}, schema {masked:.3f} "
            f"({masked / plain - 1:+.1%}), schema sampled by the host {by_host:.3f} "
            f"({by_host / plain - 1:+.1%})",
            flush=True,
        )
    while engine.can_prepare:
        engine.prepare()
    forwarded = ms_per_token(engine, 1, args.tokens, spec)
    print(f" 1 row, schema, with fast-forward: {forwarded:.3f} ms per token")


if __name__ == "__main__":
    main()
