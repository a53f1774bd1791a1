"""Ids of pieces, with byte fallback and the unknown token."""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum


class PieceKind(IntEnum):
    """`SentencePiece.Type` of sentencepiece_model.proto, and `token_type` of GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class PieceIds:
    """Looks up pieces; an unknown piece becomes its bytes, or the unknown token.

    Adjacent unknown pieces become one unknown token.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        unknown_id: int | None,
        byte_ids: Sequence[int] | None,
    ) -> None:
        self._ids = ids
        self._unknown_id = unknown_id
        self._byte_ids = byte_ids

    def look_up(self, pieces: Iterable[str]) -> list[int]:
        """Return the ids of `pieces` in order."""
        found = list(map(self._ids.get, pieces := list(pieces)))
        if None not in found:
            return found  # type: ignore[return-value]  # just checked
        ids: list[int] = []
        was_unknown = False
        for piece, piece_id in zip(pieces, found, strict=True):
            is_unknown = piece_id is None and self._byte_ids is None
            if piece_id is not None:
                ids.append(piece_id)
            elif self._byte_ids is not None:
                ids += map(self._byte_ids.__getitem__, piece.encode())
            elif self._unknown_id is not None and not was_unknown:
                ids.append(self._unknown_id)
            was_unknown = is_unknown
        return ids
