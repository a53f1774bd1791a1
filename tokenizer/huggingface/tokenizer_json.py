"""Reading `tokenizer.json`: what it says is checked before it is believed."""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import count, repeat
from typing import Any

import regex

from swiftchat.tokenizer.core.added_tokens import AddedToken
from swiftchat.tokenizer.core.bpe import BytePairEncoding
from swiftchat.tokenizer.core.byte_level import to_symbols
from swiftchat.tokenizer.core.metaspace import word_pattern
from swiftchat.tokenizer.core.piece_ids import PieceIds
from swiftchat.tokenizer.core.pipeline import TokenizerPipeline
from swiftchat.tokenizer.core.pretokenizer import Split, Symbols, cut
from swiftchat.tokenizer.core.unigram import UNKNOWN_PENALTY, Unigram, score_as_tokenizers_parses_it
from swiftchat.tokenizer.huggingface.checks import MOST_IDS, flag, refuse, refuse_kind, short
from swiftchat.tokenizer.huggingface.steps import normalizer, reader, steps

__all__ = ["added_token", "tokenizer_json_pipeline"]

_LONGEST_TOKEN = 1 << 12
_MOST_ADDED_TOKENS = 1 << 14
# Stands between the parts of a merge where these may contain spaces.
_NONCHARACTER = "\U0010ffff"

Encode = Callable[[str], list[int]]


def tokenizer_json_pipeline(spec: Any) -> TokenizerPipeline:
    """Check the parsed `tokenizer.json`; ids are those of the `tokenizers` library for it.

    Raises `BadModelFile` naming the field that is wrong.
    """
    if not isinstance(spec, dict):
        refuse("the file", "is no JSON object")
    model = spec.get("model")
    if not isinstance(model, dict):
        refuse("model", "is missing or no object")
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind not in ("BPE", "Unigram"):
        refuse_kind("model.type", kind)
    pieces = _pieces(model) if kind == "Unigram" else {}
    vocab = {piece: n for n, piece in enumerate(pieces)} if pieces else _vocab(model)
    added = tuple(_added_tokens(spec.get("added_tokens"), vocab))
    special = {token.content for token in added if token.special}
    stages, makes_symbols = steps(spec.get("pre_tokenizer"))
    byte_level = makes_symbols or Symbols() in stages
    read = reader(spec.get("decoder"))
    if kind == "Unigram":
        encode = _unigram(model, pieces, vocab, special)
        name = "SentencePiece Unigram"
    else:
        encode = _bpe(model, vocab, special, byte_level)
        name = "byte-level BPE" if byte_level else "SentencePiece BPE"
        pattern = None if stages or byte_level else word_pattern(vocab)
        # All text as one word would be right, too, but not be found in the cache.
        if pattern is not None and "▁" in vocab and not flag(model, "ignore_merges", "model"):
            stages.append(Split(regex.compile(pattern.pattern)))
    return TokenizerPipeline(
        kind=name,
        vocab=vocab,
        added_tokens=added,
        normalize=normalizer(spec.get("normalizer")),
        words=lambda text, at_start: cut(text, stages, at_start),
        encode_word=(lambda word: encode(to_symbols(word))) if makes_symbols else encode,
        make_decoder=read,
    )


def _bpe(
    model: Mapping[str, Any], vocab: Mapping[str, int], special: set[str], byte_level: bool
) -> Encode:
    """BPE over what ordinary text may become: no control token, by whatever merges."""
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            refuse_kind(f"model.{name}", model[name])
    merges, results, separator = _merges(model, vocab)
    unknown = model.get("unk_token") or None
    if unknown is not None and (not isinstance(unknown, str) or unknown not in vocab):
        refuse("model.unk_token", f"is {short(unknown)}, which is not in model.vocab")
    byte_ids = _byte_ids(model, vocab)
    parts = _parts(merges, separator) if unknown is not None or byte_ids else set()
    if unknown in parts:
        refuse("model.merges", f"merge the unknown token {short(unknown)}")
    if byte_level and byte_ids is not None:
        refuse_kind("model.byte_fallback", "with ByteLevel")
    if byte_ids is not None and not set(byte_ids).isdisjoint(map(vocab.get, parts)):
        refuse("model.merges", "merge tokens that stand for bytes")
    ranks = dict(zip(merges, count(), strict=False))
    special = (special - {unknown or ""}) & vocab.keys()
    if special:
        vocab = dict(vocab)
        for token in special:
            del vocab[token]
        if any(len(token) == 1 for token in special) or not special.isdisjoint(results):
            for key, result in zip(merges, results, strict=True):
                if not special.isdisjoint((result, *key.split(separator))):
                    ranks.pop(key, None)
    whole = flag(model, "ignore_merges", "model")
    fuse = flag(model, "fuse_unk", "model")
    bpe = BytePairEncoding(
        vocab, ranks, separator, unknown=unknown, fuse_unknown=fuse, ignore_merges=whole
    )
    if byte_ids is None:
        return bpe.encode
    ids = PieceIds(vocab, None, byte_ids)
    return lambda word: [vocab[word]] if whole and word in vocab else ids.look_up(bpe.split(word))


def _unigram(
    model: Mapping[str, Any], scores: dict[str, float], vocab: Mapping[str, int], special: set[str]
) -> Encode:
    unknown = model.get("unk_id")
    if unknown is not None and (type(unknown) is not int or not 0 <= unknown < len(vocab)):
        refuse("model.unk_id", f"is {short(unknown)}, of {len(vocab)} tokens")
    byte_ids = _byte_ids(model, vocab)
    scores = {piece: score_as_tokenizers_parses_it(score) for piece, score in scores.items()}
    worst = min(scores.values())
    scores = {piece: score for piece, score in scores.items() if piece not in special}
    unigram = Unigram(scores, worst - UNKNOWN_PENALTY)
    # The unknown token written out is as unknown as any, and one with its neighbors.
    ids = {piece: vocab[piece] for piece in scores if vocab[piece] != unknown}
    pieces = PieceIds(ids, unknown, byte_ids)
    return lambda word: pieces.look_up(unigram.split(word))


def _byte_ids(model: Mapping[str, Any], vocab: Mapping[str, int]) -> tuple[int, ...] | None:
    """The ids of <0x00> to <0xFF>, or None if the model does not fall back on them."""
    if not flag(model, "byte_fallback", "model"):
        return None
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    present = sum(name in vocab for name in names)
    if 0 < present < 256:
        refuse("model.byte_fallback", f"is on, but only {present} of 256 bytes have tokens")
    return tuple(vocab[name] for name in names) if present else None


def _pieces(model: Mapping[str, Any]) -> dict[str, float]:
    """Score by piece, in the order of the ids."""
    entries = model.get("vocab")
    if not isinstance(entries, list) or not 0 < len(entries) <= MOST_IDS:
        refuse("model.vocab", "is missing, empty or no list")
    pieces: dict[str, float] = {}
    for number, entry in enumerate(entries):
        piece, score = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
        if not isinstance(piece, str) or not 0 < len(piece) <= _LONGEST_TOKEN:
            refuse(f"model.vocab[{number}]", "is no pair of a token and a score")
        if not isinstance(score, int | float) or not math.isfinite(score):
            refuse(f"model.vocab[{number}]", f"has the score {short(score)}")
        if piece in pieces:
            refuse(f"model.vocab[{number}]", f"is {short(piece)}, which has an id already")
        pieces[piece] = float(score)
    return pieces


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_IDS


def _vocab(model: Mapping[str, Any]) -> dict[str, int]:
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not vocab:
        refuse("model.vocab", "is missing, empty or no object")
    ids = vocab.values()
    if set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= MOST_IDS:
        refuse("model.vocab", "has ids that are no integers from 0 on, or absurdly large")
    if len(set(ids)) != len(vocab):
        refuse("model.vocab", "gives one id to several tokens")
    if "" in vocab or max(map(len, vocab)) > _LONGEST_TOKEN:
        refuse("model.vocab", "has an empty or an absurdly long token")
    return vocab


def _merges(model: Mapping[str, Any], vocab: Mapping[str, int]) -> tuple[list[str], list[str], str]:
    """The merges as `left + separator + right` in their order, what they make, the separator.

    A merge is written `"left right"` or `["left", "right"]`. There are hundreds of thousands,
    so loops of Python's own only look for what is wrong. That both parts are tokens needs no
    check: they are symbols, or another merge's result, or the merge is never used.
    """
    merges = model.get("merges")
    if not isinstance(merges, list):
        refuse("model.merges", "is missing or no list")
    kinds = set(map(type, merges))
    if kinds <= {str} and set(map(str.count, merges, repeat(" "))) <= {1}:
        separator, keys = " ", merges
        results = list(map(str.replace, merges, repeat(" "), repeat("")))
    else:
        if kinds != {list} or set(map(len, merges)) != {2}:
            merges = [_pair(merge, number) for number, merge in enumerate(merges)]
        try:
            results = list(map("".join, merges))
        except TypeError:
            refuse("model.merges", "has a pair that is not of strings")
        separator = " " if not any(" " in result for result in results) else _NONCHARACTER
        keys = list(map(separator.join, merges))
    if not all(map(vocab.__contains__, results)):
        wrong = next(key for key, result in zip(keys, results, strict=True) if result not in vocab)
        left, _, right = wrong.partition(separator)
        refuse(
            "model.merges",
            f"join {short(left)} and {short(right)}, "
            "of which one, or the result, is not in model.vocab",
        )
    return keys, results, separator


def _parts(merges: list[str], separator: str) -> set[str]:
    return {part for merge in merges for part in merge.split(separator)}


def _pair(merge: object, number: int) -> list[Any]:
    pair = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(pair, list) or len(pair) != 2:
        refuse(f"model.merges[{number}]", "is no pair")
    return pair


def _added_tokens(entries: Any, vocab: Mapping[str, int]) -> Iterator[AddedToken]:
    if entries is None:
        return
    if not isinstance(entries, list) or len(entries) > _MOST_ADDED_TOKENS:
        refuse("added_tokens", "is no list, or an absurdly long one")
    taken = {token_id: token for token, token_id in vocab.items()}
    for number, entry in enumerate(entries):
        field = f"added_tokens[{number}]"
        if not isinstance(entry, dict):
            refuse(field, "is no object")
        token_id, content = entry.get("id"), entry.get("content")
        if not isinstance(content, str) or len(content) > _LONGEST_TOKEN:
            refuse(f"{field}.content", "is no string, or an absurdly long one")
        if not isinstance(token_id, int) or not _is_id(token_id):
            refuse(f"{field}.id", f"is {short(token_id)}, no integer from 0 on")
        if taken.setdefault(token_id, content) != content:
            refuse(f"{field}.id", f"{token_id} belongs to {short(taken[token_id])} already")
        if vocab.get(content, token_id) != token_id:
            refuse(f"{field}.id", f"is {token_id}, but model.vocab says {vocab[content]}")
        yield added_token(token_id, entry, field)


def added_token(token_id: int, entry: Mapping[str, Any], field: str) -> AddedToken:
    """Read an added token, which has the same form in `tokenizer_config.json`."""
    content = entry.get("content")
    if not isinstance(content, str) or len(content) > _LONGEST_TOKEN:
        refuse(f"{field}.content", "is no string, or an absurdly long one")
    special = flag(entry, "special", field)
    return AddedToken(
        token_id,
        content,
        lstrip=flag(entry, "lstrip", field),
        rstrip=flag(entry, "rstrip", field),
        single_word=flag(entry, "single_word", field),
        normalized=flag(entry, "normalized", field, default=not special),
        special=special,
    )
