"""The SentencePiece vocabulary of a GGUF file as a `tokenizer.model`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from swiftchat.errors import BadModelFile

# The algorithm in sentencepiece_model.proto by `tokenizer.ggml.model`.
SENTENCEPIECE_KINDS = {"t5": 1, "llama": 2}
# Token types; GGUF uses the values of the protobuf.
_UNKNOWN, _UNUSED, _BYTE = 2, 5, 6
_KINDS = range(1, 7)


def tokenizer_model(
    metadata: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[Any]
) -> bytes:
    """Return the content of the `tokenizer.model` from which the metadata was made.

    GGUF has the pieces, scores, types and normalizer options; it lacks only training parameters.
    Raises `BadModelFile` if scores or types do not match the tokens.
    """
    scores = metadata.get("tokenizer.ggml.scores", [0.0] * len(tokens))
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise BadModelFile("tokenizer.ggml.scores does not match tokenizer.ggml.tokens")
    if not all(type(score) in (int, float) and math.isfinite(score) for score in scores):
        raise BadModelFile("tokenizer.ggml.scores has an element that is not a finite number")
    if not all(type(kind) is int and kind in _KINDS for kind in kinds):
        raise BadModelFile("tokenizer.ggml.token_type has an unknown type")
    # Only one token may have the type unknown; in many files padding has it too.
    first = kinds.index(_UNKNOWN) if _UNKNOWN in kinds else 0
    unknown_id = metadata.get("tokenizer.ggml.unknown_token_id", first)
    kinds = [_UNUSED if kind == _UNKNOWN else kind for kind in kinds]
    if type(unknown_id) is int and 0 <= unknown_id < len(kinds):
        kinds[unknown_id] = _UNKNOWN
    proto = sentencepiece_model_pb2.ModelProto()
    for token, score, kind in zip(tokens, scores, kinds, strict=True):
        proto.pieces.add(piece=token, score=score, type=kind)
    trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
    trainer.model_type = SENTENCEPIECE_KINDS[metadata["tokenizer.ggml.model"]]
    trainer.byte_fallback = _BYTE in kinds
    for name in ("bos", "eos"):
        token_id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if type(token_id) is int and 0 <= token_id < len(tokens):
            setattr(trainer, f"{name}_piece", tokens[token_id])
    # Defaults as in llama.cpp.
    normalizer.precompiled_charsmap = _charsmap(
        metadata.get("tokenizer.ggml.precompiled_charsmap", [])
    )
    normalizer.add_dummy_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    normalizer.remove_extra_whitespaces = bool(
        metadata.get("tokenizer.ggml.remove_extra_whitespaces", False)
    )
    serialized: bytes = proto.SerializeToString()
    return serialized


def _charsmap(value: object) -> bytes:
    # Some files store signed bytes.
    if not isinstance(value, list) or not all(
        type(byte) is int and -128 <= byte < 256 for byte in value
    ):
        raise BadModelFile("tokenizer.ggml.precompiled_charsmap is not a list of bytes")
    return bytes(byte & 0xFF for byte in value)
