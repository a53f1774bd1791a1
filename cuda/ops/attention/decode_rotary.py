"""Head norm and rotary embedding within `decode_attention`: decode_rotary.cuh."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.attention.rotary import HeadNorm

_HEAD_DIMS = (64, 128, 256)
_WIDTH = 8  # elements of an access
ROTARY_DEFINES = {"ROTARY": "1", "WIDTH": str(_WIDTH)}
ROTARY_PARAMETERS = (
    ", pointer q_norm, pointer k_norm, pointer cos_sin, pointer positions, pointer slot_mapping, "
    "int rotary_dim, int num_gate_heads, float eps, float weight_offset"
)


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

    def check(self, gpu: Gpu, q: Tensor, num_kv_heads: int, new_tokens: int) -> None:
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
        if self.cos_sin is not None:
            check_tensor("cos_sin", self.cos_sin, self.cos_sin.shape, torch.float32, gpu)
        check_tensor("positions", self.positions, (n,), "int32", gpu)
        check_tensor("slot_mapping", self.slot_mapping, (n,), "int32", gpu)
        if norm is not None:
            check_tensor("norm.query", norm.query, (head_dim,), q.dtype, gpu)
            check_tensor("norm.key", norm.key, (head_dim,), q.dtype, gpu)

    def arguments(self) -> dict[str, Any]:
        norm = self.norm
        return {
            "q_norm": norm and norm.query,
            "k_norm": norm and norm.key,
            "cos_sin": self.cos_sin,
            "positions": self.positions,
            "slot_mapping": self.slot_mapping,
            "rotary_dim": self.rotary_dim,
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
