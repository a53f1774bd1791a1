"""GGUF files: metadata, tensors, the configuration and the tokenizer that they describe."""

import copy
import random
import struct
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.formats.ggml_dequantize import dequantize
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.gguf.model_files import write_model_files
from swiftchat.weights.model.directory import Model
from tests.fuzz.formats.arrays import equal
from tests.fuzz.mutations import change_number, odd_value
from tests.fuzz.target import Difference, Mutate, NoReferenceError, Target
from tests.support.gguf.blocks import random_blocks
from tests.support.gguf.tiny import KINDS, MERGES, TOKENS

Pair = list[Any]  # key, type, value
Tree = dict[str, Any]

_FORMATS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_RANGES = {code: 8 * struct.calcsize(code) for code in "BbHhIiQq"}
_STRING, _ARRAY, _FLOAT, _U32 = 8, 9, 6, 4
_HIDDEN, _INNER, _HEADS = 64, 96, 4


@cache
def grids_tree() -> Tree:
    """Return the same model with blocks of 256 columns, among them those of all grids."""
    types = ("Q3_K", "IQ2_S", "IQ1_M", "IQ2_XS", "IQ3_S", "IQ3_XXS", "Q2_K")
    types += ("IQ1_S", "IQ2_XXS", "IQ4_XS")
    tree, columns = copy.deepcopy(model_tree()), 256
    for pair in tree["pairs"]:
        sizes = {"embedding_length": columns, "feed_forward_length": columns}
        sizes["dimension_count"] = columns // _HEADS
        pair[2] = sizes.get(pair[0].rpartition(".")[2], pair[2])
    matrices = [tensor for tensor in tree["tensors"] if len(tensor[1]) == 2]
    for tensor in tree["tensors"]:
        tensor[1] = [columns, *(columns if n in (_HIDDEN, _INNER) else n for n in tensor[1][1:])]
        tensor[4] = np.ones(columns, np.float32).tobytes()
    for i, tensor in enumerate(matrices):
        name = types[i % len(types)]
        tensor[2] = int(gguf.GGMLQuantizationType[name])
        tensor[4] = random_blocks(name, tensor[1][1], columns, seed=i).tobytes()
    return tree


@cache
def model_tree() -> Tree:
    """Return a Llama of two layers with matrices of several types."""
    chance = np.random.default_rng(0)
    pairs: list[Pair] = [
        ["general.architecture", _STRING, "llama"],
        ["general.license", _STRING, "apache-2.0"],
        ["llama.block_count", _U32, 1],
        ["llama.context_length", _U32, 64],
        ["llama.embedding_length", _U32, _HIDDEN],
        ["llama.feed_forward_length", _U32, _INNER],
        ["llama.attention.head_count", _U32, _HEADS],
        ["llama.attention.head_count_kv", _U32, _HEADS],
        ["llama.attention.layer_norm_rms_epsilon", _FLOAT, 1e-5],
        ["llama.rope.freq_base", _FLOAT, 10000.0],
        ["llama.rope.dimension_count", _U32, _HIDDEN // _HEADS],
        *tokenizer_pairs(),
    ]
    kinds = gguf.GGMLQuantizationType
    square, plain = (_HIDDEN, _HIDDEN), kinds.F32
    shapes = [
        ("token_embd.weight", (len(TOKENS), _HIDDEN), kinds.F16),
        ("output_norm.weight", (_HIDDEN,), plain),
        ("output.weight", (len(TOKENS), _HIDDEN), kinds.Q8_0),
        ("blk.0.attn_norm.weight", (_HIDDEN,), plain),
        ("blk.0.ffn_norm.weight", (_HIDDEN,), plain),
        ("blk.0.attn_q.weight", square, kinds.Q4_0),
        ("blk.0.attn_k.weight", square, kinds.F32),
        ("blk.0.attn_v.weight", square, kinds.Q5_1),
        ("blk.0.attn_output.weight", square, kinds.BF16),
        ("blk.0.ffn_gate.weight", (_INNER, _HIDDEN), kinds.Q8_0),
        ("blk.0.ffn_up.weight", (_INNER, _HIDDEN), kinds.Q8_0),
        ("blk.0.ffn_down.weight", (_HIDDEN, _INNER), kinds.Q4_1),
    ]
    tensors = []
    for name, shape, kind in shapes:
        values = chance.standard_normal(shape, np.float32)
        stored = values if kind == plain else gguf.quantize(values, kind)
        tensors.append([name, list(shape[::-1]), int(kind), None, stored.tobytes()])
    return {"version": 3, "pairs": pairs, "tensors": tensors}


def tokenizer_pairs() -> list[Pair]:
    return [
        ["tokenizer.ggml.model", _STRING, "gpt2"],
        ["tokenizer.ggml.pre", _STRING, "smollm"],
        ["tokenizer.ggml.tokens", _ARRAY, [_STRING, list(TOKENS)]],
        ["tokenizer.ggml.token_type", _ARRAY, [5, list(KINDS)]],
        ["tokenizer.ggml.merges", _ARRAY, [_STRING, list(MERGES)]],
        ["tokenizer.ggml.bos_token_id", _U32, TOKENS.index("<|begin|>")],
        ["tokenizer.ggml.eos_token_id", _U32, TOKENS.index("<|end|>")],
        ["tokenizer.chat_template", _STRING, "{{ messages[0]['content'] }}"],
    ]


@cache
def sentencepiece_tree() -> Tree:
    """Return the same model with a SentencePiece vocabulary."""
    tree = copy.deepcopy(model_tree())
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{i:02X}>" for i in range(80)),
        "▁",
        "a",
        "b",
        "ab",
        "▁ab",
    ]
    pieces += [f"x{i}" for i in range(len(TOKENS) - len(pieces))]
    kinds = [2, 3, 3, *[6] * 80, *[1] * (len(pieces) - 83)]
    scores = [-float(i) for i in range(len(pieces))]
    own: list[Pair] = [
        ["tokenizer.ggml.model", _STRING, "llama"],
        ["tokenizer.ggml.tokens", _ARRAY, [_STRING, pieces]],
        ["tokenizer.ggml.scores", _ARRAY, [_FLOAT, scores]],
        ["tokenizer.ggml.token_type", _ARRAY, [5, [3 if k == 6 else k for k in kinds]]],
        ["tokenizer.ggml.bos_token_id", _U32, 1],
        ["tokenizer.ggml.eos_token_id", _U32, 2],
        ["tokenizer.ggml.add_space_prefix", 7, True],
    ]
    tree["pairs"] = tree["pairs"][:-8] + own
    return tree


def write(tree: Tree) -> bytes:
    """Return a file of a tree; values that do not fit their type are cut to it."""
    out = bytearray(b"GGUF" + struct.pack("<IQQ", tree["version"], *counts(tree)))
    for key, kind, value in tree["pairs"]:
        out += _text(key) + struct.pack("<I", kind & 0xFFFFFFFF) + _value(kind, value)
    data = bytearray()
    for name, dims, kind, offset, stored in tree["tensors"]:
        out += _text(name) + struct.pack("<I", len(dims))
        out += b"".join(_number("Q", one) for one in dims)
        out += _number("I", kind) + _number("Q", len(data) if offset is None else offset)
        data += stored + bytes(-len(stored) % 32)
    return bytes(out + bytes(-len(out) % 32) + data)


def counts(tree: Tree) -> list[int]:
    found = tree.get("counts") or [len(tree["tensors"]), len(tree["pairs"])]
    return [one & (2**64 - 1) for one in found]


def _text(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(encoded)) + encoded


def _value(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _text(value if isinstance(value, str) else str(value)[:50])
    if kind == _ARRAY:
        inner, items = value if isinstance(value, list) and len(value) == 2 else (4, [])
        inner = inner if isinstance(inner, int) else 4
        items = items if isinstance(items, list) else []
        head = struct.pack("<IQ", inner & 0xFFFFFFFF, len(items))
        return head + b"".join(_value(inner, item) for item in items)
    return _number(_FORMATS.get(kind, "I"), value)


def _number(code: str, value: Any) -> bytes:
    try:
        if code in _RANGES:
            value = int(value) % (1 << _RANGES[code])
            return int(value).to_bytes(_RANGES[code] // 8, "little")
        return struct.pack(f"<{code}", value)
    except (TypeError, ValueError, OverflowError, struct.error):
        return bytes(struct.calcsize(code))


def mutate_tree(chance: random.Random, tree: Tree) -> Tree:
    """Return a tree with one to four changes of pairs, types, elements or tensors."""
    tree = copy.deepcopy(tree)
    for _ in range(chance.choice((1, 1, 2, 4))):
        pairs, tensors = tree["pairs"], tree["tensors"]
        pair, tensor = chance.choice(pairs), chance.choice(tensors)
        match chance.randrange(12):
            case 0:
                pairs.remove(pair) if len(pairs) > 1 else None
            case 1:
                pairs.append(list(pair))
            case 2 | 3:
                _change_value(chance, pair)
            case 4:
                pair[1] = chance.choice((*_FORMATS, _STRING, _ARRAY, 13, 2**31))
                pair[2] = odd_value(chance)
            case 5:
                pair[1], pair[2] = chance.choice(pairs)[1:]
            case 6:
                pair[0] = chance.choice((chance.choice(pairs)[0], "", "x" * 2000, "\ud800"))
            case 7:
                tensor[1] = [change_number(chance, one) for one in tensor[1]]
            case 8:
                tensor[2] = chance.choice((*range(43), 2**31))
            case 9:
                tensor[3] = chance.choice((0, 1, 32, 64, 2**20, 2**63, 2**64 - 32))
            case 10:
                which = chance.choice((tensors.remove, tensors.append))
                which(tensor) if len(tensors) > 1 else None
            case _:
                tree["counts"] = [
                    chance.choice((n, n + 1, n - 1, 2**32, 2**63)) for n in counts(tree)
                ]
    return tree


def _change_value(chance: random.Random, pair: Pair) -> None:
    """Change a number, a text, or an element, the type or the length of an array."""
    if pair[1] == _ARRAY and isinstance(pair[2], list) and len(pair[2]) == 2 and pair[2][1]:
        inner, items = pair[2]
        at = chance.randrange(len(items))
        match chance.randrange(6):
            case 0:
                del items[at]
            case 1:
                items.insert(at, items[at])
            case 2:
                items[at] = chance.choice(items)
            case 3:
                pair[2][0] = chance.choice((*_FORMATS, _STRING, _ARRAY))
            case 4 if isinstance(items[at], int | float):
                items[at] = change_number(chance, items[at])
            case _:
                items[at] = odd_value(chance) if inner == _STRING else chance.choice((0, 7, 2**31))
    elif isinstance(pair[2], int | float) and not isinstance(pair[2], bool):
        values = (change_number(chance, pair[2]), 0, 2**31, 2**32 - 1, float("nan"), float("inf"))
        pair[2] = chance.choice(values)
    else:
        pair[2] = odd_value(chance)


def mutator(*trees: Any) -> Mutate:
    """Return the mutator of the files of `trees`, functions that return them."""

    @cache
    def by_file() -> dict[bytes, Tree]:
        return {write(tree()): tree() for tree in trees}

    def mutate(chance: random.Random, data: bytes) -> bytes:
        return write(mutate_tree(chance, by_file()[data]))

    return mutate


def _load(data: bytes, folder: Path) -> Any:
    path, directory = folder / "model.gguf", folder / "model"
    path.write_bytes(data)
    directory.mkdir()
    write_model_files(path, directory)
    model = Model.open(directory)
    checkpoint = model.checkpoint()
    for name in checkpoint.tensors:
        checkpoint.read(name)
    for stored in checkpoint.quantized.values():
        stored.to_float32()
    tokenizer = Tokenizer.load(directory)
    ids = tokenizer.encode("abc 12 <|end|> é")
    tokenizer.decode(ids)
    return GgufFile.open(path)


def _compare(data: bytes, folder: Path, loaded: Any) -> None:
    """Compare all metadata and all dequantized tensors with the `gguf` package."""
    try:
        reader = gguf.GGUFReader(folder / "model.gguf")
        theirs = {
            tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type)
            for tensor in reader.tensors
        }
        fields = {key: field.contents() for key, field in reader.fields.items()}
    except Exception as error:
        raise NoReferenceError from error
    if theirs.keys() != loaded.tensors.keys():
        raise Difference("other names of tensors")
    for name, tensor in loaded.tensors.items():
        ours = dequantize(loaded.rows(tensor), tensor.type_name).reshape(tensor.shape)
        if not equal(ours, theirs[name].astype(np.float32)):
            raise Difference(f"{name}: other values")
    for key, value in loaded.metadata.items():
        found = fields.get(key)
        if not equal(np.array(value), np.array(found)):
            raise Difference(f"{key}: {value!r:.80} and {found!r:.80}")


_TREES = (model_tree, grids_tree, sentencepiece_tree)
GGUF = Target(
    "gguf", lambda: [write(tree()) for tree in _TREES], mutator(*_TREES), _load, 600, _compare
)
