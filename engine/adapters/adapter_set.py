"""Build the changes of a set of adapters for the decoder's matrices, on its device."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from swiftchat.engine.linear.adapted import AdapterSet, Delta, LowRankPart, Site, TableDelta
from swiftchat.engine.load.assemble import MIXER_INPUTS
from swiftchat.engine.load.canonicalize import qkv_rows
from swiftchat.engine.load.quantized import dequantize
from swiftchat.errors import BadModelFile, UsageError
from swiftchat.weights.adapters.adapter import Adapter, LowRank, Read, TokenRows
from swiftchat.weights.architectures.parts.mixers import Mamba2
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import shape_by_place, tensor_name
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.parallel.division import TensorSlice
from swiftchat.weights.parallel.tensor_parallel import Shard, TensorKey

# The canonical matrices of each field of `LayerWeights`, from the first row to the last; `mixer_in`
# and `mixer_out` are the projections of `MixerWeights`.
_FIELDS = {
    "qkv": ("qkv", "q", "k", "v", "q_a", "kv_a"),
    "o": ("o",),
    "gate_up": ("gate_up", "gate", "up"),
    "down": ("down",),
    "lm_head": ("lm_head",),
    "mixer_in": MIXER_INPUTS,
    "mixer_out": ("mixer_out",),
}
_FIELD_OF = {name: field for field, names in _FIELDS.items() for name in names}


@dataclass
class _Changes:
    """The changes of one matrix of the decoder [rows, columns], added up.

    In the order of the rows in the file; on the CPU.
    """

    num_rows: int
    parts: list[LowRankPart] = field(default_factory=list)
    gain: Tensor | None = None
    offset: Tensor | None = None

    def add_gain(self, first: int, change: Tensor | float, length: int) -> None:
        if self.gain is None:
            self.gain = torch.ones(self.num_rows)
        self.gain[first : first + length] += change

    def add_offset(self, first: int, change: Tensor) -> None:
        if self.offset is None:
            self.offset = torch.zeros(self.num_rows)
        self.offset[first : first + len(change)] += change


class SetBuilder:
    """Builds sets of adapters for one shard of a model.

    `dtype` is that of the activations. Low-rank matrices have it too; on the CPU fp32 instead
    of fp16. `checkpoint` None (random weights) has no base matrices, which DoRA needs.
    """

    def __init__(
        self, shard: Shard, checkpoint: Checkpoint | None, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._shard, self._config = shard, shard.config
        self._checkpoint = checkpoint
        self._dtype, self._device = dtype, device
        # Not fp16 on the CPU: a product of scale and B may be too small for it.
        is_wide = device.type == "cpu" and dtype != torch.bfloat16
        self._narrow_dtype = torch.float32 if is_wide else dtype
        self._transposed = ARCHITECTURES[shard.config.architecture].transposed
        self._shape_of = shape_by_place(shard.config)
        self._changes: dict[Site, _Changes] = {}
        self._tables: list[tuple[Tensor, Tensor | None]] = []
        self._table_gain: Tensor | None = None

    def check(self, adapter: Adapter) -> None:
        """Raise `UsageError` for an adapter of matrices that are only supported merged.

        Or for one that needs a base matrix where there is none. Reads no values.
        """
        for key in (*(change.key for change in adapter.low_rank), *adapter.replaced):
            name, table = tensor_name(self._config, *key), key[0] == "embed"
            if not table and key[0].removesuffix("_bias") not in _FIELD_OF:
                raise UsageError(
                    f"{adapter.path} changes {name}: the engine supports adapters of attention, "
                    "MLP and embedding matrices and of projections of mixers",
                    f"merge it into the model: swiftchat convert MODEL --merge-lora {adapter.path}",
                )
        bases = [change.tensor for change in adapter.low_rank if change.magnitude is not None]
        bases += [tensor_name(self._config, *k) for k in adapter.replaced if k[0].endswith("_bias")]
        bases += [rows.tensor for rows in adapter.token_rows]
        if bases and (self._checkpoint is None or self._checkpoint.shard is not None):
            kind = "random weights" if self._checkpoint is None else "files per rank"
            raise UsageError(
                f"the adapter needs the base model's {bases[0]}, which {kind} do not have",
                "use the model's own files",
            )

    def build(self, adapters: Sequence[tuple[Adapter, float]]) -> AdapterSet:
        """Return the sum of the checked adapters' changes, each times its scale.

        Raises `BadModelFile` for damaged values.
        """
        self._changes, self._tables, self._table_gain = {}, [], None
        for adapter, scale in adapters:
            for change in adapter.low_rank:
                self._add_low_rank(change, scale)
            for key, read in adapter.replaced.items():
                self._add_replaced(key, read, scale)
            for rows in adapter.token_rows:
                self._add_token_rows(rows, scale)
        deltas = {site: self._delta(site, found) for site, found in self._changes.items()}
        embed = None
        if self._tables or self._table_gain is not None:
            tables = [(table.to(self._device), self._on_device(b)) for table, b in self._tables]
            embed = TableDelta(tables, self._on_device(self._table_gain))
        return AdapterSet(deltas, embed)

    def _add_low_rank(self, change: LowRank, scale: float) -> None:
        if change.key[0] == "embed":
            self._add_embedding(change, scale)
            return
        found = self._place(change.key)
        if found is None:
            return
        changes, first, rows = found
        a, b = _tensor(change.a), _tensor(change.b)
        scale_of_b = change.scale * scale
        if change.magnitude is not None:
            gain = self._gain(change, a, b)
            local = gain[rows.of_outputs(len(gain))]
            changes.add_gain(first, scale * (local - 1), len(local))
            b = b * gain.unsqueeze(1)
        bias = None if change.bias is None else _tensor(change.bias)
        if bias is not None and (rows.divides_outputs or self._shard.rank == 0):
            if change.magnitude is not None:
                bias = bias * gain
            changes.add_offset(first, bias[rows.of_outputs(len(bias))] * scale_of_b)
        b = b[rows.of_outputs(len(b))] * scale_of_b
        a = a[:, rows.of_inputs(a.shape[1])]
        changes.parts.append(LowRankPart(first, a, b))

    def _add_replaced(self, key: TensorKey, read: Read, scale: float) -> None:
        """Add scale · (R - W) for a tensor R that replaces W."""
        canonical = key[0]
        new = _tensor(read)
        if canonical == "embed":
            if self._shard.stage == 0:
                self._add_table_gain(-scale, new.shape[1])
                self._tables.append((new * scale, None))
            return
        found = self._place(key)
        if found is None:
            return
        changes, first, rows = found
        if canonical.endswith("_bias"):
            difference = (new - self._base(tensor_name(self._config, *key))) * scale
            if rows.divides_outputs or self._shard.rank == 0:
                changes.add_offset(first, difference[rows.of_outputs(len(new))])
            return
        matrix = new.t() if canonical in self._transposed else new
        matrix = matrix[rows.of_outputs(len(matrix))][:, rows.of_inputs(matrix.shape[1])] * scale
        changes.add_gain(first, -scale, len(matrix))
        changes.parts.append(LowRankPart(first, None, matrix))

    def _add_token_rows(self, rows: TokenRows, scale: float) -> None:
        """Add scale · (R - W) for the rows R of some tokens, as a change of low rank."""
        base = self._base(rows.tensor)
        difference = torch.from_numpy(rows.difference(base.numpy())) * scale
        chosen = torch.zeros(len(base), len(rows.ids))
        chosen[list(rows.ids), range(len(rows.ids))] = 1.0
        if self._shard.stage == 0:
            self._tables.append((chosen, difference.t().contiguous()))
        found = self._place(("lm_head", None, None)) if self._config.head.tied else None
        if found is not None:
            changes, first, local = found
            of_outputs = chosen[local.of_outputs(len(chosen))]
            of_inputs = difference[:, local.of_inputs(difference.shape[1])]
            changes.parts.append(LowRankPart(first, of_inputs, of_outputs))

    def _place(self, key: TensorKey) -> "tuple[_Changes, int, _LocalRows] | None":
        """Return the changes of a tensor's matrix, its first row there, and this rank's part.

        None if another stage has it.
        """
        canonical, layer, _ = key
        matrix = canonical.removesuffix("_bias")
        name = _FIELD_OF[matrix]
        if layer is None:
            if self._shard.stage != self._shard.num_stages - 1:
                return None
            site: Site = (name, None)
        else:
            first_layer, end = self._shard.layers
            if not first_layer <= layer < end:
                return None
            site = (name, layer - first_layer)
        first = num_rows = 0
        for other in _FIELDS[name]:
            if other == matrix:
                first = num_rows
            if other in self._shard.slices(layer) or other == "lm_head":
                num_rows += self._rows(other, layer).num_outputs
        changes = self._changes.setdefault(site, _Changes(num_rows))
        return changes, first, self._rows(matrix, layer)

    def _rows(self, canonical: str, layer: int | None) -> "_LocalRows":
        slices = self._shard.slices(layer)
        stored = slices.get(canonical)
        if canonical == "lm_head" and canonical not in slices:
            stored = slices["embed"]  # tied
        assert stored is not None
        return _LocalRows(stored, self._shape_of(canonical, layer), canonical in self._transposed)

    def _add_embedding(self, change: LowRank, scale: float) -> None:
        if self._shard.stage != 0:
            return
        a, b = _tensor(change.a), _tensor(change.b)
        b = b * (change.scale * scale)
        if change.magnitude is not None:
            gain = self._gain(change, a, _tensor(change.b))
            self._add_table_gain(scale * (gain - 1), len(gain))
            b = b * gain.unsqueeze(1)
        self._tables.append((a.t().contiguous(), b))

    def _add_table_gain(self, change: Tensor | float, length: int) -> None:
        gain = torch.ones(length) if self._table_gain is None else self._table_gain
        self._table_gain = gain + change

    def _gain(self, change: LowRank, a: Tensor, b: Tensor) -> Tensor:
        """Return the magnitudes divided by the norms of the rows of W + scale · B · A."""
        assert change.magnitude is not None
        base = self._base(change.tensor)
        canonical = change.key[0]
        if (canonical in self._transposed) != (canonical == "embed"):
            base = base.t()
        changed = torch.addmm(base, b, a, alpha=change.scale)
        norms: Tensor = changed.pow(2).sum(dim=1).sqrt()
        gain: Tensor = _tensor(change.magnitude) / norms
        if not gain.isfinite().all():
            raise BadModelFile(f"{change.tensor}: the norms of the changed matrix are not usable")
        return gain

    def _base(self, name: str) -> Tensor:
        """Return a whole tensor of the base model in fp32."""
        assert self._checkpoint is not None
        if name not in self._checkpoint.tensors and name not in self._checkpoint.quantized:
            name = tensor_name(self._config, "embed")  # the head is tied to it
        whole = TensorSlice(0, ((0, self._num_rows(name)),))
        return dequantize(self._checkpoint, [(name, whole)], torch.float32, torch.device("cpu"))

    def _num_rows(self, name: str) -> int:
        assert self._checkpoint is not None
        stored = self._checkpoint.quantized.get(name) or self._checkpoint.tensors[name]
        return stored.shape[0]

    def _delta(self, site: Site, changes: _Changes) -> Delta:
        order, mixer = None, self._shard.local_config.mixer
        gain, offset, parts = changes.gain, changes.offset, changes.parts
        if site[0] == "qkv":
            local = self._shard.local_config
            order = qkv_rows(local, local.attention, local.rope)
        elif site[0] == "mixer_in" and mixer is not None:
            order = None if mixer.input_rows is None else torch.tensor(mixer.input_rows)
        if offset is not None:
            offset = offset / self._input_scale(site)
        if order is not None:
            gain = None if gain is None else gain[order]
            offset = None if offset is None else offset[order]
            parts = [_reordered(part, order) for part in parts]
        return Delta(
            [
                LowRankPart(
                    part.first,
                    None if part.a is None else self._narrow(part.a),
                    self._narrow(part.b, self._dtype if part.a is None else None),
                )
                for part in parts
            ],
            None if gain is None else gain.to(self._device),
            None if offset is None else offset.to(self._device),
        )

    def _input_scale(self, site: Site) -> float:
        """Return the scale of a matmul's input that the decoder applies to its results instead."""
        mixer = self._config.mixer
        if site[0] == "mixer_in" and isinstance(mixer, Mamba2):
            return mixer.scales[0]
        return self._config.attention.in_scale if site[0] in ("qkv", "o") else 1.0

    def _on_device(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.to(self._device).contiguous()

    def _narrow(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        return tensor.to(dtype or self._narrow_dtype).to(self._device).contiguous()


@dataclass(frozen=True)
class _LocalRows:
    """The part of a matrix, or of its bias, that a rank has."""

    stored: TensorSlice
    shape: tuple[int, ...]  # in the file
    is_transposed: bool

    @property
    def divides_outputs(self) -> bool:
        """Whether ranks have different outputs; else each has a part of the sum."""
        return (self.stored.axis == 0) != self.is_transposed

    @property
    def num_outputs(self) -> int:
        length = self.shape[1] if self.is_transposed else self.shape[0]
        return len(self.of_outputs(length))

    def of_outputs(self, length: int) -> Tensor:
        return self._indices(length, of_part=self.divides_outputs)

    def of_inputs(self, length: int) -> Tensor:
        return self._indices(length, of_part=not self.divides_outputs)

    def _indices(self, length: int, *, of_part: bool) -> Tensor:
        if not of_part:
            return torch.arange(length)
        return torch.cat([torch.arange(first, end) for first, end in self.stored.spans])


def _reordered(part: LowRankPart, order: Tensor) -> LowRankPart:
    """Return a part for the decoder's order of rows, which moves rows only within the part."""
    own = order[part.first : part.first + len(part.b)] - part.first
    return LowRankPart(part.first, part.a, part.b[own])


def _tensor(read: Read) -> Tensor:
    return torch.from_numpy(read())
