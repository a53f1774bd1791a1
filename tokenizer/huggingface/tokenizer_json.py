"""Read `tokenizer.json` and check its contents."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count, repeat
from typing import Any

import regex

from swiftchat.tokenizer.core.added_tokens import AddedToken
from swiftchat.tokenizer.core.bpe import BytePairEncoding
from swiftchat.tokenizer.core.byte_level import to_symbols
from swiftchat.tokenizer.core.metaspace import Metaspace, word_pattern
from swiftchat.tokenizer.core.piece_ids import PieceIds
from swiftchat.tokenizer.core.pipeline import TokenizerPipeline
from swiftchat.tokenizer.core.pretokenizer import Split, Symbols, cut
from swiftchat.tokenizer.core.unigram import UNKNOWN_PENALTY, Unigram, score_as_tokenizers_parses_it
from swiftchat.tokenizer.huggingface.checks import MAX_IDS, flag, reject, reject_kind, short
from swiftchat.tokenizer.huggingface.declared_tokens import (
    MAX_ADDED_TOKENS,
    NONE_DECLARED,
    DeclaredTokens,
    added_token,
)
from swiftchat.tokenizer.huggingface.normalizer import Normalizer
from swiftchat.tokenizer.huggingface.post_processor import end_ids
from swiftchat.tokenizer.huggingface.steps import make_decoder, steps

_MAX_TOKEN_CHARACTERS = 1 << 12
_MAX_SCORE = 1e300  # sums of larger ones overflow
# Separates the parts of a merge if these may contain spaces.
_NONCHARACTER = "\U0010ffff"

Encode = Callable[[str], list[int]]
Merges = tuple[list[str], list[str], str]


def tokenizer_json_pipeline(
    spec: Any, declared: DeclaredTokens = NONE_DECLARED
) -> TokenizerPipeline:
    """Build from the parsed `tokenizer.json`; ids equal those of the `tokenizers` library.

    `declared` are the tokens of the files beside it. Raises `BadModelFile` naming the wrong field.
    """
    if not isinstance(spec, dict):
        reject("the file", "is not a JSON object")
    model = spec.get("model")
    if not isinstance(model, dict):
        reject("model", "is missing or not an object")
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind not in ("BPE", "Unigram"):
        reject_kind("model.type", kind)
    pieces = _pieces(model) if kind == "Unigram" else {}
    vocab = {piece: n for n, piece in enumerate(pieces)} if pieces else _vocab(model)
    merged = _merges(model, vocab) if kind == "BPE" else ([], [], "")
    added = declared.added_to(own_tokens(spec), vocab, declared.texts.intersection(merged[1]))
    special = {token.content for token in added if token.special}
    stages, makes_symbols = steps(spec.get("pre_tokenizer"))
    byte_level = makes_symbols or Symbols() in stages
    decoder = make_decoder(spec.get("decoder"), is_byte_level=byte_level)
    before, after = end_ids(spec.get("post_processor"))
    if kind == "Unigram":
        encode = _unigram(model, pieces, vocab, special)
        name = "SentencePiece Unigram"
    else:
        encode = _bpe(model, vocab, merged, special, byte_level)
        name = "byte-level BPE" if byte_level else "SentencePiece BPE"
        pattern = None if stages or byte_level else word_pattern(vocab)
        # Without a split the result is the same, but no word is found in the cache.
        if pattern is not None and "▁" in vocab and not flag(model, "ignore_merges", "model"):
            stages.append(Split(regex.compile(pattern.pattern)))
    normalize = Normalizer(spec.get("normalizer"))
    looks_at_start = any(isinstance(s, Metaspace) and s.prepend == "first" for s in stages)
    return TokenizerPipeline(
        kind=name,
        vocab=vocab,
        added_tokens=added,
        normalize=normalize,
        words=lambda text, num_first: cut(text, stages, num_first),
        encode_word=(lambda word: encode(to_symbols(word))) if makes_symbols else encode,
        make_decoder=decoder,
        before=before,
        after=after,
        count_first=normalize.count_first if looks_at_start else lambda text: 1,
    )


def _bpe(
    model: Mapping[str, Any],
    vocab: Mapping[str, int],
    merged: Merges,
    special: set[str],
    byte_level: bool,
) -> Encode:
    """Return an encoder by BPE, without the merges that would make a control token."""
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            reject_kind(f"model.{name}", model[name])
    merges, results, separator = merged
    unknown = model.get("unk_token") or None
    if unknown is not None and (not isinstance(unknown, str) or unknown not in vocab):
        reject("model.unk_token", f"is {short(unknown)}, which is not in model.vocab")
    byte_ids = _byte_ids(model, vocab)
    parts = _parts(merges, separator) if unknown is not None or byte_ids else set()
    if unknown in parts:
        reject("model.merges", f"merge the unknown token {short(unknown)}")
    if byte_level and byte_ids is not None:
        reject_kind("model.byte_fallback", "with ByteLevel")
    if byte_ids is not None and not set(byte_ids).isdisjoint(map(vocab.get, parts)):
        reject("model.merges", "merge byte tokens")
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
        reject("model.unk_id", f"is {short(unknown)}, not the id of one of {len(vocab)} tokens")
    byte_ids = _byte_ids(model, vocab)
    scores = {piece: score_as_tokenizers_parses_it(score) for piece, score in scores.items()}
    worst = min(scores.values())
    scores = {piece: score for piece, score in scores.items() if piece not in special}
    unigram = Unigram(scores, worst - UNKNOWN_PENALTY)
    # The text of the unknown token is unknown itself and merges with unknown neighbors.
    ids = {piece: vocab[piece] for piece in scores if vocab[piece] != unknown}
    pieces = PieceIds(ids, unknown, byte_ids)
    return lambda word: pieces.look_up(unigram.split(word))


def _byte_ids(model: Mapping[str, Any], vocab: Mapping[str, int]) -> tuple[int, ...] | None:
    """Return the ids of <0x00> to <0xFF>, or None without byte fallback."""
    if not flag(model, "byte_fallback", "model"):
        return None
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    present = sum(name in vocab for name in names)
    if 0 < present < 256:
        reject("model.byte_fallback", f"is on, but only {present} of 256 bytes have tokens")
    return tuple(vocab[name] for name in names) if present else None


def _pieces(model: Mapping[str, Any]) -> dict[str, float]:
    """Return scores by piece, ordered by id."""
    entries = model.get("vocab")
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_IDS:
        reject("model.vocab", "is missing, empty or not a list")
    pieces: dict[str, float] = {}
    for number, entry in enumerate(entries):
        piece, score = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
        if not isinstance(piece, str) or not 0 < len(piece) <= _MAX_TOKEN_CHARACTERS:
            reject(f"model.vocab[{number}]", "is not a pair of a token and a score")
        if not isinstance(score, int | float) or not abs(score) <= _MAX_SCORE:
            reject(f"model.vocab[{number}]", f"has the invalid score {short(score)}")
        if piece in pieces:
            reject(f"model.vocab[{number}]", f"is {short(piece)}, which already has an id")
        pieces[piece] = float(score)
    return pieces


def _vocab(model: Mapping[str, Any]) -> dict[str, int]:
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not vocab:
        reject("model.vocab", "is missing, empty or not an object")
    ids = vocab.values()
    if set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= MAX_IDS:
        reject("model.vocab", f"has ids that are not integers from 0 to {MAX_IDS - 1}")
    if len(set(ids)) != len(vocab):
        reject("model.vocab", "gives one id to several tokens")
    if "" in vocab or max(map(len, vocab)) > _MAX_TOKEN_CHARACTERS:
        reject("model.vocab", "has an empty token or one that is too long")
    return vocab


def _merges(model: Mapping[str, Any], vocab: Mapping[str, int]) -> Merges:
    """Return the merges as `left + separator + right`, their results, and the separator.

    A merge is written `"left right"` or `["left", "right"]`. There are hundreds of thousands, so
    explicit loops run only to find an error. Whether both parts are tokens needs no check: they
    are symbols or results of other merges, or else the merge is never used.
    """
    merges = model.get("merges")
    if not isinstance(merges, list):
        reject("model.merges", "is missing or not a list")
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
            reject("model.merges", "has a pair that is not of strings")
        separator = " " if not any(" " in result for result in results) else _NONCHARACTER
        keys = list(map(separator.join, merges))
    if not all(map(vocab.__contains__, results)):
        invalid = next(
            key for key, result in zip(keys, results, strict=True) if result not in vocab
        )
        left, _, right = invalid.partition(separator)
        reject(
            "model.merges",
            f"contain {short(left)} and {short(right)}, "
            "but one of these or their result is not in model.vocab",
        )
    return keys, results, separator


def _parts(merges: list[str], separator: str) -> set[str]:
    return {part for merge in merges for part in merge.split(separator)}


def _pair(merge: object, number: int) -> list[Any]:
    pair = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(pair, list) or len(pair) != 2:
        reject(f"model.merges[{number}]", "is not a pair")
    return pair


def own_tokens(spec: Any) -> list[AddedToken]:
    """Return the `added_tokens` of the parsed file in their order, with the ids in the file.

    `tokenizers` ignores these ids; transformers sorts by them. Raises `BadModelFile`.
    """
    entries = spec.get("added_tokens") if isinstance(spec, dict) else None
    if entries is None:
        return []
    if not isinstance(entries, list) or len(entries) > MAX_ADDED_TOKENS:
        reject("added_tokens", "is not a list, or too long")
    return [_own_token(entry, f"added_tokens[{n}]") for n, entry in enumerate(entries)]


def _own_token(entry: Any, field: str) -> AddedToken:
    if not isinstance(entry, dict):
        reject(field, "is not an object")
    token_id = entry.get("id")
    if type(token_id) is not int or not 0 <= token_id < MAX_IDS:
        reject(f"{field}.id", f"is {short(token_id)}, not an integer from 0 to {MAX_IDS - 1}")
    return replace(added_token(entry, "tokenizer.json", field), id=token_id)
