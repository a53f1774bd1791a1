"""Mutations of bytes, of texts, and of trees such as JSON."""

import copy
import json
import math
import random
import re
from collections.abc import Callable
from typing import Any

HUGE = "@huge@"  # stands for an integer of 5,000 digits, which `json` refuses to write
_DEEP = "@deep@"  # stands for lists within lists that no recursion reaches the end of
_DIGITS = b"9" * 5000
_LISTS = b"[" * 50_000 + b"]" * 50_000
_WORDS = (0, 1, 2, 0x7F, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_TEXTS = (
    "",
    " ",
    "\0",
    "x",
    "\ud800",
    "a\udfffb",
    "é",
    "é",
    "\u202e",
    "▁",
    "Ġ",
    "<0x41>",
    "../x",
    "/etc/passwd",
    "x" * 300,
    "a" * 5000,
    "NaN",
    "1e999",
    "-1",
    "null",
    "{{x}}",
    "\x1b[2J",
    "\U0010ffff",
    "a" * 100 + "!",
)
_NUMBERS = (0, 1, -1, 2, 3, 7, 64, 255, 2**31, 2**32, 2**53, 2**63, 2**64, -(2**63), 10**30)
_FLOATS = (0.0, -0.0, 0.5, 1e-320, 1e308, -1e308, float("inf"), float("-inf"), float("nan"))


def mutate_bytes(chance: random.Random, data: bytes, other: bytes) -> bytes:
    """Return `data` with one to eight changed, removed, repeated or inserted parts."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = _place(chance, len(changed))
        size = chance.choice((1, 1, 2, 4, 8, 16, 64))
        match chance.randrange(10):
            case 0 if changed:
                changed[at] ^= 1 << chance.randrange(8)
            case 1 if changed:
                changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
            case 2:
                changed[at : at + size] = chance.randbytes(size)
            case 3:
                del changed[at : at + size]
            case 4:
                changed[at:at] = chance.randbytes(size)
            case 5:
                changed[at:at] = changed[at : at + size] * chance.choice((1, 2, 100))
            case 6:
                del changed[at:]
            case 7:
                begin = _place(chance, len(other))
                changed[at : at + size] = other[begin : begin + size]
            case 8:
                word = chance.choice(_WORDS).to_bytes(8, "little")[: chance.choice((1, 2, 4, 8))]
                changed[at : at + len(word)] = word
            case _:
                # A small change of a length or an offset.
                begin, end = at, at + chance.choice((1, 2, 4, 8))
                number = int.from_bytes(changed[begin:end], "little")
                number = max(0, number + chance.choice((-8, -1, 1, 8)))
                width = len(changed[begin:end])
                changed[begin:end] = number.to_bytes(width + 1, "little")[:width]
    return bytes(changed)


def _place(chance: random.Random, length: int) -> int:
    """Return a position, in half of the cases among the first 256: headers matter most."""
    bound = min(length, 256) if chance.random() < 0.5 else length
    return chance.randrange(bound) if bound else 0


def mutate_text(chance: random.Random, data: bytes, words: tuple[str, ...]) -> bytes:
    """Return a text with changed numbers, and moved, repeated or replaced pieces and `words`."""
    pieces = re.split(rb"(\W)", data)
    for _ in range(chance.choice((1, 1, 2, 3, 5))):
        at = chance.randrange(len(pieces))
        match chance.randrange(7):
            case 0:
                pieces[at] = chance.choice(words).encode("utf-8", "surrogatepass")
            case 1:
                pieces.insert(at, chance.choice(words).encode("utf-8", "surrogatepass"))
            case 2:
                pieces[at] = chance.choice(pieces)
            case 3:
                end = at + chance.randrange(1, 8)
                pieces[at:at] = pieces[at:end] * chance.choice((1, 2, 50))
            case 4:
                del pieces[at : at + chance.randrange(1, 8)]
                pieces = pieces or [b""]
            case 5:
                numbers = [i for i, piece in enumerate(pieces) if piece.isdigit()]
                if numbers:
                    value = odd_number(chance)
                    pieces[chance.choice(numbers)] = _DIGITS if value is None else value.encode()
            case _:
                odd = chance.choice(_TEXTS).encode("utf-8", "surrogatepass")
                pieces.insert(at, odd)
    return b"".join(pieces)


def odd_number(chance: random.Random) -> str | None:
    """Return the text of an unusual number, None for one of 5,000 digits."""
    if chance.random() < 0.1:
        return None
    return str(chance.choice((*_NUMBERS, *_FLOATS)))


def odd_value(chance: random.Random) -> Any:
    """Return a value that a reader may not expect."""
    match chance.randrange(8):
        case 0:
            return chance.choice((None, True, False, HUGE))
        case 1 | 2:
            return chance.choice(_NUMBERS)
        case 3:
            return chance.choice(_FLOATS)
        case 4 | 5:
            return chance.choice(_TEXTS)
        case 6:
            return [odd_value(chance) for _ in range(chance.choice((0, 1, 2, 5)))]
        case _:
            if chance.random() < 0.1:
                return chance.choice((_nested(20), _nested(150), _DEEP))
            return {str(odd_text(chance)): odd_value(chance) for _ in range(chance.randrange(3))}


def odd_text(chance: random.Random) -> str:
    return chance.choice(_TEXTS)


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def change_number(chance: random.Random, value: float) -> Any:
    """Return a number near `value`, or of another size or sign."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return chance.choice(_FLOATS)
        return chance.choice((value * 2, value / 2, -value, value + 1, round(value)))
    return chance.choice(
        (value + 1, value - 1, value * 2, -value, value // 2, min(value, 10**9) + 0.5)
    )


def mutate_tree(
    chance: random.Random, root: Any, odd: Callable[[random.Random], Any] = odd_value
) -> Any:
    """Return a copy of a tree of dicts and lists with one to five changed nodes."""
    root = copy.deepcopy(root)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
        places = list(_places(root))
        if not places:
            return odd(chance)
        # Long lists are one place in many: choose the parent first.
        parent = chance.choice(list({id(one): one for one, _ in places}.values()))
        keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
        if not keys:
            continue
        _change(chance, root, parent, chance.choice(keys), odd)
    return root


def _change(
    chance: random.Random, root: Any, parent: Any, key: Any, odd: Callable[[random.Random], Any]
) -> None:
    value = parent[key]
    match chance.randrange(9):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[odd_text(chance)] = parent.pop(key)
        case 1:
            parent.insert(key, copy.deepcopy(value))
        case 2:
            other, at = chance.choice(list(_places(root)))
            parent[key] = copy.deepcopy(other[at])
        case 3 if isinstance(parent, dict):
            parent[odd_text(chance)] = odd(chance)
        case 3:
            parent.insert(key, odd(chance))
        case 4 | 5 if isinstance(value, int | float) and not isinstance(value, bool):
            parent[key] = change_number(chance, value)
        case 4 | 5 if isinstance(value, bool):
            parent[key] = not value
        case 4 if isinstance(value, str) and value:
            at = chance.randrange(len(value))
            parent[key] = value[:at] + odd_text(chance) + value[at + chance.randrange(2) :]
        case 5 if isinstance(value, str) and isinstance(parent, list) and len(parent) > 1:
            at = chance.randrange(len(parent))
            parent[key], parent[at] = parent[at], parent[key]
        case _:
            parent[key] = odd(chance)


def _places(node: Any) -> Any:
    """Yield the parent and the key of each node below the root; at most 64 of a long list."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            items = list(node.items())
        elif isinstance(node, list):
            items = list(enumerate(node))
        else:
            continue
        step = max(1, len(items) // 64)
        for key, value in items[::step]:
            yield node, key
            waiting.append(value)


def dump_json(chance: random.Random, tree: Any) -> bytes:
    """Return the JSON text of a tree, in one of two encodings of other letters than ASCII."""
    if chance.random() < 0.5:
        text = json.dumps(tree).encode()
    else:
        text = json.dumps(tree, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return text.replace(f'"{HUGE}"'.encode(), _DIGITS).replace(f'"{_DEEP}"'.encode(), _LISTS)


def mutate_json(chance: random.Random, data: bytes) -> bytes:
    """Change nodes of a JSON text."""
    return dump_json(chance, mutate_tree(chance, json.loads(data)))
