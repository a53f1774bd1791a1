"""GEMV for up to 16 rows, fused with neighboring operations: `kernels/linear/linear.cu`."""

from dataclasses import dataclass, replace
from math import ceil

import torch
from torch import Tensor

from swiftchat.cuda.checks import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.packed_layout import BLOCK_ROWS, GROUPS, STEPS, filled, record_bytes
from swiftchat.cuda.packed_matrix import Matrix, PackedMatrix
from swiftchat.cuda.peer_memory import PeerBuffer

MAX_VECTORS = 16
# Slots of the ring of weights, 16 to 20 KB each. Four leave room for the next kernel's block
# beside; five would too, but then more is in flight than L2 takes well (8B: 4.3 ms a step instead
# of 3.8).
_RING_SLOTS = 4
_MAX_SPLITS = 16
_PART = 512  # columns of which splits are multiples
_THREADS = 352
_TILE = 16  # rows in a slot
_CHUNK_BYTES = 1024  # of a row in a slot
_SPLITTABLE = ("RESIDUAL", "SEND")
_STATIC_BYTES = 512, 2336  # of a block, and for each vector: sums and angles
_PARAMS = "pppppffiiiiiippppppiiiiipp"

_KINDS = [
    {"EPILOGUE": "STORE", "NORM": "0", "WIDE": "0", "ACTIVATION": "NONE"},
    {"EPILOGUE": "STORE", "NORM": "1", "WIDE": "0", "ACTIVATION": "NONE"},
    {"EPILOGUE": "STORE", "NORM": "1", "WIDE": "1", "ACTIVATION": "NONE"},
    {"EPILOGUE": "RESIDUAL", "NORM": "0", "WIDE": "0", "ACTIVATION": "NONE"},
    {"EPILOGUE": "SEND", "NORM": "0", "WIDE": "0", "ACTIVATION": "NONE"},
    {"EPILOGUE": "SEND", "NORM": "1", "WIDE": "0", "ACTIVATION": "NONE"},
    {"EPILOGUE": "GATED", "NORM": "1", "WIDE": "0", "ACTIVATION": "SILU"},
    {"EPILOGUE": "GATED", "NORM": "1", "WIDE": "0", "ACTIVATION": "GELU"},
    {"EPILOGUE": "GATED", "NORM": "1", "WIDE": "0", "ACTIVATION": "GELU_TANH"},
    {"EPILOGUE": "ROTATE", "NORM": "1", "WIDE": "0", "ACTIVATION": "NONE"},
]
_PLAIN = {"FORM": "PLAIN", "GROUP": "0"}
_PACKED = [
    {"FORM": "INT8", "GROUP": "0"},
    {"FORM": "FP8", "GROUP": "0"},
    *({"FORM": form, "GROUP": str(group)} for form in GROUPS for group in GROUPS[form]),
]
_SHAPES = [
    {"DTYPE": name, "VECTORS": vectors}
    for name in DTYPE_NAMES.values()
    for vectors in ("1", "8", "16")
]
# Of packed weights only some, each form with different dtypes, numbers of vectors and kinds: it
# changes nothing of what comes after the sums.
VARIANTS = [{**kind, **shape, **_PLAIN} for kind in _KINDS for shape in _SHAPES] + [
    {**_KINDS[(2 * i + j) % len(_KINDS)], **_SHAPES[(2 * i + 5 * j) % len(_SHAPES)], **form}
    for i, form in enumerate(_PACKED)
    for j in (0, 1)
]


@dataclass(frozen=True)
class Norm:
    """RMSNorm before the product: `weight` [k] of its dtype, to which `offset` is added."""

    weight: Tensor
    eps: float
    offset: float = 0.0


@dataclass(frozen=True)
class Rotation:
    """Where the rotated queries, keys and values of a fused q k v product go.

    `cos_sin` fp32 [positions, head_dim], cosines in the first half; `positions` and `slots`
    int32 [n]; `cache` [num_blocks, 2 * num_kv_heads, block_size, head_dim]. A slot below 0 is
    not written.
    """

    cos_sin: Tensor
    positions: Tensor
    slots: Tensor
    cache: Tensor
    num_heads: int


class Workspace:
    """Room for sums of up to `max_rows` rows whose columns are split; left as it was found."""

    def __init__(self, gpu: Gpu, max_rows: int) -> None:
        self.partial = torch.empty(_MAX_SPLITS * MAX_VECTORS * max_rows, device=gpu.device)
        self.counters = torch.zeros(-(-max_rows // _TILE), dtype=torch.int32, device=gpu.device)

    def counts(self, rows: int) -> bool:
        """Whether there is a counter for each tile of so many rows."""
        return self.counters.numel() * _TILE >= rows


def linear_spec(
    weight: Matrix,
    n: int,
    epilogue: str,
    *,
    norm: bool = False,
    wide: bool = False,
    activation: str = "none",
) -> KernelSpec:
    packed = weight if isinstance(weight, PackedMatrix) else None
    defines = {
        "DTYPE": DTYPE_NAMES[weight.dtype],
        "EPILOGUE": epilogue,
        "NORM": str(int(norm)),
        "WIDE": str(int(wide)),
        "ACTIVATION": activation.upper(),
        "VECTORS": _vectors(n),
        "FORM": packed.form if packed else "PLAIN",
        "GROUP": str(packed.group if packed else 0),
    }
    return KernelSpec("linear", _PARAMS, defines)


def _vectors(n: int) -> str:
    """The number of vectors a kernel is compiled for."""
    return "1" if n == 1 else "8" if n <= 8 else "16"


def linear_takes(
    gpu: Gpu, n: int, weight: Matrix, *, splittable: bool = False, span: int = _TILE
) -> bool:
    """Whether n vectors as long as this matrix's rows are few and short enough for this kernel.

    Pairs of rows that are finished together lie span / 2 apart: half the rows where those are
    gates and then what they gate, half a head where heads are rotated. Packed rows come in eights.
    """
    k = weight.shape[1]
    if not 1 <= n <= MAX_VECTORS or k * weight.dtype.itemsize % 16:
        return False
    if isinstance(weight, PackedMatrix) and span % (2 * BLOCK_ROWS):
        return False
    splits = _splits(gpu, n, weight)
    return splits is not None and (splits == 1 or splittable)


def linear(
    gpu: Gpu,
    x: Tensor,
    weight: Matrix,
    out: Tensor,
    workspace: Workspace,
    *,
    bias: Tensor | None = None,
    norm: Norm | None = None,
    x_scale: Tensor | None = None,
) -> None:
    """out [n, rows] = x [n, k] · weightᵀ [k, rows] + bias.

    `out` has the weight's dtype, or is fp32. x has the weight's dtype, or with `norm` is fp32.
    With a packed weight, vectors may be times `x_scale` fp32 [n].
    """
    wide = out.dtype == torch.float32 and weight.dtype != torch.float32
    check_tensor("out", out, (len(x), len(weight)), out.dtype, gpu)
    spec = linear_spec(weight, len(x), "STORE", norm=norm is not None, wide=wide)
    _launch(gpu, spec, x, weight, out, workspace, bias=bias, norm=norm, x_scale=x_scale)


def linear_residual(
    gpu: Gpu,
    x: Tensor,
    weight: Matrix,
    residual: Tensor,
    workspace: Workspace,
    *,
    bias: Tensor | None = None,
    x_scale: Tensor | None = None,
) -> None:
    """Add x [n, k] · weightᵀ + bias to the fp32 residual stream [n, rows] in place.

    `x_scale` is as for `linear`.
    """
    check_tensor("residual", residual, (len(x), len(weight)), torch.float32, gpu)
    spec = linear_spec(weight, len(x), "RESIDUAL")
    _launch(gpu, spec, x, weight, residual, workspace, bias=bias, x_scale=x_scale)


def linear_send(
    gpu: Gpu,
    x: Tensor,
    weight: Matrix,
    inbox: PeerBuffer,
    workspace: Workspace,
    *,
    bias: Tensor | None = None,
    norm: Norm | None = None,
) -> None:
    """Send x [n, k] · weightᵀ + bias in fp32 to every rank's inbox, as this rank's part."""
    inbox.check_part(len(x) * len(weight), gpu)
    spec = linear_spec(weight, len(x), "SEND", norm=norm is not None)
    _launch(
        gpu, spec, x, weight, inbox.addresses, workspace, bias=bias, norm=norm, world=inbox.world
    )


def linear_gated(
    gpu: Gpu,
    x: Tensor,
    weight: Matrix,
    out: Tensor,
    workspace: Workspace,
    norm: Norm,
    activation: str,
    *,
    bias: Tensor | None = None,
) -> None:
    """out [n, rows / 2] = activation(gate) * up, for weight's rows the gate's, then up's."""
    rows = len(weight)
    if rows % 2:
        raise ValueError(f"gate and up must have the same number of rows, not {rows} together")
    check_tensor("out", out, (len(x), rows // 2), weight.dtype, gpu)
    spec = linear_spec(weight, len(x), "GATED", norm=True, activation=activation)
    _launch(gpu, spec, x, weight, out, workspace, bias=bias, norm=norm, span=rows)


def linear_rotate(
    gpu: Gpu,
    x: Tensor,
    weight: Matrix,
    queries: Tensor,
    workspace: Workspace,
    norm: Norm,
    rotation: Rotation,
    *,
    bias: Tensor | None = None,
    first_head: int = 0,
) -> None:
    """Fused q k v product: rotated queries [n, heads, head_dim]; keys and values to the cache.

    Half-split rotary embedding of whole heads, in fp32. The weight may have only some of the heads,
    from `first_head` of queries, keys and values on, but all queries or none.
    """
    r, n = rotation, len(x)
    kv_heads, head_dim = r.cache.shape[1] // 2, r.cache.shape[3]
    if head_dim % 8 or head_dim > 256:
        raise ValueError(f"head_dim must be a multiple of 8 up to 256, not {head_dim}")
    end_head, rest = divmod(len(weight), head_dim)
    end_head += first_head
    all_or_none = (first_head == 0 and end_head >= r.num_heads) or first_head >= r.num_heads
    if rest or not all_or_none or end_head > r.num_heads + 2 * kv_heads:
        raise ValueError(
            f"rows of heads {first_head} … must be whole heads of {r.num_heads} + 2 × {kv_heads}"
        )
    check_tensor("queries", queries, (n, r.num_heads, head_dim), weight.dtype, gpu)
    check_tensor("cache", r.cache, tuple(r.cache.shape), weight.dtype, gpu)
    check_tensor("cos_sin", r.cos_sin, (len(r.cos_sin), head_dim), torch.float32, gpu)
    check_tensor("positions", r.positions, (n,), torch.int32, gpu)
    check_tensor("slots", r.slots, (n,), torch.int32, gpu)
    spec = linear_spec(weight, n, "ROTATE", norm=True)
    # The kernel counts heads from the weight's first: negative, values alone find their lines.
    of_part = replace(r, num_heads=r.num_heads - first_head)
    _launch(
        gpu,
        spec,
        x,
        weight,
        queries,
        workspace,
        bias=bias,
        norm=norm,
        span=head_dim,
        rotation=of_part,
    )


def _launch(
    gpu: Gpu,
    spec: KernelSpec,
    x: Tensor,
    weight: Matrix,
    y: Tensor,
    workspace: Workspace,
    *,
    bias: Tensor | None,
    norm: Norm | None = None,
    span: int = _TILE,
    rotation: Rotation | None = None,
    world: int = 0,
    x_scale: Tensor | None = None,
) -> None:
    n, (rows, k) = len(x), weight.shape
    splittable = spec.defines["EPILOGUE"] in _SPLITTABLE
    if not linear_takes(gpu, n, weight, splittable=splittable, span=span):
        raise ValueError(f"{n} vectors of {k} elements do not fit this kernel")
    codes, row_scale = weight, None
    if isinstance(weight, PackedMatrix):
        weight.check(gpu)
        codes, row_scale = weight.codes, weight.row_scale
    else:
        check_tensor("weight", weight, (rows, k), weight.dtype, gpu)
        if x_scale is not None:
            raise ValueError("x_scale is for packed weights")
    check_tensor("x_scale", x_scale, (n,), torch.float32, gpu)
    check_tensor("bias", bias, (rows,), weight.dtype, gpu)
    check_tensor("x", x, (n, k), torch.float32 if norm else weight.dtype, gpu)
    if norm:
        check_tensor("norm.weight", norm.weight, (k,), weight.dtype, gpu)
    splits = _splits(gpu, n, weight) or 1
    if splits > 1:
        needed = splits * n * rows
        if workspace.partial.numel() < needed or not workspace.counts(rows):
            raise ValueError(f"the workspace is too small for {rows} rows in {splits} splits")
    vectors_bytes, slot_bytes = n * _vector_bytes(n, weight, splits), _slot_bytes(weight)
    room = gpu.block_shared_bytes - _static_bytes(n) - vectors_bytes
    slots = min(_RING_SLOTS, room // slot_bytes)
    # More than a third of a multiprocessor's: then two blocks share it, never three. Blocks of a
    # kernel replace those of the one before the last, multiprocessor by multiprocessor, and so
    # every multiprocessor has one of each, also with as many blocks as there is no work for.
    shared_bytes = max(slots * slot_bytes + vectors_bytes, gpu.sm_shared_bytes // 3)
    blocks = gpu.num_sms // splits
    gpu.kernel(spec)(
        splits * blocks,
        _THREADS,
        codes,
        bias,
        x,
        norm.weight if norm else None,
        y,
        norm.eps if norm else 0.0,
        norm.offset if norm else 0.0,
        n,
        rows,
        k,
        span,
        splits,
        slots,
        workspace.partial,
        workspace.counters,
        *(_rotation_arguments(rotation) if rotation else (None, None, None, None, 0, 0, 0, 0)),
        world,
        row_scale,
        x_scale,
        shared_bytes=shared_bytes,
        num_bytes=weight.nbytes,
    )


def _rotation_arguments(r: Rotation) -> tuple[Tensor | int, ...]:
    _, lines, block_size, head_dim = r.cache.shape
    sizes = (r.num_heads, lines // 2, head_dim, block_size.bit_length() - 1)
    return r.cos_sin, r.positions, r.slots, r.cache, *sizes


def _static_bytes(n: int) -> int:
    """Bytes of shared memory that do not depend on k, at most."""
    block, vector = _STATIC_BYTES
    return block + int(_vectors(n)) * vector


def _slot_bytes(weight: Matrix) -> int:
    """Bytes of a tile's rows in the ring."""
    if not isinstance(weight, PackedMatrix):
        return _TILE * (_CHUNK_BYTES + 64)
    return _TILE // BLOCK_ROWS * _CHUNK_BYTES // 64 * record_bytes(weight.form, weight.group)


def _splits(gpu: Gpu, n: int, weight: Matrix) -> int | None:
    """Into how many parts k is split, so that the vectors leave room for some slots at least.

    None if even the most parts there may be are too long.
    """
    least = 2 if isinstance(weight, PackedMatrix) and weight.group else 3
    room = gpu.block_shared_bytes - _static_bytes(n) - least * _slot_bytes(weight)
    counts = range(1, _MAX_SPLITS + 1)
    return next((s for s in counts if n * _vector_bytes(n, weight, s) <= room), None)


def _vector_bytes(n: int, weight: Matrix, splits: int) -> int:
    """Bytes of each vector's part in shared memory, with its groups' powers and sums."""
    itemsize, k = weight.dtype.itemsize, weight.shape[1]
    if not isinstance(weight, PackedMatrix):
        return _row_bytes(min(k, _part(k, splits)) * itemsize)
    k, group = filled(weight.form, k), weight.group or STEPS[weight.form]
    part = min(k, _part(k, splits))
    if n == 1 and weight.form != "FP8" and itemsize == 2:
        return 2 * _row_bytes(part) + 8 * (part // group | 1)
    return _row_bytes(part * itemsize) + (4 * (part // group | 1) if weight.group else 0)


def _part(k: int, splits: int) -> int:
    return ceil(ceil(k / splits) / _PART) * _PART


def _row_bytes(size: int) -> int:
    """What a row takes, so that the next one's banks are others."""
    return ceil(size / 128) * 128 + 64
