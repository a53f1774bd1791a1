"""The low-rank changes that `linear` adds to its results: `kernels/linear/low_rank.cuh`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu

NONE: dict[str, Any] = {"max_rank": 0, "num_slices": 0}  # the arguments without changes
SENTINEL = -1  # of the elements of `narrow`, as int32
_TASK_RANKS, _TASK_WARPS = 4, 2  # rows of A of a task; warps of a block that compute tasks
_SLICE_COLUMNS = 256  # fewer do not fill a warp


def narrow_elements(compiled_rows: int) -> int:
    """Return the most ranks of all activation rows: `NARROW_ELEMENTS` in weight_ring.cuh."""
    return 1536 if compiled_rows > 8 else 768


def narrow_buffer(gpu: Gpu) -> Tensor:
    """Return a buffer for `RowChanges.narrow`, ready to be used."""
    size = max(_TASK_RANKS * _TASK_WARPS * gpu.num_sms, narrow_elements(16))
    buffer = torch.empty(-(-size // 4) * 4, device=gpu.device)
    make_ready(buffer)
    return buffer


def make_ready(narrow: Tensor) -> None:
    """Fill a buffer as a launch leaves the next one's."""
    narrow.view(torch.int32).fill_(SENTINEL)


@dataclass(frozen=True)
class RowChanges:
    """B · (A · x) for each activation row, with the matrices of its set.

    `table` int64 [num_sets, entry] has rows of `low_rank.table_entry`, `sets` int32 [n] the number
    of each row's set, below 0 for none. No set has more than `max_rank` rows of A. `narrow` and
    `next_narrow` are two buffers of `narrow_buffer`: a launch uses the first and makes the second
    ready for a later launch. Launches of a stream must alternate between them.
    """

    table: Tensor
    sets: Tensor
    narrow: Tensor
    next_narrow: Tensor
    max_rank: int

    def arguments(self, n: int, k: int, num_blocks: int, most: int) -> dict[str, Any]:
        """Return the kernel's arguments; `most` is `narrow_elements` of the kernel."""
        if k % 8 or self.max_rank % 8 or not 0 < n * self.max_rank <= most:
            raise ValueError(f"linear takes no changes of {n} rows by rank {self.max_rank}, k {k}")
        tasks = n * self.max_rank // _TASK_RANKS
        slices = min(_TASK_WARPS * num_blocks // tasks, -(-k // _SLICE_COLUMNS))
        slices = max(1, min(slices, self.narrow.numel() // (n * self.max_rank)))
        return {
            "table": self.table,
            "sets": self.sets,
            "narrow": self.narrow,
            "next_narrow": self.next_narrow,
            "max_rank": self.max_rank,
            "num_slices": slices,
        }
