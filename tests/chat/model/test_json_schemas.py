"""Every answer matches its JSON schema; what cannot be enforced is refused with its place."""

import json

import jsonschema
import pytest

from swiftchat.chat.model.output_format import schema_format
from swiftchat.errors import UsageError
from tests.chat.model.test_output_format import answer
from tests.support.json_schemas import REFUSED, Schema, schemas

CONTRADICTION: Schema = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 2}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.mark.fault(49)
def test_every_answer_matches_its_schema() -> None:
    """Answers are random walks through the grammar of a schema."""
    validator = jsonschema.Draft202012Validator
    found = list(schemas())
    assert len(found) >= 200
    for seed, schema in enumerate(found):
        document = json.loads(answer(schema_format(json.dumps(schema)), seed))
        validator(schema, format_checker=validator.FORMAT_CHECKER).validate(document)


@pytest.mark.fault(49)
@pytest.mark.parametrize(("schema", "place"), REFUSED, ids=lambda value: str(value)[:40])
def test_the_place_of_what_cannot_be_enforced(schema: Schema, place: str) -> None:
    with pytest.raises(UsageError) as caught:
        schema_format(json.dumps(schema))
    assert f"cannot be enforced at {place}: " in caught.value.message


@pytest.mark.fault(49)
def test_the_place_of_a_contradiction() -> None:
    with pytest.raises(UsageError, match="#/properties/a") as caught:
        schema_format(json.dumps(CONTRADICTION))
    assert caught.value.exit_code == 2
