"""tekken.json: control tokens, ranked tokens and a split pattern."""

import json
import random
from pathlib import Path
from typing import Any

from swiftchat.tokenizer import Tokenizer
from tests.fuzz.formats.tokenizer_json import read_texts
from tests.fuzz.mutations import dump_json, mutate_tree
from tests.fuzz.target import Target
from tests.support.tekken import tekken


def _seeds() -> list[bytes]:
    without = tekken()
    del without["special_tokens"]
    return [json.dumps(tree).encode() for tree in (tekken(), without)]


def _mutate(chance: random.Random, data: bytes) -> bytes:
    tree = json.loads(data)
    key = chance.choice([*tree, None])
    if key is None:
        tree = mutate_tree(chance, tree)
    else:
        tree[key] = mutate_tree(chance, tree[key])
    return dump_json(chance, tree)


def _load(data: bytes, folder: Path) -> Any:
    (folder / "tekken.json").write_bytes(data)
    return read_texts(Tokenizer.load(folder))


TEKKEN = Target("tekken", _seeds, _mutate, _load, 300)
