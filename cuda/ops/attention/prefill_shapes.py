"""The variants of the kernel `prefill_attention`, and which one a call takes."""

from dataclasses import dataclass
from math import ceil

import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.quantized_kv import scheme_macros
from swiftchat.cuda.signature import Macro

_MAX_DIM = 512
DIMS = {
    "fma": (32, 64, 128, 256, 512),
    "mma": (32, 64, 80, 96, 128, 256, 512),
    "wgmma": (64, 128, 256),
}
_PATHS = {"fma": 0, "mma": 1, "wgmma": 2}
# With less shared memory a block, the `mma` path uses tiles of half the size.
_LARGE_SHARED_BYTES = 160 * 1024


@dataclass(frozen=True)
class PrefillShape:
    """Tile sizes of a path, equal to those in the kernel."""

    path: str
    dim: int  # head_dim, rounded up
    biased: bool
    small: bool
    kv_scheme: str | None = None
    split: bool = False

    @property
    def consumers(self) -> int:
        """Warpgroups with queries: three, or two if three would need too many registers."""
        return 3 if self.dim == 64 and not self.biased else 2

    @property
    def num_rows(self) -> int:
        if self.path == "fma":
            return 16
        if self.path == "wgmma":
            return 64 * self.consumers
        if self.dim > 256:
            return 32 if self.small else 64
        return 64 if self.small or self.dim > 128 else 128

    @property
    def num_threads(self) -> int:
        if self.path == "wgmma":
            return 128 * (self.consumers + 1)
        return 256 if self.path == "mma" and self.dim > 256 and not self.small else 128

    @property
    def shared_bytes(self) -> int:
        if self.path == "fma":
            keys = self.num_keys
            return 4 * ((16 + 2 * keys) * (self.dim + 1) + 16 * (keys + 1))
        row_bytes = 128 * ceil(self.dim / 64)
        if self.path == "wgmma":
            query_slots, stages = 1 if self.dim > 128 else 2, 4 if self.dim == 64 else 2
            return 1024 + (query_slots * self.num_rows + 2 * stages * self.num_keys) * row_bytes
        return (self.num_rows + 2 * 2 * self.num_keys) * row_bytes

    @property
    def num_keys(self) -> int:
        """Keys of a tile."""
        if self.path == "wgmma":
            return 64 if self.dim > 128 else 128
        if self.dim > 256:
            return 16
        return 32 if self.path == "fma" or self.small or self.dim > 128 else 64

    def macros(self, dtype: torch.dtype) -> dict[str, Macro]:
        """Return the macros of the kernel of this shape."""
        of_path: dict[str, Macro] = {}
        if self.path == "mma":
            of_path = {"SMALL": self.small}
        elif self.path == "wgmma":
            of_path = {"CONSUMERS": self.consumers}
        return {
            "PATH": _PATHS[self.path],
            "DTYPE": dtype,
            "DIM": self.dim,
            "BIASED": self.biased,
            "SPLIT": self.split,
            **of_path,
            **scheme_macros(self.kv_scheme),
        }


def prefill_shape(
    gpu: Gpu,
    dtype: torch.dtype,
    head_dim: int,
    biased: bool,
    path: str = "auto",
    kv_scheme: str | None = None,
) -> PrefillShape:
    """Return the path and its tiles.

    fp32 and a quantized cache have only one path; `wgmma` needs sm_90a and head_dim up to 256.
    """
    if head_dim % 8 or not 8 <= head_dim <= _MAX_DIM:
        raise ValueError(f"head_dim must be a multiple of 8 up to {_MAX_DIM}, not {head_dim}")
    if path not in ("auto", "mma", "wgmma"):
        raise ValueError(f"path must be auto, mma or wgmma, not {path}")
    if path == "wgmma" and gpu.arch != "sm_90a":
        raise ValueError(f"the wgmma path needs sm_90a, not {gpu.arch}")
    if path == "wgmma" and head_dim > DIMS["wgmma"][-1]:
        raise ValueError(f"the wgmma path has no head_dim {head_dim}")
    if dtype == torch.float32:
        path = "fma"
    elif kv_scheme:
        path = "mma"
    elif path == "auto":
        is_wide = head_dim > DIMS["wgmma"][-1]
        path = "wgmma" if gpu.arch == "sm_90a" and not is_wide else "mma"
    dim = next(dim for dim in DIMS[path] if dim >= head_dim)
    return PrefillShape(path, dim, biased, gpu.block_shared_bytes < _LARGE_SHARED_BYTES, kv_scheme)
