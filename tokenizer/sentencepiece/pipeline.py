"""Build the pipeline of a `tokenizer.model`."""

import re
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from swiftchat.tokenizer.core.added_tokens import AddedToken
from swiftchat.tokenizer.core.metaspace import sentencepiece_decoder, word_pattern
from swiftchat.tokenizer.core.piece_ids import PieceIds, PieceKind
from swiftchat.tokenizer.core.pipeline import TokenizerPipeline
from swiftchat.tokenizer.core.unigram import UNKNOWN_PENALTY
from swiftchat.tokenizer.huggingface.declared_tokens import DeclaredTokens
from swiftchat.tokenizer.huggingface.post_processor import with_configured_ends
from swiftchat.tokenizer.sentencepiece.bpe import SentencePieceBpe
from swiftchat.tokenizer.sentencepiece.chatglm import SpacePieces, chatglm_tokens
from swiftchat.tokenizer.sentencepiece.model import Piece, SentencePieceModel
from swiftchat.tokenizer.sentencepiece.unigram import SentencePieceUnigram

_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


def sentencepiece_pipeline(
    model: SentencePieceModel, config: Mapping[str, Any], declared: DeclaredTokens
) -> TokenizerPipeline:
    """Return the pipeline; ids equal those of the `sentencepiece` library.

    Each text between control tokens gets a dummy prefix of its own, as in llama.cpp, Llama 2's own
    code and its first tokenizer.json. (transformers 5 converts the file to a tokenizer.json with a
    prefix at the beginning only, unless `tokenizer_config.json` sets `legacy`. A saved
    tokenizer.json takes precedence.)

    `config` is `tokenizer_config.json`. The tokens that it and the files beside it declare, and
    the control pieces, are added tokens. Ordinary text never becomes a special token.
    """
    vocab = {piece.text: number for number, piece in enumerate(model.pieces)}
    control = (
        AddedToken(number, piece.text, special=True)
        for number, piece in enumerate(model.pieces)
        if piece.kind == PieceKind.CONTROL
    )
    # Ordinary text may become the unknown token, so it is not a control token. The normalizer puts
    # a space before each text, so tokens are matched before it.
    unknown = model.pieces[model.unknown_id].text
    added = tuple(
        replace(token, normalized=False)
        for token in declared.added_to((*control, *chatglm_tokens(model, config)), vocab)
        if token.content != unknown
    )
    special = {token.content for token in added if token.special}
    pieces = {
        number: piece
        for number, piece in enumerate(model.pieces)
        if piece.text not in special
        and piece.kind in (PieceKind.NORMAL, PieceKind.USER_DEFINED, PieceKind.UNUSED)
    }
    normalize = model.make_normalizer(special)
    split: Callable[[str], list[str]]
    if model.is_unigram:
        pieces = {n: piece for n, piece in pieces.items() if piece.kind != PieceKind.UNUSED}
        split = _unigram(model, pieces.values()).split
        pattern = None
    else:
        split, pattern = _bpe(model, pieces.values())
    # Unused pieces are split again, or unknown.
    ids_of_text = {p.text: n for n, p in pieces.items() if p.kind != PieceKind.UNUSED}
    ids = PieceIds(ids_of_text, model.unknown_id, model.byte_ids)
    spec = model.normalizer
    spaces = SpacePieces(ids_of_text)
    pipeline = TokenizerPipeline(
        kind=f"SentencePiece {'Unigram' if model.is_unigram else 'BPE'}",
        vocab=vocab,
        added_tokens=added,
        normalize=lambda text: normalize(spaces.write(text)),
        words=lambda text, _: (text,) if pattern is None else pattern.findall(text),
        encode_word=lambda word: ids.look_up(split(word)),
        make_decoder=partial(
            sentencepiece_decoder,
            {piece.text: piece.kind for piece in model.pieces},
            model.unknown_surface,
            spaces.surfaces,
            strips=spec.add_dummy_prefix or spec.remove_extra_whitespaces,
            strips_more=spec.remove_extra_whitespaces,
        ),
    )
    return with_configured_ends(pipeline, config, declared)


def _bpe(
    model: SentencePieceModel, pieces: Collection[Piece]
) -> tuple[Callable[[str], list[str]], re.Pattern[str] | None]:
    """Return the split function, and the pattern of the words to which it can be applied."""
    bpe = SentencePieceBpe(
        {piece.text: piece.score for piece in pieces},
        [piece.text for piece in pieces if piece.kind == PieceKind.USER_DEFINED],
        {piece.text for piece in pieces if piece.kind == PieceKind.UNUSED},
    )
    texts = {piece.text for piece in pieces}
    has_bytes = model.byte_ids is not None
    # Without byte fallback, adjacent unknown characters are one token and must not be cut.
    if bpe.has_unused or not (has_bytes or "▁" in texts):
        return bpe.split, None
    return bpe.split, word_pattern(texts, cut_single_characters=has_bytes)


def _unigram(model: SentencePieceModel, pieces: Iterable[Piece]) -> SentencePieceUnigram:
    normal = [piece.score for piece in model.pieces if piece.kind == PieceKind.NORMAL]
    scores = {
        piece.text: piece.score
        if piece.kind == PieceKind.NORMAL
        # A user-defined piece wins over any other spelling.
        else _float32(0.1 * (len(piece.text.encode()) - 1))
        for piece in pieces
    }
    unknown_score = _float32(min([_LARGEST_FLOAT32, *normal]) - UNKNOWN_PENALTY)
    return SentencePieceUnigram(
        scores, unknown_score, word_pattern(scores, cut_single_characters=True)
    )


def _float32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded
