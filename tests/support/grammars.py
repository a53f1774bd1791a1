"""A vocabulary of bytes for tiny random models of 128 ids, and grammars of their answers."""

from collections.abc import Sequence

from llguidance import LLMatcher

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Finished, Tokens
from swiftchat.engine.api.vocabulary import ConstraintSpec, Vocabulary
from swiftchat.engine.generation.engine import Engine
from swiftchat.errors import SwiftchatError

STOP = 0
# As many as the model has ids, less one: the last id has no piece.
PIECES = (b"<stop>", *(bytes([i]) for i in range(1, 127)))
VOCABULARY = Vocabulary(PIECES, special=(STOP,), stop_ids=(STOP,))
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 22, 333]}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
COMPACT = {"whitespace_flexible": False}
JSON = ConstraintSpec(LLMatcher.grammar_from_json_schema(SCHEMA, overrides=COMPACT), VOCABULARY)
DIGITS = ConstraintSpec(LLMatcher.grammar_from_regex("[0-9]{4,9}"), VOCABULARY)
# Mostly forced, about 50 tokens.
LONG = ConstraintSpec(
    '{"grammars": [{"lark_grammar": "start: \\"measured_temperature: \\" /[0-9]/ \\" degrees\\" '
    '(\\", approximately\\" | \\", exactly as the sensor said\\")"}]}',
    VOCABULARY,
)

Ends = dict[int, Finished | SwiftchatError]


def params(seed: int) -> SamplingParams:
    return SamplingParams(temperature=1.5, top_p=1, seed=seed, stop_ids=(STOP,), max_tokens=150)


def text(ids: Sequence[int]) -> str:
    return b"".join(PIECES[i] for i in ids).decode()


def run(
    engine: Engine,
    requests: Sequence[tuple[Sequence[int], SamplingParams, ConstraintSpec | None]],
) -> tuple[list[list[int]], Ends]:
    """Generate for all requests together; return the ids of each, and final events by index."""
    ids: list[list[int]] = [[] for _ in requests]
    ends: Ends = {}
    for i, (prompt, sampling, spec) in enumerate(requests):
        engine.add(i, list(prompt), sampling, spec)
    while engine.has_work:
        for i, event in engine.step():
            engine.scheduler.check_integrity()
            if isinstance(event, Tokens):
                ids[i] += event.ids
            elif isinstance(event, Finished | SwiftchatError):
                ends[i] = event
    return ids, ends
