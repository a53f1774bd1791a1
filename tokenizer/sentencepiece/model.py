"""Read `tokenizer.model` with the `sentencepiece` library and check its contents."""

import math
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.core.piece_ids import PieceKind

_MAX_PIECES = 1 << 24
_MAX_PIECE_CHARACTERS = 1 << 12
_MODEL_TYPES = {1: "Unigram", 2: "BPE", 3: "words", 4: "characters"}
_KINDS = {int(kind): kind for kind in PieceKind}


class Piece(NamedTuple):
    text: str
    score: float = 0.0
    kind: PieceKind = PieceKind.NORMAL


@dataclass(frozen=True)
class NormalizerSpec:
    """Fields of `normalizer_spec`, and `treat_whitespace_as_suffix` of `trainer_spec`."""

    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    whitespace_as_suffix: bool


@dataclass(frozen=True)
class SentencePieceModel:
    """A checked `tokenizer.model`; the id of a piece is its index in `pieces`.

    `byte_ids` are the ids of the pieces <0x00> to <0xFF>, None without byte fallback. `bos` and
    `eos` are None if no control piece has that text.
    """

    pieces: tuple[Piece, ...]
    is_unigram: bool
    normalizer: NormalizerSpec
    unknown_id: int
    unknown_surface: str
    byte_ids: tuple[int, ...] | None
    bos: str | None
    eos: str | None
    _proto: Any  # sentencepiece_model_pb2.ModelProto, which has no type stubs

    @classmethod
    def read(cls, data: bytes) -> "SentencePieceModel":
        """Parse and check the bytes of a file; raises `BadModelFile` naming the wrong field."""
        proto = sentencepiece_model_pb2.ModelProto()
        try:
            proto.ParseFromString(data)
        except DecodeError as error:
            raise _bad(f"not a SentencePiece model ({error})") from None
        trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
        if trainer.model_type not in (trainer.UNIGRAM, trainer.BPE):
            raise BadModelFile(
                f"tokenizer.model: a vocabulary of {_MODEL_TYPES[trainer.model_type]} is not "
                "supported",
                "supported: BPE and Unigram",
            )
        if proto.denormalizer_spec.precompiled_charsmap:
            raise _bad("has a denormalizer, which is not supported")
        pieces = _pieces(proto)
        return cls(
            pieces,
            trainer.model_type == trainer.UNIGRAM,
            NormalizerSpec(
                normalizer.precompiled_charsmap,
                normalizer.add_dummy_prefix,
                normalizer.remove_extra_whitespaces,
                trainer.treat_whitespace_as_suffix,
            ),
            _unknown_id(pieces),
            _text(trainer.unk_surface, "unk_surface"),
            _byte_ids(pieces) if trainer.byte_fallback else None,
            _control_piece(pieces, _text(trainer.bos_piece, "bos_piece")),
            _control_piece(pieces, _text(trainer.eos_piece, "eos_piece")),
            proto,
        )

    def make_normalizer(self, special: Set[str]) -> Callable[[str], str]:
        """Return the library's `normalize`, O(text).

        User-defined pieces are protected from normalization, except those in `special`, which
        ordinary text never becomes. Raises `BadModelFile` if the library rejects the model.
        """
        proto = sentencepiece_model_pb2.ModelProto()
        proto.CopyFrom(self._proto)
        for piece in proto.pieces:
            if piece.type == piece.USER_DEFINED and piece.piece in special:
                piece.type = piece.CONTROL
        try:
            library = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        except (RuntimeError, ValueError) as error:
            raise _bad(f"sentencepiece cannot load it ({error})") from None

        def normalize(text: str) -> str:
            try:
                normalized: str = library.normalize(text)
            except (RuntimeError, ValueError) as error:
                raise _bad(f"sentencepiece cannot normalize a text ({error})") from None
            return normalized

        return normalize


def _bad(problem: str) -> BadModelFile:
    return BadModelFile(f"tokenizer.model: {problem}")


def _text(value: str | bytes, field: str) -> str:
    if isinstance(value, bytes):  # protobuf's value for a string of invalid UTF-8
        raise _bad(f"{field} is not valid UTF-8")
    return value


def _pieces(proto: Any) -> tuple[Piece, ...]:
    if len(proto.pieces) > _MAX_PIECES:
        raise _bad(f"has {len(proto.pieces)} pieces, more than {_MAX_PIECES}")
    pieces = tuple(
        Piece(_text(p.piece, f"piece {number}"), p.score, _KINDS[p.type])
        for number, p in enumerate(proto.pieces)
    )
    for number, piece in enumerate(pieces):
        if not 0 < len(piece.text) <= _MAX_PIECE_CHARACTERS:
            raise _bad(f"piece {number} has {len(piece.text)} characters")
        if not math.isfinite(piece.score):
            raise _bad(f"the score of piece {number} is {piece.score}")
    if len({piece.text for piece in pieces}) != len(pieces):
        raise _bad("has a piece twice")
    return pieces


def _unknown_id(pieces: tuple[Piece, ...]) -> int:
    unknown = [number for number, piece in enumerate(pieces) if piece.kind == PieceKind.UNKNOWN]
    if len(unknown) != 1:
        raise _bad(f"has {len(unknown)} unknown pieces instead of one")
    return unknown[0]


def _control_piece(pieces: tuple[Piece, ...], text: str) -> str | None:
    found = (piece.text == text and piece.kind == PieceKind.CONTROL for piece in pieces)
    return text if any(found) else None


def _byte_ids(pieces: tuple[Piece, ...]) -> tuple[int, ...]:
    ids = {piece.text: n for n, piece in enumerate(pieces) if piece.kind == PieceKind.BYTE}
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    if ids.keys() != set(names):
        raise _bad("has byte fallback, but its byte pieces are not <0x00> to <0xFF>")
    return tuple(ids[name] for name in names)
