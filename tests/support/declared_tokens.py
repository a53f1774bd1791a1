"""Random tokenizers whose tokens are declared in the files beside the vocabulary.

`python -m tests.support.declared_tokens NUM [SEED]` compares NUM of each kind with transformers.
"""

import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers

from swiftchat.tokenizer import Tokenizer
from swiftchat.tokenizer.core.byte_level import symbols_of

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "<pad>")
SYMBOLS = {symbols_of([bytes([byte])])[0]: byte for byte in range(256)}
VOCAB = {**SYMBOLS, **{text: 256 + n for n, text in enumerate(CONTROL)}, "ab": 256 + len(CONTROL)}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
TEXT = (
    "Hi<|im_end|> ab <new> x<|im_start|>\n <n2><s>yo</s> <pad>é e\u0301 hi there ab<|endoftext|>"
    "HIab  <new>Q<NEW> <|IM_END|>"
)

_ORDINARY = ("ab", "H", "é")
_TEXTS = (*CONTROL, *_ORDINARY, "<new>", "<n2>", "hi there", " ab")
_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "mask_token")
_OWN_ROLES = ("image_token", "eoc_token")
_NORMALIZERS = (
    *(None, None, {"type": "NFC"}, {"type": "Prepend", "prepend": "H"}),
    {"type": "Replace", "pattern": {"String": "Q"}, "content": "<new>"},
)


def tokenizer_json(added: list[dict[str, Any]], vocab: dict[str, int] = VOCAB) -> dict[str, Any]:
    """Return a byte-level `tokenizer.json` with these added tokens."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": BYTE_LEVEL | {"trim_offsets": True},
        "post_processor": None,
        "decoder": BYTE_LEVEL | {"trim_offsets": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": ["a b"],
        },
    }


def added_entry(content: str, token_id: int, **flags: bool) -> dict[str, Any]:
    """Return an entry of `added_tokens`, a control token by default."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | flags
    return {"id": token_id, "content": content, "special": True, **flags}


def write(directory: Path, files: dict[str, Any]) -> None:
    """Make the files of `directory` these: a text, or a value to write as JSON, by name."""
    for path in directory.iterdir():
        path.unlink()
    for name, value in files.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        (directory / name).write_text(text, encoding="utf-8")


def random_files(kind: str, seed: int) -> dict[str, Any]:
    """Return the files of a tokenizer of the `kind` "json" or "merges", declared in any way."""
    chance = random.Random(f"{kind} {seed}")
    files: dict[str, Any] = {}
    if kind == "json":
        files["tokenizer.json"] = _random_json(chance)
        tokenizer_class = "PreTrainedTokenizerFast"
    else:
        kept = [text for text in VOCAB if text in SYMBOLS or text == "ab" or chance.random() < 0.9]
        files["vocab.json"] = {text: number for number, text in enumerate(kept)}
        files["merges.txt"] = "#version: 0.2\na b\n"
        tokenizer_class = chance.choice(("GPT2Tokenizer", "GPTNeoXTokenizer"))
    has_older = chance.random() < 0.5
    config = _random_config(chance, has_older=has_older)
    files["tokenizer_config.json"] = {"tokenizer_class": tokenizer_class, **config}
    if has_older and chance.random() < 0.7:
        files["special_tokens_map.json"] = _random_map(chance)
    # With a list of this name there, transformers takes listed tokens for ordinary ones.
    has_list = "additional_special_tokens" in files.get("special_tokens_map.json", {})
    if has_older and not has_list and chance.random() < 0.7:
        texts = chance.sample(_TEXTS, chance.randint(0, 3))
        files["added_tokens.json"] = {text: _random_id(chance, text) for text in texts}
    return files


def differences(directory: Path, files: dict[str, Any]) -> tuple[Any, Any] | None:
    """Return ids and named tokens of ours and of transformers if they are not the same."""
    write(directory, files)
    name = files["tokenizer_config.json"]["tokenizer_class"]
    theirs = getattr(transformers, name).from_pretrained(directory)
    wanted = theirs.encode(TEXT, add_special_tokens=False), dict(theirs.special_tokens_map)
    ours = Tokenizer.load(directory)
    found = ours.encode_rendered(TEXT, []), ours.named_tokens
    return None if found == wanted else (found, wanted)


def _random_json(chance: random.Random) -> dict[str, Any]:
    in_model = chance.random() < 0.6
    vocab = {text: n for text, n in VOCAB.items() if in_model or n < 256}
    vocab.setdefault("ab", len(vocab))
    added = []
    for text in chance.sample(CONTROL, chance.randint(0, len(CONTROL))):
        token_id = chance.randint(256, 275) if chance.random() < 0.2 else VOCAB[text]
        added.append(added_entry(text, token_id, **_random_flags(chance, 0.3)))
        added[-1]["special"] = chance.random() < 0.7
    spec = tokenizer_json(added, vocab)
    spec["normalizer"] = chance.choice(_NORMALIZERS)
    return spec


def _random_config(chance: random.Random, *, has_older: bool) -> dict[str, Any]:
    # With the older files transformers takes an object for another text.
    is_object = 0.0 if has_older else 0.4
    config: dict[str, Any] = {}
    for role in (*_ROLES, *_OWN_ROLES):
        if chance.random() < 0.25:
            config[role] = _random_token(chance, is_object)
    if chance.random() < 0.3:
        config["additional_special_tokens"] = _random_tokens(chance, is_object)
    if chance.random() < 0.4:
        tokens = _random_tokens(chance, is_object)
        named = {f"x{n}_token": token for n, token in enumerate(tokens)}
        config["extra_special_tokens"] = chance.choice((tokens, named))
    if not has_older and chance.random() < 0.6:
        config["added_tokens_decoder"] = {
            str(_random_id(chance, text)): {"content": text, **_random_flags(chance, 0.5)}
            | ({} if text in _ORDINARY else {"special": chance.random() < 0.5})
            for text in chance.sample(_TEXTS, chance.randint(0, 4))
        }
    items = list(config.items())
    chance.shuffle(items)
    return dict(items)


def _random_map(chance: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for role in (*_ROLES[:4], "image_token"):
        if chance.random() < 0.4:
            text = chance.choice(_TEXTS)
            entry = {"content": text, **_random_flags(chance, 0.5)}
            found[role] = chance.choice((text, entry))
    if chance.random() < 0.4:
        found["additional_special_tokens"] = _random_tokens(chance, 0)
    if chance.random() < 0.3:
        found["extra_special_tokens"] = _random_tokens(chance, 0)
    return found


def _random_tokens(chance: random.Random, is_object: float) -> list[Any]:
    return [_random_token(chance, is_object) for _ in range(chance.randint(0, 3))]


def _random_token(chance: random.Random, is_object: float) -> Any:
    text = chance.choice(_TEXTS)
    if chance.random() >= is_object:
        return text
    return {"__type": "AddedToken", "content": text, **_random_flags(chance, 1.0)}


def _random_flags(chance: random.Random, share: float) -> dict[str, bool]:
    names = ("lstrip", "rstrip", "single_word", "normalized")
    return {name: chance.random() < 0.4 for name in names if chance.random() < share}


def _random_id(chance: random.Random, text: str) -> int:
    other = chance.randint(250, 270)
    return VOCAB.get(text, other) if chance.random() < 0.6 else other


def _main(num: int, seed: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("json", "merges"):
            wrong = 0
            for number in range(seed, seed + num):
                files = random_files(kind, number)
                if (found := differences(Path(folder), files)) is not None:
                    wrong += 1
                    files.get("tokenizer.json", {}).pop("model", None)
                    files.pop("vocab.json", None)
                    yield f"{kind} {number}: {found[0]}\n wanted {found[1]}\n {files}"
            yield f"{kind}: {num} tried, {wrong} differ"


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    for line in _main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0):
        print(line)
