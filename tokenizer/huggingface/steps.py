"""The pre-tokenizer and decoder steps of `tokenizer.json`."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import regex

from swiftchat.tokenizer.core.byte_level import to_bytes
from swiftchat.tokenizer.core.metaspace import (
    Metaspace,
    byte_of,
    first_token_decoder,
    stripping_decoder,
)
from swiftchat.tokenizer.core.pretokenizer import (
    BEHAVIORS,
    PrefixSpace,
    Split,
    Step,
    Symbols,
)
from swiftchat.tokenizer.huggingface.checks import (
    compiled,
    flag,
    parts,
    reject,
    reject_kind,
    short,
    text,
)
from swiftchat.tokenizer.huggingface.normalizer import WHITE_SPACE, replacement
from swiftchat.tokenizer.huggingface.patterns import GPT2

_NUMBER = r"\p{N}"
# Unicode punctuation and the ASCII symbols that `tokenizers` adds.
_PUNCTUATION = r"[\p{P}$+<=>^`|~]"
_PREPEND_SCHEMES = ("always", "first", "never")
_SPACE_DECODERS = (
    ["Replace", "ByteFallback", "Fuse", "Strip"],
    ["Replace", "ByteFallback", "Fuse"],
)

_BYTE_LEVEL = {"type": "ByteLevel"}
_PIECES = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def steps(spec: Any) -> tuple[list[Step], bool]:
    """Return the pre-tokenizer's steps, and whether words must be converted to symbols after them.

    If ByteLevel is not the last step (Falcon), the steps after it split symbols.
    """
    found: list[Step] = []
    byte_level = False
    for field, part in parts(spec, "pre_tokenizer", "pretokenizers"):
        if byte_level and Symbols() not in found:
            found.append(Symbols())
        kind = part.get("type")
        if kind == "ByteLevel":
            if byte_level:
                reject(field, "is the second of its kind")
            byte_level = True
            if flag(part, "add_prefix_space", field, default=True):
                found.append(PrefixSpace())
            if flag(part, "use_regex", field, default=True):
                found.append(Split(regex.compile(GPT2)))
        elif kind == "Digits":
            each = flag(part, "individual_digits", field)
            found.append(Split(regex.compile(_NUMBER), "Isolated" if each else "Contiguous"))
        elif kind == "Split":
            found.append(_split(part, field))
        elif kind == "Punctuation":
            found.append(Split(regex.compile(_PUNCTUATION), _behavior(part, field, "Isolated")))
        elif kind == "Metaspace":
            found.append(_metaspace(part, field))
        elif kind == "WhitespaceSplit":
            found.append(Split(regex.compile(f"[{WHITE_SPACE}]"), "Removed"))
        else:
            reject_kind(f"{field}.type", kind)
    return found, byte_level and Symbols() not in found


def _behavior(part: dict[str, Any], field: str, default: str | None = None) -> str:
    behavior = part.get("behavior", default)
    if behavior not in BEHAVIORS:
        reject(f"{field}.behavior", f"is {short(behavior)}, not one of {', '.join(BEHAVIORS)}")
    return str(behavior)


def _split(part: dict[str, Any], field: str) -> Split:
    pattern = compiled(part, field)
    return Split(pattern, _behavior(part, field), flag(part, "invert", field))


def _metaspace(part: dict[str, Any], field: str) -> Metaspace:
    symbol, prepend = text(part, "replacement", field), part.get("prepend_scheme", "always")
    if len(symbol) != 1:
        reject(f"{field}.replacement", f"is {short(symbol)}, not a single character")
    if prepend not in _PREPEND_SCHEMES:
        reject(f"{field}.prepend_scheme", f"is {short(prepend)}")
    # The older form of `prepend_scheme`.
    if not flag(part, "add_prefix_space", field, default=True):
        prepend = "never"
    return Metaspace(symbol, prepend, flag(part, "split", field, default=True))


def make_decoder(spec: Any, *, is_byte_level: bool) -> Callable[[], Callable[[str], bytes]]:
    """Return a function that makes a decoder, from token to bytes, for each text.

    Without a decoder `tokenizers` joins tokens with spaces; here the kind of vocabulary decides.
    """
    if spec is None:
        spec = _BYTE_LEVEL if is_byte_level else _PIECES
    found = list(parts(spec, "decoder", "decoders"))
    kinds = [part.get("type") for _, part in found]
    if kinds == ["ByteLevel"]:
        token_bytes = lru_cache(1 << 16)(to_bytes)
        return lambda: token_bytes
    if kinds == ["Metaspace"]:
        metaspace = _metaspace(found[0][1], found[0][0])
        return partial(first_token_decoder, metaspace.symbol, metaspace.prepend != "never")
    if kinds not in _SPACE_DECODERS:
        reject_kind("decoder", ", ".join(map(str, kinds))[:60] or None)
    replace = replacement(found[0][1], found[0][0])
    content, max_count = "", 0
    if kinds[-1] == "Strip":
        field, strip = found[-1]
        content, start = text(strip, "content", field), strip.get("start")
        if not isinstance(start, int) or strip.get("stop") != 0 or len(content) != 1:
            reject(field, "strips more than the beginning")
        max_count = start

    @lru_cache(1 << 16)
    def token_bytes_of(token: str) -> bytes:
        token = replace(token)
        byte = byte_of(token)
        return token.encode() if byte is None else byte

    return lambda: stripping_decoder(token_bytes_of, content, max_count)
