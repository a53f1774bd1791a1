"""The tokenizer in the metadata of a GGUF file, without its tensors."""

import copy
from functools import cache
from pathlib import Path
from typing import Any

from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.gguf.config import generation_config_json, tokenizer_config_json
from swiftchat.weights.gguf.tokenizer import tokenizer_files
from tests.fuzz.formats.gguf_files import Tree, model_tree, mutator, sentencepiece_tree, write
from tests.fuzz.formats.tokenizer_json import read_texts
from tests.fuzz.target import Target


def _only_tokenizer(tree: Tree) -> Tree:
    tree = copy.deepcopy(tree)
    tree["pairs"] = [pair for pair in tree["pairs"] if pair[0].startswith("tokenizer.")]
    tree["tensors"] = [["x", [4], 0, None, bytes(16)]]
    return tree


@cache
def _byte_level() -> Tree:
    return _only_tokenizer(model_tree())


@cache
def _sentencepiece() -> Tree:
    return _only_tokenizer(sentencepiece_tree())


def _load(data: bytes, folder: Path) -> Any:
    path = folder / "model.gguf"
    path.write_bytes(data)
    file = GgufFile.open(path)
    generation_config_json(file)
    files = tokenizer_files(file.metadata)
    tokenizer = Tokenizer.from_files(files)
    tokenizer_config_json(file)
    return read_texts(tokenizer)


_TREES = (_byte_level, _sentencepiece)
GGUF_TOKENIZER = Target(
    "gguf-tokenizer", lambda: [write(tree()) for tree in _TREES], mutator(*_TREES), _load, 1000
)
