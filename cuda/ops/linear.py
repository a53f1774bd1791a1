"""A matrix times up to 16 vectors, fused with its neighbours in a layer: `kernels/linear.cu`."""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from swiftchat.cuda.check import check_tensor
from swiftchat.cuda.gpu import DTYPE_NAMES, Gpu, KernelSpec
from swiftchat.cuda.inbox import Inbox

MAX_VECTORS = 16
# Slots of the ring of weights, 17 KB each. Four leave room for the next kernel's block beside; five
# would too, but then more is in flight than L2 takes well (8B: 4.3 ms a step instead of 3.8).
_RING_SLOTS = 4
_MAX_SPLITS = 16
_THREADS = 352
_SLOT_BYTES = 8 * (2048 + 64)
_CHUNK_BYTES = 2048
_SPLITTABLE = ("RESIDUAL", "SEND")
_STATIC_BYTES = 26 * 1024  # at most, for 16 vectors with their angles
_PARAMS = "pppppffiiiiiippppppiiiii"

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
VARIANTS = [
    {"DTYPE": name, "VECTORS": vectors, **kind}
    for kind in _KINDS
    for name in DTYPE_NAMES.values()
    for vectors in ("1", "8", "16")
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
        self.counters = torch.zeros(-(-max_rows // 8), dtype=torch.int32, device=gpu.device)


def linear_spec(dtype: torch.dtype, n: int, epilogue: str, *, norm: bool = False,
                wide: bool = False, activation: str = "none") -> KernelSpec:  # fmt: skip
    defines = {
        "DTYPE": DTYPE_NAMES[dtype], "EPILOGUE": epilogue, "NORM": str(int(norm)),
        "WIDE": str(int(wide)), "ACTIVATION": activation.upper(), "VECTORS": _vectors(n),
    }  # fmt: skip
    return KernelSpec("linear", _PARAMS, defines)


def _vectors(n: int) -> str:
    """The number of vectors a kernel is compiled for."""
    return "1" if n == 1 else "8" if n <= 8 else "16"


def linear_fits(gpu: Gpu, n: int, k: int, itemsize: int, *, splittable: bool = False) -> bool:
    """Whether n vectors of k elements are few and short enough for this kernel."""
    if not 1 <= n <= MAX_VECTORS or k * itemsize % 16:
        return False
    splits = _splits(gpu, n, k, itemsize)
    return splits is not None and (splits == 1 or splittable)


def linear(gpu: Gpu, x: Tensor, weight: Tensor, out: Tensor, workspace: Workspace, *,
           bias: Tensor | None = None, norm: Norm | None = None) -> None:  # fmt: skip
    """out [n, rows] = x [n, k] · weightᵀ [k, rows] + bias.

    `out` has the weight's dtype, or is fp32. x has the weight's dtype, or with `norm` is fp32.
    """
    wide = out.dtype == torch.float32 and weight.dtype != torch.float32
    check_tensor("out", out, (len(x), len(weight)), out.dtype, gpu)
    spec = linear_spec(weight.dtype, len(x), "STORE", norm=norm is not None, wide=wide)
    _launch(gpu, spec, x, weight, out, workspace, bias=bias, norm=norm)


def linear_residual(gpu: Gpu, x: Tensor, weight: Tensor, residual: Tensor, workspace: Workspace,
                    *, bias: Tensor | None = None) -> None:  # fmt: skip
    """Add x [n, k] · weightᵀ + bias to the fp32 residual stream [n, rows] in place."""
    check_tensor("residual", residual, (len(x), len(weight)), torch.float32, gpu)
    spec = linear_spec(weight.dtype, len(x), "RESIDUAL")
    _launch(gpu, spec, x, weight, residual, workspace, bias=bias)


def linear_send(gpu: Gpu, x: Tensor, weight: Tensor, inbox: Inbox, workspace: Workspace, *,
                bias: Tensor | None = None, norm: Norm | None = None) -> None:  # fmt: skip
    """Send x [n, k] · weightᵀ + bias in fp32 to every rank's inbox, as this rank's part."""
    inbox.check_part(len(x) * len(weight), gpu)
    spec = linear_spec(weight.dtype, len(x), "SEND", norm=norm is not None)
    _launch(gpu, spec, x, weight, inbox.addresses, workspace, bias=bias, norm=norm,
            world=inbox.world)  # fmt: skip


def linear_gated(gpu: Gpu, x: Tensor, weight: Tensor, out: Tensor, workspace: Workspace,
                 norm: Norm, activation: str, *, bias: Tensor | None = None) -> None:  # fmt: skip
    """out [n, rows / 2] = activation(gate) * up, for weight's rows the gate's, then up's."""
    rows = len(weight)
    if rows % 8:
        raise ValueError(f"gate and up must have a multiple of 4 rows, not {rows / 2}")
    check_tensor("out", out, (len(x), rows // 2), weight.dtype, gpu)
    spec = linear_spec(weight.dtype, len(x), "GATED", norm=True, activation=activation)
    _launch(gpu, spec, x, weight, out, workspace, bias=bias, norm=norm, span=rows)


def linear_rotate(gpu: Gpu, x: Tensor, weight: Tensor, queries: Tensor, workspace: Workspace,
                  norm: Norm, rotation: Rotation, *,
                  bias: Tensor | None = None) -> None:  # fmt: skip
    """Fused q k v product: rotated queries [n, heads, head_dim]; keys and values to the cache.

    Half-split rotary embedding of whole heads, in fp32.
    """
    r, n = rotation, len(x)
    kv_heads, head_dim = r.cache.shape[1] // 2, r.cache.shape[3]
    if head_dim % 8 or head_dim > 256:
        raise ValueError(f"head_dim must be a multiple of 8 up to 256, not {head_dim}")
    if len(weight) != (r.num_heads + 2 * kv_heads) * head_dim:
        raise ValueError(f"weight must have a row for each of {r.num_heads} + 2 × {kv_heads} heads")
    check_tensor("queries", queries, (n, r.num_heads, head_dim), weight.dtype, gpu)
    check_tensor("cache", r.cache, tuple(r.cache.shape), weight.dtype, gpu)
    check_tensor("cos_sin", r.cos_sin, (len(r.cos_sin), head_dim), torch.float32, gpu)
    check_tensor("positions", r.positions, (n,), torch.int32, gpu)
    check_tensor("slots", r.slots, (n,), torch.int32, gpu)
    spec = linear_spec(weight.dtype, n, "ROTATE", norm=True)
    _launch(gpu, spec, x, weight, queries, workspace, bias=bias, norm=norm, span=head_dim,
            rotation=r)  # fmt: skip


def _launch(
    gpu: Gpu,
    spec: KernelSpec,
    x: Tensor,
    weight: Tensor,
    y: Tensor,
    workspace: Workspace,
    *,
    bias: Tensor | None,
    norm: Norm | None = None,
    span: int = 8,
    rotation: Rotation | None = None,
    world: int = 0,
) -> None:
    (n, k), (rows, _), itemsize = x.shape, weight.shape, weight.itemsize
    if not linear_fits(gpu, n, k, itemsize, splittable=spec.defines["EPILOGUE"] in _SPLITTABLE):
        raise ValueError(f"{n} vectors of {k} elements do not fit this kernel")
    check_tensor("weight", weight, (rows, k), weight.dtype, gpu)
    check_tensor("bias", bias, (rows,), weight.dtype, gpu)
    check_tensor("x", x, (n, k), torch.float32 if norm else weight.dtype, gpu)
    if norm:
        check_tensor("norm.weight", norm.weight, (k,), weight.dtype, gpu)
    splits = _splits(gpu, n, k, itemsize) or 1
    if splits > 1:
        needed = splits * n * rows
        if workspace.partial.numel() < needed or workspace.counters.numel() * 8 < rows:
            raise ValueError(f"the workspace is too small for {rows} rows in {splits} splits")
    vectors_bytes = n * _stride(k, itemsize, splits)
    room = gpu.block_shared_bytes - _STATIC_BYTES - vectors_bytes
    slots = min(_RING_SLOTS, room // _SLOT_BYTES)
    # More than a third of a multiprocessor's: then two blocks share it, never three. Blocks of a
    # kernel replace those of the one before the last, multiprocessor by multiprocessor, and so
    # every multiprocessor has one of each, also with as many blocks as there is no work for.
    shared_bytes = max(slots * _SLOT_BYTES + vectors_bytes, gpu.sm_shared_bytes // 3)
    blocks = gpu.num_sms // splits
    gpu.kernel(spec)(
        splits * blocks, _THREADS,
        weight, bias, x, norm.weight if norm else None, y,
        norm.eps if norm else 0.0, norm.offset if norm else 0.0,
        n, rows, k, span,
        splits, slots, workspace.partial, workspace.counters,
        *(_rotation_arguments(rotation) if rotation else (None, None, None, None, 0, 0, 0, 0)),
        world,
        shared_bytes=shared_bytes, num_bytes=weight.nbytes,
    )  # fmt: skip


def _rotation_arguments(r: Rotation) -> tuple[Tensor | int, ...]:
    _, lines, block_size, head_dim = r.cache.shape
    sizes = (r.num_heads, lines // 2, head_dim, block_size.bit_length() - 1)
    return r.cos_sin, r.positions, r.slots, r.cache, *sizes


def _splits(gpu: Gpu, n: int, k: int, itemsize: int) -> int | None:
    """Into how many parts k is split, so that the vectors leave room for three slots at least.

    None if even the most parts there may be are too long.
    """
    room = gpu.block_shared_bytes - _STATIC_BYTES - 3 * _SLOT_BYTES
    fitting = (s for s in range(1, _MAX_SPLITS + 1) if n * _stride(k, itemsize, s) <= room)
    return next(fitting, None)


def _stride(k: int, itemsize: int, splits: int) -> int:
    """Bytes of one vector's part in shared memory, as the kernel pads them."""
    chunk = _CHUNK_BYTES // itemsize
    chunks = ceil(ceil(k / splits) / chunk)
    return ceil(min(k, chunks * chunk) * itemsize / 128) * 128 + 64
