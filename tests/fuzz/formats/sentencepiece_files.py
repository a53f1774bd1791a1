"""tokenizer.model: SentencePiece's BPE and Unigram."""

import random
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from swiftchat.tokenizer import Tokenizer
from tests.fuzz.formats.tokenizer_json import TEXTS
from tests.fuzz.mutations import odd_text
from tests.fuzz.target import Difference, NoReferenceError, Target
from tests.support.sentencepiece_models import trained

_NAMES = ("bpe bytes", "bpe user-defined", "unigram nmt_nfkc", "unigram user-defined")


def _seeds() -> list[bytes]:
    return [trained(name) for name in _NAMES]


def _mutate(chance: random.Random, data: bytes) -> bytes:
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        pieces = proto.pieces
        piece = chance.choice(pieces)
        match chance.randrange(8):
            case 0:
                del pieces[chance.randrange(len(pieces))]
            case 1:
                pieces.add().CopyFrom(piece)
            case 2:
                piece.type = chance.choice((1, 2, 3, 4, 5, 6))
            case 3:
                scores = (0.0, -1.0, 1e30, -1e30, float("inf"), float("nan"), piece.score + 1)
                piece.score = chance.choice(scores)
            case 4:
                other = chance.choice(pieces)
                piece.piece, other.piece = other.piece, piece.piece
            case 5:
                # protobuf refuses lone surrogates.
                piece.piece = odd_text(chance).encode("utf-8", "replace").decode()
            case _:
                _change_field(chance, proto)
    serialized: bytes = proto.SerializeToString()
    return serialized


def _change_field(chance: random.Random, proto: Any) -> None:
    """Change a field of the trainer or of the normalizer."""
    spec = chance.choice((proto.trainer_spec, proto.normalizer_spec))
    fields = [field for field in spec.DESCRIPTOR.fields if not field.is_repeated]
    field = chance.choice(fields)
    value = getattr(spec, field.name)
    if isinstance(value, bool):
        setattr(spec, field.name, not value)
    elif field.enum_type is not None:
        setattr(spec, field.name, chance.choice((1, 2, 3, 4)))
    elif isinstance(value, int):
        setattr(spec, field.name, chance.choice((0, 1, 2, 3, 300, 2**31 - 1)))
    elif isinstance(value, float):
        setattr(spec, field.name, chance.choice((0.0, 1.0, -1.0, float("nan"))))
    elif isinstance(value, str):
        setattr(spec, field.name, chance.choice(("", "<s>", "</s>", "▁", "x" * 5000, "the")))
    else:
        blob = bytearray(value)
        if blob:
            blob[chance.randrange(len(blob))] ^= 1 << chance.randrange(8)
        setattr(spec, field.name, chance.choice((b"", b"\0\0\0\0", bytes(blob), bytes(blob[:100]))))


def _load(data: bytes, folder: Path) -> Any:
    (folder / "tokenizer.model").write_bytes(data)
    tokenizer = Tokenizer.load(folder)
    found = []
    for text in TEXTS:
        ids = tokenizer.encode(text)
        found.append((ids, tokenizer.decode(ids)))
    tokenizer.token_bytes()
    return found


def _compare(data: bytes, folder: Path, loaded: Any) -> None:
    try:
        library = sentencepiece.SentencePieceProcessor(model_proto=data)
        theirs = [library.encode(text) for text in TEXTS]
        texts = [library.decode(ids) for ids, _ in loaded]
    except Exception as error:
        raise NoReferenceError from error
    if _has_overflowing_sums(data):
        raise NoReferenceError
    for text, (ids, decoded), expected, expected_text in zip(
        TEXTS, loaded, theirs, texts, strict=True
    ):
        if ids != expected:
            raise Difference(f"{text!r}: ids {ids} and {expected}")
        if decoded != expected_text:
            raise Difference(f"{text!r}: decoded {decoded!r} and {expected_text!r}")


def _has_overflowing_sums(data: bytes) -> bool:
    """Return whether sums of scores are beyond float32, where the library compares infinities."""
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(data)
    return any(abs(piece.score) > 1e36 for piece in proto.pieces)


SENTENCEPIECE = Target("sentencepiece", _seeds, _mutate, _load, 700, _compare)
