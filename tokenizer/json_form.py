"""Reading `tokenizer.json`: what it says is checked before it is believed."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Never

import regex

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.added_tokens import AddedToken
from swiftchat.tokenizer.pretokenizer import BEHAVIORS, GPT2_PATTERN, PrefixSpace, Split, Step

__all__ = ["JsonForm"]

_MOST_IDS = 1 << 24
_LONGEST_TOKEN = 1 << 12
_LONGEST_PATTERN = 1 << 12
_MOST_ADDED_TOKENS = 1 << 14
_MOST_STEPS = 64
_NUMBER = r"\p{N}"


@dataclass(frozen=True)
class JsonForm:
    """A checked `tokenizer.json` of byte-level BPE.

    `vocab` is the model's own: added tokens that are not in it have their ids in
    `added_tokens` only. `ranks` gives the rank of each pair of tokens that is merged.
    With `byte_level` the words are written in symbols, one for each byte, before BPE.
    """

    vocab: dict[str, int]
    ranks: dict[tuple[str, str], int]
    unknown: str | None
    fuse_unknown: bool
    ignore_merges: bool
    added_tokens: tuple[AddedToken, ...]
    is_nfc: bool
    steps: tuple[Step, ...]
    byte_level: bool

    @classmethod
    def read(cls, spec: Any) -> "JsonForm":
        """Check the parsed JSON; raises `BadModelFile` naming the field that is wrong."""
        if not isinstance(spec, dict):
            _refuse("the file", "is no JSON object")
        model = _model(spec)
        vocab = _vocab(model)
        ranks = _ranks(model, vocab)
        steps, byte_level = _steps(spec.get("pre_tokenizer"))
        _check_decoder(spec.get("decoder"))
        unknown = model.get("unk_token") or None
        if unknown is not None and (not isinstance(unknown, str) or unknown not in vocab):
            _refuse("model.unk_token", f"is {_short(unknown)}, which is not in model.vocab")
        if unknown is not None and any(unknown in pair for pair in ranks):
            _refuse("model.merges", f"merge the unknown token {_short(unknown)}")
        return cls(
            vocab=vocab,
            ranks=ranks,
            unknown=unknown,
            fuse_unknown=_flag(model, "fuse_unk", "model"),
            ignore_merges=_flag(model, "ignore_merges", "model"),
            added_tokens=tuple(_added_tokens(spec.get("added_tokens"), vocab)),
            is_nfc=_is_nfc(spec.get("normalizer")),
            steps=tuple(steps),
            byte_level=byte_level,
        )


def _refuse(field: str, what: str) -> Never:
    raise BadModelFile(f"tokenizer.json: {field} {what}")


def _refuse_kind(field: str, kind: object) -> Never:
    raise BadModelFile(
        f"tokenizer.json: {field} {_short(kind)} is not supported yet",
        "supported: byte-level BPE, as of GPT-2, Llama 3, Qwen 2 and SmolLM2; not SentencePiece",
    )


def _short(value: object) -> str:
    return repr(value if isinstance(value, str | int | float | None) else type(value).__name__)[:60]


def _flag(spec: Mapping[str, Any], name: str, field: str, default: bool = False) -> bool:
    value = spec.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        _refuse(f"{field}.{name}", f"is {_short(value)}, not true or false")
    return value


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < _MOST_IDS


def _model(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    model = spec.get("model")
    if not isinstance(model, dict):
        _refuse("model", "is missing or no object")
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind != "BPE":
        _refuse_kind("model.type", kind)
    for name in ("byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            _refuse_kind(f"model.{name}", model[name])
    return model


def _vocab(model: Mapping[str, Any]) -> dict[str, int]:
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not vocab:
        _refuse("model.vocab", "is missing, empty or no object")
    ids = vocab.values()
    if set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= _MOST_IDS:
        _refuse("model.vocab", "has ids that are no integers from 0 on, or absurdly large")
    if len(set(ids)) != len(vocab):
        _refuse("model.vocab", "gives one id to several tokens")
    if "" in vocab or max(map(len, vocab)) > _LONGEST_TOKEN:
        _refuse("model.vocab", "has an empty or an absurdly long token")
    return vocab


def _ranks(model: Mapping[str, Any], vocab: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """Rank by pair. A merge is written `"left right"` or `["left", "right"]`."""
    merges = model.get("merges")
    if not isinstance(merges, list):
        _refuse("model.merges", "is missing or no list")
    pairs: list[tuple[str, ...]] = []
    for number, merge in enumerate(merges):
        pair = (
            tuple(merge.split(" ") if isinstance(merge, str) else merge)
            if isinstance(merge, str | list)
            else ()
        )
        if len(pair) != 2:
            _refuse(f"model.merges[{number}]", "is no pair")
        pairs.append(pair)
    try:
        wrong = [pair for pair in pairs if not vocab.keys() >= {*pair, pair[0] + pair[1]}]
    except TypeError:
        _refuse("model.merges", "has a pair that is not of strings")
    if wrong:
        _refuse("model.merges", f"join {_short(wrong[0][0])} and {_short(wrong[0][1])}, "
                                "of which one, or the result, is not in model.vocab")  # fmt: skip
    return dict(zip(pairs, count(), strict=False))  # type: ignore[arg-type]  # checked: pairs


def _added_tokens(entries: Any, vocab: Mapping[str, int]) -> Iterator[AddedToken]:
    if entries is None:
        return
    if not isinstance(entries, list) or len(entries) > _MOST_ADDED_TOKENS:
        _refuse("added_tokens", "is no list, or an absurdly long one")
    taken = {token_id: token for token, token_id in vocab.items()}
    for number, entry in enumerate(entries):
        field = f"added_tokens[{number}]"
        if not isinstance(entry, dict):
            _refuse(field, "is no object")
        token_id, content = entry.get("id"), entry.get("content")
        if not isinstance(content, str) or len(content) > _LONGEST_TOKEN:
            _refuse(f"{field}.content", "is no string, or an absurdly long one")
        if not isinstance(token_id, int) or not _is_id(token_id):
            _refuse(f"{field}.id", f"is {_short(token_id)}, no integer from 0 on")
        if taken.setdefault(token_id, content) != content:
            _refuse(f"{field}.id", f"{token_id} belongs to {_short(taken[token_id])} already")
        if vocab.get(content, token_id) != token_id:
            _refuse(f"{field}.id", f"is {token_id}, but model.vocab says {vocab[content]}")
        special = _flag(entry, "special", field)
        yield AddedToken(
            token_id,
            content,
            lstrip=_flag(entry, "lstrip", field),
            rstrip=_flag(entry, "rstrip", field),
            single_word=_flag(entry, "single_word", field),
            normalized=_flag(entry, "normalized", field, default=not special),
            special=special,
        )


def _parts(spec: Any, field: str, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The steps of `spec` with the names of their fields, Sequences taken apart."""
    waiting = [(field, spec)]
    seen = 0
    while waiting:
        field, spec = waiting.pop(0)
        if spec is None:
            continue
        seen += 1
        if not isinstance(spec, dict) or seen > _MOST_STEPS:
            _refuse(field, "is no object, or one of too many steps")
        if spec.get("type") != "Sequence":
            yield field, spec
            continue
        parts = spec.get(key)
        if not isinstance(parts, list):
            _refuse(f"{field}.{key}", "is missing or no list")
        waiting[:0] = [(f"{field}.{key}[{i}]", part) for i, part in enumerate(parts)]


def _is_nfc(spec: Any) -> bool:
    kinds = [(field, part.get("type")) for field, part in _parts(spec, "normalizer", "normalizers")]
    for field, kind in kinds:
        if kind != "NFC":
            _refuse_kind(f"{field}.type", kind)
    return bool(kinds)


def _steps(spec: Any) -> tuple[list[Step], bool]:
    """The pre-tokenizer's steps, and whether they end in the byte level."""
    steps: list[Step] = []
    byte_level = False
    for field, part in _parts(spec, "pre_tokenizer", "pretokenizers"):
        if byte_level:
            _refuse(field, "comes after ByteLevel, which must be the last")
        kind = part.get("type")
        if kind == "ByteLevel":
            byte_level = True
            if _flag(part, "add_prefix_space", field, default=True):
                steps.append(PrefixSpace())
            if _flag(part, "use_regex", field, default=True):
                steps.append(Split(regex.compile(GPT2_PATTERN)))
        elif kind == "Digits":
            each = _flag(part, "individual_digits", field)
            steps.append(Split(regex.compile(_NUMBER), "Isolated" if each else "Contiguous"))
        elif kind == "Split":
            steps.append(_split(part, field))
        else:
            _refuse_kind(f"{field}.type", kind)
    return steps, byte_level


def _split(part: Mapping[str, Any], field: str) -> Split:
    pattern = part.get("pattern")
    if not isinstance(pattern, dict) or pattern.keys() not in ({"Regex"}, {"String"}):
        _refuse(f"{field}.pattern", "is neither a Regex nor a String")
    ((form, source),) = pattern.items()
    if not isinstance(source, str) or not source or len(source) > _LONGEST_PATTERN:
        _refuse(f"{field}.pattern", "is empty, absurdly long or no string")
    behavior = part.get("behavior")
    if behavior not in BEHAVIORS:
        _refuse(f"{field}.behavior", f"is {_short(behavior)}, none of {', '.join(BEHAVIORS)}")
    try:
        compiled = regex.compile(source if form == "Regex" else regex.escape(source))
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        _refuse(f"{field}.pattern", f"does not compile: {str(error)[:100]}")
    return Split(compiled, behavior, _flag(part, "invert", field))


def _check_decoder(spec: Any) -> None:
    kinds = [part.get("type") for _, part in _parts(spec, "decoder", "decoders")]
    if kinds != ["ByteLevel"]:
        _refuse_kind("decoder", ", ".join(map(str, kinds))[:60] or None)
