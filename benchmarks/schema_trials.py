"""Ask a model for answers of random JSON schemas; exit with status 1 if one does not match.

Each schema is asked for with several seeds at temperature 1, at `serve --openai`. Answers that end
must match the schema by the package jsonschema, also in `format`; those that `--max-tokens` cuts
off are counted. With `--file REQUEST.json` the requests are that one with other seeds.

    swiftchat serve NAME --openai 127.0.0.1:8080 --no-auth
    python benchmarks/schema_trials.py http://127.0.0.1:8080/v1 NAME --schemas 200 --seeds 3
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import jsonschema

Schema = dict[str, Any]

QUESTION = "Invent an example with short texts and lists. Answer as JSON."
TIMEOUT_S = 600
MAX_DEPTH = 3
NAMES = ("name", "age", "tags", "owner", "size", "kind", "when", "notes", "x", "é 1")
PATTERNS = ("^[a-z]{2,8}$", r"^\d{3}-\d{4}$", "^(red|green|blue)$", "^[A-Z][a-z]+( [A-Z][a-z]+)?$")
FORMATS = ("date", "time", "date-time", "email", "ipv4", "uuid", "hostname")
VALIDATOR = jsonschema.Draft202012Validator


def scalar(chance: random.Random) -> Schema:
    low = chance.randrange(-1000, 1000)
    choices: tuple[Schema, ...] = (
        {"type": "string", "maxLength": chance.randrange(1, 30)},
        {"type": "string", "pattern": chance.choice(PATTERNS)},
        {"type": "string", "format": chance.choice(FORMATS)},
        {"type": "integer"},
        {"type": "integer", "minimum": low, "maximum": low + chance.randrange(2000)},
        {"type": "number"},
        {"type": "number", "exclusiveMinimum": low, "maximum": low + 0.5},
        {"type": "boolean"},
        {"type": ["integer", "null"]},
        {"enum": chance.sample(["a", "b c", 1, 2.5, None, True, 'q"'], chance.randrange(1, 5))},
        {"const": chance.choice(["v1", 3, None])},
    )
    return chance.choice(choices)


def schema(chance: random.Random, depth: int = MAX_DEPTH) -> Schema:
    """Return a random schema, at the top one of objects."""
    kind = "object" if depth == MAX_DEPTH else chance.choice(("object", "array", "union", "scalar"))
    if depth == 0 or kind == "scalar":
        return scalar(chance)
    if kind == "union":
        kinds = [schema(chance, depth - 1) for _ in range(chance.randrange(1, 4))]
        return {"anyOf": kinds}
    if kind == "array":
        low = chance.randrange(3)
        items = schema(chance, depth - 1)
        return {"type": "array", "items": items, "minItems": low, "maxItems": low + 2}
    names = chance.sample(NAMES, chance.randrange(1, 5))
    found: Schema = {
        "type": "object",
        "properties": {name: schema(chance, depth - 1) for name in names},
        "required": chance.sample(names, chance.randrange(len(names) + 1)),
    }
    if chance.random() < 0.5:
        found["additionalProperties"] = False
    if depth == MAX_DEPTH and chance.random() < 0.3:
        found["$defs"] = {"part": schema(chance, 1)}
        found["properties"]["part"] = {"$ref": "#/$defs/part"}
    return found


def requests(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the bodies of the requests."""
    if options.file:
        body = json.loads(options.file.read_text("utf-8"))
        yield from ({**body, "seed": seed} for seed in range(options.seeds))
        return
    for number in range(options.schemas):
        wanted = schema(random.Random(number))
        for seed in range(options.seeds):
            yield {
                "messages": [{"role": "user", "content": QUESTION}],
                "response_format": {"type": "json_schema", "json_schema": {"schema": wanted}},
                "temperature": 1,
                "seed": seed,
                "max_tokens": options.max_tokens,
            }


def tried(options: argparse.Namespace, body: dict[str, Any]) -> str:
    """Return how an answer ended: `valid`, `cut off`, or what is wrong with it."""
    content = json.dumps({**body, "model": options.model}).encode()
    headers = {"Authorization": f"Bearer {options.token}", "Content-Type": "application/json"}
    request = Request(f"{options.url}/chat/completions", content, headers)
    with urlopen(request, timeout=TIMEOUT_S) as response:
        choice = json.loads(response.read())["choices"][0]
    if choice["finish_reason"] == "length":
        return "cut off"
    wanted = body["response_format"]["json_schema"]["schema"]
    validator = VALIDATOR(wanted, format_checker=VALIDATOR.FORMAT_CHECKER)
    text = choice["message"]["content"]
    try:
        validator.validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"wrong: {text} for {json.dumps(wanted)}: {str(error).splitlines()[0]}"
    return "valid"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", help="of the API, as http://127.0.0.1:8080/v1")
    parser.add_argument("model")
    parser.add_argument("--token", default="none")
    parser.add_argument("--schemas", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=300)
    parser.add_argument("--parallel", type=int, default=16)
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    with ThreadPoolExecutor(options.parallel) as pool:
        found = Counter(pool.map(lambda body: tried(options, body), requests(options)))
    for result, count in found.most_common():
        print(f"{count} {result}")
    return int(any(result.startswith("wrong") for result in found))


if __name__ == "__main__":
    sys.exit(main())
