"""Head norm and rotary embedding within `decode_attention`: decode_rotary.cuh."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from swiftchat.cuda.ops.attention.rotary import HeadNorm
from swiftchat.cuda.signature import Macro

_HEAD_DIMS = (64, 128, 256)
_WIDTH = 8  # elements of an access
ROTARY_MACROS: dict[str, Macro] = {"ROTARY": 1, "WIDTH": _WIDTH}


@dataclass(frozen=True)
class DecodeRotary:
    """What `rotary` would do for one token of each sequence before `decode_attention`.

    The arguments are those of `rotary`; norms that come after the rotation, or are also of values,
    are not supported.
    """

    cos_sin: Tensor | None
    positions: Tensor
    slot_mapping: Tensor
    norm: HeadNorm | None = None
    num_gate_heads: int = 0

    @property
    def rotary_dim(self) -> int:
        return 0 if self.cos_sin is None else self.cos_sin.shape[1]

    def check(self, q: Tensor, num_kv_heads: int, new_tokens: int) -> None:
        """Raise `ValueError` unless the kernel does this for q [n, num_heads, head_dim]."""
        (n, num_heads, head_dim), norm = q.shape, self.norm
        if not decode_rotary_fits(head_dim, self.rotary_dim, norm) or new_tokens != 1:
            raise ValueError(
                f"decode_attention does not rotate heads of {head_dim} with rotary_dim "
                f"{self.rotary_dim}, {norm} and {new_tokens} new tokens"
            )
        width = (num_heads + self.num_gate_heads + 2 * num_kv_heads) * head_dim
        if n > 1 and q.stride(0) < width:
            raise ValueError(f"rows of q are {q.stride(0)} elements apart, less than {width}")

    def arguments(self) -> dict[str, Any]:
        norm = self.norm
        return {
            "q_norm": norm and norm.query,
            "k_norm": norm and norm.key,
            "cos_sin": self.cos_sin,
            "positions": self.positions,
            "slot_mapping": self.slot_mapping,
            "num_gate_heads": self.num_gate_heads,
            "eps": norm.eps if norm else 0.0,
            "weight_offset": norm.weight_offset if norm else 0.0,
        }


def decode_rotary_fits(head_dim: int, rotary_dim: int, norm: HeadNorm | None) -> bool:
    """Return whether `decode_attention` normalizes and rotates heads of these sizes."""
    return (
        head_dim in _HEAD_DIMS
        and rotary_dim % (2 * _WIDTH) == 0
        and (norm is None or not (norm.after or norm.values))
    )


def rotated_bytes(rows: int, head_dim: int, itemsize: int) -> int:
    """Return the shared memory of a block's queries, and the newest key and value."""
    return (rows + 2) * head_dim * itemsize
