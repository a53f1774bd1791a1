"""Reading `tokenizer.model`: SentencePiece's protobuf, checked before it is believed."""

import math
import struct
from dataclasses import dataclass
from typing import NamedTuple

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.core.piece_ids import PieceKind
from swiftchat.tokenizer.sentencepiece.protobuf import fields

__all__ = ["NormalizerSpec", "Piece", "SentencePieceModel"]

_MOST_PIECES = 1 << 24
_LONGEST_PIECE = 1 << 12
_UNIGRAM, _BPE = 1, 2
_MODEL_TYPES = {1: "Unigram", 2: "BPE", 3: "words", 4: "characters"}


_KINDS = {int(kind): kind for kind in PieceKind}


class Piece(NamedTuple):
    text: str
    score: float = 0.0
    kind: PieceKind = PieceKind.NORMAL


@dataclass(frozen=True)
class NormalizerSpec:
    """`NormalizerSpec` of the protobuf, and `treat_whitespace_as_suffix` of its neighbor."""

    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True
    whitespace_as_suffix: bool = False


@dataclass(frozen=True)
class SentencePieceModel:
    """A checked `tokenizer.model`; a piece's place is its id.

    `byte_ids` are those of the pieces <0x00> to <0xFF>, or None without byte fallback; `bos` and
    `eos` the control pieces of these parts.
    """

    pieces: tuple[Piece, ...]
    is_unigram: bool
    normalizer: NormalizerSpec
    unknown_id: int
    unknown_surface: str
    byte_ids: tuple[int, ...] | None
    bos: str | None
    eos: str | None

    @classmethod
    def read(cls, data: bytes) -> "SentencePieceModel":
        """Check the file's bytes; raises `BadModelFile` naming what is wrong."""
        pieces: list[Piece] = []
        trainer: list[bytes] = []
        normalizer: list[bytes] = []
        for number, value in fields(data):
            if number == 1:
                pieces.append(_piece(_message(value, "a piece"), len(pieces)))
                if len(pieces) > _MOST_PIECES:
                    _refuse("has absurdly many pieces")
            # A message that comes in several parts is their concatenation.
            elif number == 2:
                trainer.append(_message(value, "trainer_spec"))
            elif number == 3:
                normalizer.append(_message(value, "normalizer_spec"))
            elif number == 5 and any(n == 2 and v for n, v in fields(_message(value, "field 5"))):
                _refuse("has a denormalizer, which is not supported")
        # The defaults are those of sentencepiece_model.proto.
        training: dict[int, int | bytes] = {3: _UNIGRAM, 24: 0, 35: 0}
        training.update(fields(b"".join(trainer)))
        rules: dict[int, int | bytes] = {2: b"", 3: 1, 4: 1, 5: 1}
        rules.update(fields(b"".join(normalizer)))
        model_type = _number(training[3], "model_type")
        if model_type not in (_UNIGRAM, _BPE):
            raise BadModelFile(
                "tokenizer.model: a vocabulary of "
                f"{_MODEL_TYPES.get(model_type, f'type {model_type}')} is not supported",
                "supported: BPE and Unigram",
            )
        return cls(
            tuple(pieces),
            model_type == _UNIGRAM,
            NormalizerSpec(
                _message(rules[2], "precompiled_charsmap"),
                bool(_number(rules[3], "add_dummy_prefix")),
                bool(_number(rules[4], "remove_extra_whitespaces")),
                bool(_number(rules[5], "escape_whitespaces")),
                bool(_number(training[24], "treat_whitespace_as_suffix")),
            ),
            _unknown_id(pieces),
            _text(training.get(44, b" \xe2\x81\x87 "), "unk_surface"),
            _byte_ids(pieces, bool(_number(training[35], "byte_fallback"))),
            _control(pieces, _text(training.get(46, b"<s>"), "bos_piece")),
            _control(pieces, _text(training.get(47, b"</s>"), "eos_piece")),
        )


def _refuse(what: str) -> None:
    raise BadModelFile(f"tokenizer.model: {what}")


def _message(value: int | bytes, field: str) -> bytes:
    if isinstance(value, int):
        raise BadModelFile(f"tokenizer.model: {field} is a number")
    return value


def _number(value: int | bytes, field: str) -> int:
    if not isinstance(value, int):
        raise BadModelFile(f"tokenizer.model: {field} is no number")
    return value


def _text(value: int | bytes, field: str) -> str:
    try:
        return _message(value, field).decode()
    except UnicodeDecodeError:
        raise BadModelFile(f"tokenizer.model: {field} is no UTF-8") from None


def _piece(data: bytes, number: int) -> Piece:
    values = dict(fields(data))
    text = _text(values.get(1, b""), f"piece {number}")
    if not 0 < len(text) <= _LONGEST_PIECE:
        _refuse(f"piece {number} is empty or absurdly long")
    raw = _message(values.get(2, bytes(4)), f"the score of piece {number}")
    score = struct.unpack("<f", raw)[0] if len(raw) == 4 else math.nan
    if not math.isfinite(score):
        _refuse(f"the score of piece {number} is no number")
    kind = _number(values.get(3, PieceKind.NORMAL), f"the type of piece {number}")
    if kind not in _KINDS:
        _refuse(f"the type of piece {number} is {kind}")
    return Piece(text, score, _KINDS[kind])


def _unknown_id(pieces: list[Piece]) -> int:
    if len({piece.text for piece in pieces}) != len(pieces):
        _refuse("has a piece twice")
    unknown = [number for number, piece in enumerate(pieces) if piece.kind == PieceKind.UNKNOWN]
    if len(unknown) != 1:
        _refuse(f"has {len(unknown)} unknown pieces instead of one")
    return unknown[0]


def _control(pieces: list[Piece], text: str) -> str | None:
    found = (piece.text == text and piece.kind == PieceKind.CONTROL for piece in pieces)
    return text if any(found) else None


def _byte_ids(pieces: list[Piece], wanted: bool) -> tuple[int, ...] | None:
    if not wanted:
        return None
    ids = {piece.text: n for n, piece in enumerate(pieces) if piece.kind == PieceKind.BYTE}
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    if ids.keys() != set(names):
        _refuse("falls back on bytes, but its byte pieces are not <0x00> to <0xFF>")
    return tuple(ids[name] for name in names)
