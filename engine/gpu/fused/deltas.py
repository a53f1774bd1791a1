"""Adapters in the fused decode step: `linear` adds their low-rank changes to its results.

The kernels read on the device which set a row has and where its matrices are, so a captured step
serves all sets of adapters; loading one changes only these tables.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.layout import compiled_rows, linear_fits
from swiftchat.cuda.ops.linear.linear import Norm
from swiftchat.cuda.ops.linear.low_rank import (
    RANK_STEP,
    Part,
    low_rank_expand,
    low_rank_shrink,
    table_entry,
)
from swiftchat.cuda.ops.linear.row_changes import (
    RowChanges,
    make_ready,
    narrow_buffer,
    narrow_elements,
)
from swiftchat.cuda.packed_matrix import Matrix, PackedMatrix
from swiftchat.engine.linear.adapted import AdapterSet, Delta, Site
from swiftchat.engine.model.weights import DecoderWeights

_FIELDS = ("qkv", "o", "gate_up", "down")
_MAX_PARTS = 12  # of a matrix: q, k and v of four adapters


class FusedDeltas:
    """The sets of adapters of decode rows on one GPU.

    `sets` int32 [max_rows] are the numbers of the rows' sets, -1 for none: those of the decode
    batch. `ranks` has, for each kind of matrix, the largest sum of ranks that one may have. The
    tables of `older` are taken over.

    The changes of a matrix are part of its matmul, `RowChanges`, if they fit its shared memory and
    the matrix is a single one, for several rows a plain one. Else two small kernels before the
    matmul compute them as a bias of each row.
    """

    in_linear = True  # tests and benchmarks switch it off, to compare

    def __init__(
        self,
        gpu: Gpu,
        weights: DecoderWeights,
        num_sets: int,
        sets: Tensor,
        ranks: Mapping[str, int],
        *,
        older: "FusedDeltas | None" = None,
    ) -> None:
        self._gpu, self.ranks = gpu, dict(ranks)
        self._sets, max_rows = sets, len(sets)
        sites: list[Site] = [(name, i) for i in range(len(weights.layers)) for name in _FIELDS]
        empty = table_entry(None, (), _MAX_PARTS)
        size = (len(sites), num_sets, len(empty))
        self._tables = torch.zeros(size, dtype=torch.int64, device=gpu.device)
        if older is not None:
            self._tables.copy_(older._tables)
        self._index = {site: i for i, site in enumerate(sites)}
        self._references: list[list[Tensor]] = [[] for _ in range(num_sets)]
        if older is not None:
            self._references = older._references
        max_rank = max(RANK_STEP, *self.ranks.values())
        self._narrow = torch.zeros(max_rows, max_rank, device=gpu.device)
        widest = max(getattr(layer, name).shape[0] for layer in weights.layers for name in _FIELDS)
        self._biases = torch.empty(max_rows, widest, dtype=weights.dtype, device=gpu.device)
        # Launches of a step take turns to use these, and each makes the other one ready.
        self._buffers = narrow_buffer(gpu), narrow_buffer(gpu)
        self._turn = 0

    def has_room(self, ranks: Mapping[str, int]) -> bool:
        return all(rank <= self.ranks[name] for name, rank in ranks.items())

    def reset(self) -> None:
        """Make the buffer that each step begins with ready, unless the last launch has done so.

        After a step, or after one that failed.
        """
        if self._turn:
            make_ready(self._buffers[0])
        self._turn = 0

    def put(self, number: int, adapters: AdapterSet | None) -> None:
        """Fill or, with None, empty the tables of a set; the device must be idle."""
        references: list[Tensor] = []
        rows = []
        for site in self._index:
            delta = None if adapters is None else adapters.deltas.get(site)
            a, parts = (None, []) if delta is None else _padded(delta)
            references += [part.b for part in parts] + ([] if a is None else [a])
            rows.append(table_entry(a, parts, _MAX_PARTS))
        self._tables[:, number] = torch.tensor(rows).to(self._gpu.device)
        self._references[number] = references

    def changes(
        self, site: Site, n: int, matrices: Sequence[Matrix], *, splittable: bool, pair_span: int
    ) -> RowChanges | None:
        """Return what the next launch, the matmul of a site, adds to its results for n rows.

        The options are those of `linear_fits`. None: it adds nothing, `bias` returns the changes.
        """
        rank = self.ranks.get(site[0], 0)
        is_small = 0 < n * rank <= narrow_elements(compiled_rows(n))
        if not (self.in_linear and is_small and len(matrices) == 1):
            return None
        (matrix,) = matrices
        if n > 1 and isinstance(matrix, PackedMatrix):
            return None  # measured: a tile of packed weights ends before its changes
        if not linear_fits(
            self._gpu,
            n,
            matrix,
            splittable=splittable,
            pair_span=pair_span,
            has_changes=True,
        ):
            return None
        now, self._turn = self._turn, 1 - self._turn
        return RowChanges(
            self._tables[self._index[site]],
            self._sets[:n],
            self._buffers[now],
            self._buffers[1 - now],
            rank,
        )

    def bias(
        self, x: Tensor, site: Site, num_outputs: int, bias: Tensor | None, norm: Norm | None = None
    ) -> Tensor | None:
        """Launch the kernels for x [n, columns]; return the bias of each row, [n, num_outputs].

        It is valid until the next call. Without any change of this kind of matrix, return `bias`.
        """
        if self.ranks.get(site[0], 0) == 0:
            return bias
        n, gpu, table = len(x), self._gpu, self._tables[self._index[site]]
        narrow, sets = self._narrow[:n], self._sets[:n]
        out = self._biases.view(-1)[: n * num_outputs].view(n, num_outputs)
        low_rank_shrink(gpu, x, table, sets, narrow, norm=norm)
        low_rank_expand(gpu, table, sets, bias, narrow, out)
        return out


def needed_ranks(adapters: AdapterSet) -> dict[str, int] | None:
    """Return the largest sum of padded ranks for each kind of matrix; None: not for these kernels.

    They compute no gains, offsets or replaced matrices, and nothing outside the layers.
    """
    if adapters.embed is not None:
        return None
    largest = dict.fromkeys(_FIELDS, 0)
    for (name, _), delta in adapters.deltas.items():
        # The kernels read 8 columns of A at a time.
        is_low_rank = all(part.a is not None and part.a.shape[1] % 8 == 0 for part in delta.parts)
        has_others = delta.gain is not None or delta.offset is not None
        if name not in largest or has_others or not is_low_rank or len(delta.parts) > _MAX_PARTS:
            return None
        ranks = [_padded_rank(part.b.shape[1]) for part in delta.parts]
        largest[name] = max(largest[name], sum(ranks))
    return largest


def _padded_rank(rank: int) -> int:
    return -(-rank // RANK_STEP) * RANK_STEP


def _padded(delta: Delta) -> tuple[Tensor, list[Part]]:
    """Return A of all parts, one below the other, and the parts, with padded ranks."""
    narrow, parts = [], []
    for part in delta.parts:
        assert part.a is not None
        missing = _padded_rank(len(part.a)) - len(part.a)
        narrow.append(F.pad(part.a, (0, 0, 0, missing)))
        parts.append(Part(part.first, F.pad(part.b, (0, missing)).contiguous()))
    return torch.cat(narrow).contiguous(), parts
