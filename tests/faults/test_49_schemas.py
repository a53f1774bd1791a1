"""Fault 49: a schema or a grammar cannot be met, or asks for what is not supported.

Required: exit code 2 with the place in the schema, before anything is loaded; an answer never
violates a schema that was accepted.

Provoked by: schemas with keywords that cannot be enforced and with bounds that exclude each other,
wrong regular expressions and grammars, and answers of a tiny random model at temperature 1.5 to 230
schemas.
"""

import json
from pathlib import Path

import jsonschema
import pytest

from swiftchat.chat.model.output_format import OutputFormat, output_grammar, schema_format
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Finished
from swiftchat.engine.api.vocabulary import ConstraintSpec, Vocabulary
from swiftchat.errors import UsageError
from tests.support import grammars, tiny
from tests.support.json_schemas import REFUSED, Schema, schemas
from tests.support.program import Program, assert_error
from tests.support.worker_processes import WIDE

STOP = 256
WORDS = (b'{"', b'":', b'": ', b'", "', b"true", b"null", b"[]", b"}\n", b"\n  ", b"prop", b"12")
PIECES = (*(bytes([i]) for i in range(256)), b"<stop>", *WORDS)
VOCABULARY = Vocabulary(PIECES, (STOP,), (STOP,))


def spec(form: OutputFormat) -> ConstraintSpec:
    return ConstraintSpec(output_grammar(form, None, {}, is_thinking=False), VOCABULARY)


def request(schema: Schema, seed: int) -> tuple[list[int], SamplingParams, ConstraintSpec]:
    params = SamplingParams(temperature=1.5, stop_ids=(STOP,), max_tokens=250, seed=seed)
    return tiny.random_ids(4), params, spec(schema_format(json.dumps(schema)))


def test_every_answer_matches_its_schema(tmp_path: Path) -> None:
    """Or it reached the limit of tokens, which a command reports with exit code 5."""
    tiny.make("llama", tmp_path, **{**WIDE, "vocab_size": 300})
    engine = tiny.engine(tmp_path, max_num_seqs=16, cache_tokens=8192, block_size=16)
    wanted = list(schemas())
    requests = [request(schema, seed) for seed, schema in enumerate(wanted)]
    assert len(requests) >= 200
    ids, ends = grammars.run(engine, requests)
    incomplete = []
    for i, schema in enumerate(wanted):
        end, text = ends[i], b"".join(PIECES[token] for token in ids[i])
        assert isinstance(end, Finished), (schema, end)
        if end.reason == "length":
            incomplete.append(schema)
            continue
        document = json.loads(text)
        validator = jsonschema.Draft202012Validator
        validator(schema, format_checker=validator.FORMAT_CHECKER).validate(document)
    assert len(incomplete) <= 5, incomplete


@pytest.mark.parametrize(("schema", "place"), REFUSED, ids=lambda value: str(value)[:40])
def test_the_place_of_what_cannot_be_enforced(schema: Schema, place: str) -> None:
    with pytest.raises(UsageError) as caught:
        schema_format(json.dumps(schema))
    assert f"cannot be enforced at {place}: " in caught.value.message


CONTRADICTION: Schema = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 2}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("option", "text", "parts"),
    [
        ("--schema", json.dumps({"properties": {"a": {"not": {}}}}), ("#/properties/a",)),
        ("--schema", json.dumps(CONTRADICTION), ("#/properties/a",)),
        ("--schema", "{", ("is not valid JSON",)),
        ("--regex", "(a", ("--regex",)),
        ("--grammar", "start: nothing\n", ("--grammar",)),
    ],
)
def test_the_program_names_the_place(
    program: Program, tmp_path: Path, option: str, text: str, parts: tuple[str, ...]
) -> None:
    file = tmp_path / "format"
    file.write_text(text)
    value = text if option == "--regex" else str(file)
    assert_error(program.run("-p", "x", option, value), 2, *parts)
