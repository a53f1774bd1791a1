"""Brings a checkpoint's tensors to the device: mapped, not read, on the CPU; streamed to a GPU."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from swiftchat.engine.linear.merged import MergedWeight
from swiftchat.engine.linear.quantized import (
    Int4Weight,
    Int8GroupsWeight,
    Table,
    Weight,
    has_rows,
    plain,
)
from swiftchat.engine.linear.w8a8 import W8A8Weight, rounding_of
from swiftchat.engine.load.canonicalize import arrange
from swiftchat.engine.load.large_pages import LargePages
from swiftchat.engine.load.packing import Pack, Use, Wanted, packed_or_decoded, packing
from swiftchat.engine.load.streaming import STAGING_BYTES, Copy, ahead, default_readers, stream_in
from swiftchat.engine.model.decoder import DecoderWeights, LayerWeights
from swiftchat.engine.model.moe import Expert, Experts
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.tensors import (
    layer_tensors,
    tensor_name,
    tensors_after_layers,
    tensors_before_layers,
)
from swiftchat.weights.formats.safetensors import TensorInfo
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.parallel.tensor_parallel import Shard, Span, TensorSlice

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


@dataclass(frozen=True)
class Piece:
    """What is wanted of a tensor in a file."""

    info: TensorInfo
    part: TensorSlice

    @property
    def shape(self) -> tuple[int, ...]:
        return self.part.shape(self.info.shape)

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * _DTYPES[self.info.dtype].itemsize

    def rows(self, span: Span) -> tuple[int, int]:
        """First byte and end in the file of these rows."""
        row_bytes = self.info.nbytes // max(1, self.info.shape[0])
        return (self.info.offset + span[0] * row_bytes, self.info.offset + span[1] * row_bytes)


# `place(wanted, use)` gives these parts of the named tensors, together, on the device.
Place = Callable[[Wanted, Use], Weight]


def load_weights(
    config: ModelConfig,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: Callable[[int, int], None],
    share: Shard | None = None,
    has_kernels: bool = False,
) -> DecoderWeights:
    """Make the decoder's weights from a checked checkpoint; with `share`, those of one rank.

    `has_kernels` says that our kernels, which read packed matrices, compute with them on a GPU.

    On the CPU, tensors of the wanted dtype are views of the mapped files: nothing is copied but
    matrices that one product reads together (q k v, gate up) and that do not lie together in
    the file, and columns; the checkpoint must stay open. On a GPU the files are read once and
    not mapped, but for quantized matrices. These stay packed where `packing` says how, and it has
    their form; all others are decoded. `on_progress` gets (bytes done, bytes in all), counted in
    the files.

    Raises `BadModelFile` when a file on its way to a GPU cannot be read to its end, and for
    packed numbers that are none.
    """
    share = share or Shard(config)
    pack = packing(device, has_kernels)
    if device.type != "cpu":
        return stream_weights(config, checkpoint, dtype, device, on_progress, share, pack=pack)
    done_bytes, total_bytes = 0, _wanted_bytes(share, checkpoint)
    pages = LargePages()

    def place(wanted: Wanted, use: Use) -> Weight:
        nonlocal done_bytes
        if any(name in checkpoint.quantized for name, _ in wanted):
            done_bytes += sum(checkpoint.nbytes(name) for name, _ in wanted)
            on_progress(done_bytes, total_bytes)
            keep = pack if use != "plain" else None
            weight = packed_or_decoded(checkpoint, wanted, use, keep, dtype, device)
            checkpoint.release_pages()
            for part in weight.parts if isinstance(weight, MergedWeight) else [weight]:
                if isinstance(part, Int4Weight | Int8GroupsWeight):  # others may be the file's
                    for tensor in part.tensors:
                        pages.take_in(tensor)
            return _with_rounding(checkpoint, wanted, use, weight)
        pieces = _pieces(checkpoint, wanted)
        done_bytes += sum(piece.nbytes for piece in pieces)
        on_progress(done_bytes, total_bytes)
        return _stack(checkpoint, pieces).to(dtype)

    return arrange(share.local_config, assemble(share, place, dtype))


def stream_weights(
    config: ModelConfig,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: Callable[[int, int], None],
    share: Shard | None = None,
    num_readers: int | None = None,
    staging_bytes: int = STAGING_BYTES,
    pack: Pack | None = None,
) -> DecoderWeights:
    """`load_weights` for a GPU: allocate everything, then let `stream_in` fill it.

    What is packed is brought there before that: as it is by `pack`, or decoded. Some matrices at
    a time, by as many threads: one takes codes apart at 0.2 to 2 GB/s.
    """
    share = share or Shard(config)
    copies: list[Copy] = []
    packed_bytes, total_bytes = 0, _wanted_bytes(share, checkpoint)

    def is_packed(wanted: Wanted) -> bool:
        return any(name in checkpoint.quantized for name, _ in wanted)

    def place(wanted: Wanted, use: Use) -> Weight:
        nonlocal packed_bytes
        if not is_packed(wanted):
            return _allocate(_pieces(checkpoint, wanted), dtype, device, copies)
        weight = next(made)
        checkpoint.release_pages()
        packed_bytes += sum(checkpoint.nbytes(name) for name, _ in wanted)
        on_progress(packed_bytes, total_bytes)
        return _with_rounding(checkpoint, wanted, use, weight)

    def job(wanted: Wanted, use: Use) -> Callable[[], Weight]:
        keep = pack if use != "plain" else None
        return partial(packed_or_decoded, checkpoint, wanted, use, keep, dtype, device)

    jobs = [job(*asked) for asked in _all_asked(share, dtype) if is_packed(asked[0])]
    for file in {info.file for info in checkpoint.tensors.values()} if jobs else ():
        checkpoint.map(file)  # once, by one thread
    with contextlib.closing(ahead(jobs, num_readers or default_readers(), device)) as made:
        weights = assemble(share, place, dtype)
    stream_in(
        copies,
        device,
        lambda done: on_progress(packed_bytes + done, total_bytes),
        num_readers,
        staging_bytes,
    )
    return arrange(share.local_config, weights)


def _all_asked(share: Shard, dtype: torch.dtype) -> list[tuple[Wanted, Use]]:
    """What `assemble` asks for, in its order."""
    asked: list[tuple[Wanted, Use]] = []
    shapes = share.shapes()

    def note(wanted: Wanted, use: Use) -> Tensor:
        asked.append((wanted, use))
        return torch.empty(shapes[wanted[0][0]], device="meta")

    assemble(share, note, dtype)
    return asked


def _with_rounding(checkpoint: Checkpoint, wanted: Wanted, use: Use, weight: Weight) -> Weight:
    """The weight with its inputs rounded, where the checkpoint says so of all its parts."""
    if use != "product":
        return weight
    rounding = rounding_of([checkpoint.quantized.get(name) for name, _ in wanted])
    return weight if rounding is None else W8A8Weight(weight, rounding)


def _wanted_bytes(share: Shard, checkpoint: Checkpoint) -> int:
    if checkpoint.quantized:
        return sum(
            checkpoint.nbytes(name)
            if name in checkpoint.quantized
            else math.prod(shape) * _DTYPES[checkpoint.tensors[name].dtype].itemsize
            for name, shape in share.shapes().items()
        )
    nbytes = {name: info.nbytes for name, info in checkpoint.tensors.items()}
    if checkpoint.sliced:
        return sum(nbytes[name] for name in share.shapes())
    return share.weights_bytes(nbytes)


def assemble(share: Shard, place: Place, dtype: torch.dtype) -> DecoderWeights:
    """The weights, computed with in `dtype`, in the order of the files; `arrange` changes that.

    `place` makes one tensor of those with the given names, of each the part that `share` has:
    rows under each other, columns side by side. Only matrices that the decoder hands to its
    products, and tables of embeddings, may be packed.
    """
    config, parts = share.config, share.slices
    outside = [*tensors_before_layers(config), *tensors_after_layers(config)]

    def optional(*canonical: str, layer: int | None = None) -> Tensor | None:
        """The named tensors that this rank has, stacked; None where it has none of them."""
        weight = matrix(*canonical, layer=layer, use="plain")
        return None if weight is None else plain(weight)

    def matrix(*canonical: str, layer: int | None = None, use: Use = "product") -> Weight | None:
        known = outside if layer is None else layer_tensors(config, layer)
        wanted = [
            (tensor_name(config, name, layer, number), part)
            for name in canonical
            if name in known and (part := parts[name]) is not None
            for number in share.indices(name)
        ]
        return place(wanted, use) if wanted else None

    def placed(*canonical: str, layer: int | None = None) -> Tensor:
        tensor = optional(*canonical, layer=layer)
        return torch.empty(0) if tensor is None else tensor

    def table(canonical: str) -> Table:
        weight = matrix(canonical, use="lookup")
        if weight is None:
            return torch.empty(0, dtype=dtype)
        assert has_rows(weight)
        return weight

    def branch(*canonical: str, layer: int | None = None) -> Weight:
        weight = matrix(*canonical, layer=layer)
        return torch.empty(0) if weight is None else weight

    def one_by_one(i: int) -> Iterator[Expert]:
        def one(e: int, *canonical: str) -> Weight:
            pairs = [(tensor_name(config, name, i, e), parts[name]) for name in canonical]
            return place([(name, part) for name, part in pairs if part is not None], "product")

        for e in range(config.num_experts):
            yield Expert(one(e, "expert_gate", "expert_up"), one(e, "expert_down"))

    def together(i: int) -> Iterator[Expert]:
        gate_up, down = placed("experts_gate_up", layer=i), placed("experts_down", layer=i)
        biases = [optional(f"experts_{name}_bias", layer=i) for name in ("gate_up", "down")]
        for e in range(config.num_experts):
            yield Expert(gate_up[e], down[e], *(None if b is None else b[e] for b in biases))

    def experts(i: int) -> Experts:
        fused = "experts_gate_up" in layer_tensors(config, i)
        shared = None
        if config.shared_expert_size:
            gate_up = branch("shared_gate", "shared_up", layer=i)
            shared = Expert(gate_up, branch("shared_down", layer=i))
        return Experts(
            router=placed("router", layer=i),
            router_bias=optional("router_bias", layer=i),
            each=list(together(i) if fused else one_by_one(i)),
            shared=shared,
            shared_router=optional("shared_router", layer=i),
        )

    def layer_weights(i: int) -> LayerWeights:
        return LayerWeights(
            attn_norm=optional("attn_norm", layer=i),
            attn_norm_bias=optional("attn_norm_bias", layer=i),
            qkv=branch("qkv", "q", "k", "v", layer=i),
            qkv_bias=optional("qkv_bias", "q_bias", "k_bias", "v_bias", layer=i),
            q_norm=optional("q_norm", layer=i),
            k_norm=optional("k_norm", layer=i),
            o=branch("o", layer=i),
            o_bias=optional("o_bias", layer=i),
            attn_out_norm=optional("attn_out_norm", layer=i),
            mlp_norm=optional("mlp_norm", layer=i),
            mlp_norm_bias=optional("mlp_norm_bias", layer=i),
            gate_up=branch("gate_up", "gate", "up", layer=i),
            gate_up_bias=optional("gate_up_bias", "gate_bias", "up_bias", layer=i),
            down=branch("down", layer=i),
            down_bias=optional("down_bias", layer=i),
            mlp_out_norm=optional("mlp_out_norm", layer=i),
            sinks=optional("sinks", layer=i),
            experts=experts(i) if "router" in layer_tensors(config, i) else None,
        )

    layers = [layer_weights(i) for i in range(*share.layers)]
    embed = table("embed")
    return DecoderWeights(
        embed=embed,
        positions=optional("positions"),
        project_in=optional("project_in"),
        embed_norm=optional("embed_norm"),
        embed_norm_bias=optional("embed_norm_bias"),
        layers=layers,
        final_norm=optional("final_norm"),
        final_norm_bias=optional("final_norm_bias"),
        project_out=optional("project_out"),
        lm_head=embed if config.tied_embeddings else branch("lm_head"),
        lm_head_bias=optional("lm_head_bias"),
    )


def _pieces(checkpoint: Checkpoint, wanted: Sequence[tuple[str, TensorSlice]]) -> list[Piece]:
    """Where the wanted parts are; in files cut by rank, each is the whole tensor there."""
    infos = [checkpoint.tensors[name] for name, _ in wanted]
    if checkpoint.sliced:
        return [Piece(info, TensorSlice(0, ((0, info.shape[0]),))) for info in infos]
    return [Piece(info, part) for info, (_, part) in zip(infos, wanted, strict=True)]


def _stack(checkpoint: Checkpoint, pieces: Sequence[Piece]) -> Tensor:
    """The pieces together; a view of the file where they lie so already."""
    first = pieces[0]
    if first.part.axis == 0 and _lie_together(pieces):
        rows = sum(piece.shape[0] for piece in pieces)
        start, _ = first.rows(first.part.spans[0])
        return _view(checkpoint, first.info, start, (rows, *first.shape[1:]))
    cut = []
    for piece in pieces:
        axis, info = piece.part.axis, piece.info
        whole = _view(checkpoint, info, info.offset, info.shape)
        cut += [whole.narrow(axis, start, end - start) for start, end in piece.part.spans]
    return torch.cat(cut, first.part.axis)


def _lie_together(pieces: Sequence[Piece]) -> bool:
    """Whether all the rows are one stretch of one file, in one dtype."""
    if len({(piece.info.file, piece.info.dtype) for piece in pieces}) > 1:
        return False
    runs = [piece.rows(span) for piece in pieces for span in piece.part.spans]
    return all(before[1] == after[0] for before, after in itertools.pairwise(runs))


def _view(checkpoint: Checkpoint, info: TensorInfo, offset: int, shape: tuple[int, ...]) -> Tensor:
    """Numbers of `info`'s file and dtype from byte `offset` on."""
    dtype = _DTYPES[info.dtype]
    flat = torch.frombuffer(
        checkpoint.map(info.file),
        dtype=torch.uint8,
        offset=offset,
        count=torch.Size(shape).numel() * dtype.itemsize,
    )
    if flat.data_ptr() % dtype.itemsize:  # an odd header length in somebody else's file
        flat = flat.clone()
    return flat.view(dtype).view(shape)


def _allocate(
    pieces: Sequence[Piece], dtype: torch.dtype, device: torch.device, copies: list[Copy]
) -> Tensor:
    """Memory for the pieces together; how to fill it is appended to `copies`."""
    axis = pieces[0].part.axis
    shape = list(pieces[0].shape)
    shape[axis] = sum(piece.shape[axis] for piece in pieces)
    together = torch.empty(shape, dtype=dtype, device=device)
    at = 0
    for piece in pieces:
        info, stored = piece.info, _DTYPES[piece.info.dtype]
        for span in piece.part.spans:
            target = together.narrow(axis, at, span[1] - span[0])
            at += span[1] - span[0]
            if axis == 0:
                start, end = piece.rows(span)
                copies.append(Copy(info.file, start, end - start, stored, target.view(-1)))
            else:
                # As a matrix, whatever comes before and after the axis that is cut.
                inside = math.prod(info.shape[axis + 1 :])
                columns = (span[0] * inside, span[1] * inside)
                rows = target.view(math.prod(info.shape[:axis]), -1)
                copies.append(Copy(info.file, info.offset, info.nbytes, stored, rows, columns))
    return together
