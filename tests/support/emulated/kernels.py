"""The CUDA kernels of a forward pass as torch calls on the CPU, by the arguments of their launches.

So `CudaOps` and `FusedOps` run without a GPU, and their results can be compared: whether they
launch the right kernels on the right tensors. Only fp32, without quantized weights and caches.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.signature import KernelSpec, Macro, Signature
from swiftchat.engine.reference import routing
from swiftchat.engine.reference.activations import ACTIVATIONS
from swiftchat.weights.architectures.parts.router import RouterConfig
from tests.support.emulated.latent import LATENT
from tests.support.emulated.low_rank import LOW_RANK, add_low_rank
from tests.support.emulated.memory import matrix
from tests.support.emulated.mixers import MIXERS
from tests.support.emulated.ranks import send
from tests.support.emulated.sampling import SAMPLING


def emulated_gpu(more_kernels: Mapping[str, Callable[[Any], None]] = MappingProxyType({})) -> Gpu:
    """Return a `Gpu` whose kernels compute on the CPU when they are launched.

    With one multiprocessor no kernel divides its work among several results. `more_kernels` are
    those between ranks.
    """
    gpu = object.__new__(Gpu)
    gpu.device, gpu.num_sms, gpu.arch = torch.device("cpu"), 1, "sm_80"
    gpu.block_shared_bytes, gpu.sm_shared_bytes = 163 * 1024, 164 * 1024
    gpu.has_dependent_launch = gpu.has_copy_engine = False
    launched: list[str] = []
    kernels = {**_KERNELS, **more_kernels}
    gpu.kernel = partial(_kernel, launched, kernels)  # type: ignore[method-assign]
    gpu.beside, gpu.join = nullcontext, lambda: None  # type: ignore[method-assign]
    gpu.synchronize = lambda: None  # type: ignore[method-assign]
    gpu.launched = launched  # type: ignore[attr-defined]
    return gpu


def aligned(weights: Any) -> Any:
    """Return a copy of weights whose tensors are as on a GPU.

    They begin at multiples of 64 bytes, and are contiguous where views are transposed on the CPU.
    """
    if isinstance(weights, Tensor):
        return weights.clone(memory_format=torch.contiguous_format)
    if isinstance(weights, list | tuple):
        return [aligned(each) for each in weights]
    if is_dataclass(weights) and not isinstance(weights, type):
        values = {field.name: getattr(weights, field.name) for field in fields(weights)}
        return replace(weights, **{name: aligned(value) for name, value in values.items()})
    return weights


Kernels = Mapping[str, Callable[[Any], None]]


def _kernel(
    launched: list[str], kernels: Kernels, name: str, **defines: Macro
) -> Callable[..., None]:
    return partial(_launch, launched, kernels[name], _variant(name, *defines.items()))


@cache
def _variant(name: str, *defines: tuple[str, Macro]) -> tuple[KernelSpec, Signature]:
    spec = KernelSpec.of(name, **dict(defines))
    return spec, spec.signature


def _launch(
    launched: list[str],
    compute: Callable[[Any], None],
    variant: tuple[KernelSpec, Signature],
    grid: Any,
    block: int,
    /,
    *,
    shared_bytes: int = 0,
    num_bytes: int = 0,
    cluster: int = 1,
    **arguments: Any,
) -> None:
    spec, signature = variant
    bound = zip(signature.names, signature.bind(arguments, torch.device("cpu")), strict=True)
    if 0 in (grid if isinstance(grid, tuple) else (grid,)):
        return
    launched.append(spec.name)
    kinds = dict(zip(signature.names, signature.kinds, strict=True))
    given = {name: None if kinds[name] == "pointer" else value for name, value in bound}
    compute(_Launch(spec.defines, {**given, **arguments}))


class _Launch:
    """The macros of a kernel as `defines`, its arguments as attributes."""

    def __init__(self, defines: Any, arguments: dict[str, Any]) -> None:
        self.defines = defines
        self.__dict__.update(arguments)

    def __getattr__(self, name: str) -> Any:  # for type checkers
        raise AttributeError(name)


def _normed(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * (weight + offset)


def _embed(a: _Launch) -> None:
    ids = a.ids - a.first_id
    known = (ids >= 0) & (ids < a.num_ids)
    rows = a.table[ids.where(known, 0)] * a.scale
    a.out.copy_(rows.where(known.unsqueeze(1), 0.0))


def _norm(a: _Launch) -> None:
    if a.delta is not None:
        a.x.add_(a.delta)
    if a.defines["LAYER_NORM"] == "1":
        a.out.copy_(F.layer_norm(a.x, a.weight.shape, a.weight, a.shift, a.eps))
    else:
        a.out.copy_(_normed(a.x, a.weight, a.eps, a.weight_offset))


def _add_norm(a: _Launch) -> None:
    a.x.add_(_normed(a.delta, a.weight, a.eps, a.weight_offset))
    if a.scale is not None:
        a.x.mul_(a.scale)
    if a.copy is not None:
        a.copy.copy_(a.x)
    if a.defines["ZERO_DELTA"] == "1":
        a.delta.zero_()


def _linear(a: _Launch) -> None:
    x = a.x
    if a.defines["NORM"] == "1":
        x = _normed(x, a.norm_weight, a.eps, a.weight_offset)
    y = F.linear(x, a.weight)
    if a.bias is not None:  # one for all rows, or for each
        y += a.bias
    if a.defines["LOW_RANK"] == "1":
        add_low_rank(a, x, y)
    match a.defines["EPILOGUE"]:
        case "STORE":
            a.out.copy_(y)
        case "RESIDUAL":
            a.out.add_(y)
        case "SEND":
            send(y, a.out)
        case "ACT_AND_MUL":
            gate, up = y.chunk(2, 1)
            a.out.copy_(ACTIVATIONS[a.defines["ACTIVATION"].lower()](gate) * up)
        case "ROPE_CACHE":
            heads = y.view(len(y), -1, a.head_dim)
            assert heads.shape[1] == a.num_heads + 2 * a.num_kv_heads  # not only some of them
            q, k, v = heads.split([a.num_heads, a.num_kv_heads, a.num_kv_heads], 1)
            _rotate(a, q, k)
            a.out.copy_(q)
            _store(a, k, v)
        case other:
            raise AssertionError(other)


def _act_and_mul(a: _Launch) -> None:
    gate, up = a.x, a.up
    if a.defines["GATED"] == "1" and up is None:
        gate, up = a.x.chunk(2, 1)
    activation = a.defines["ACTIVATION"].lower()
    acted = gate.sigmoid() if activation == "sigmoid" else ACTIVATIONS[activation](gate)
    a.out.copy_(acted if up is None else acted * up)


def _rotate(a: _Launch, *parts: Tensor) -> None:
    cos, sin = a.cos_sin[a.positions].unsqueeze(1).chunk(2, -1)
    for part in parts:
        one, other = part.chunk(2, -1)
        part.copy_(torch.cat([one * cos - other * sin, other * cos + one * sin], -1))


def _store(a: _Launch, k: Tensor, v: Tensor) -> None:
    slots = a.slot_mapping[a.slot_mapping >= 0]
    place = slots & ((1 << a.log2_block_size) - 1)
    a.cache[slots >> a.log2_block_size, :, place] = torch.cat([k, v], 1)[a.slot_mapping >= 0]


def _rotary(a: _Launch) -> None:
    heads, kv, dim = a.num_heads, a.num_kv_heads, a.head_dim
    q, rest = a.qkv[:, :heads], a.qkv[:, heads + a.num_gate_heads :]
    k = rest[:, :kv].clone()
    v = k.clone() if a.keys_as_values else rest[:, kv:].clone()
    is_normed = a.defines["QK_NORM"] == "1"

    def normalize() -> None:
        q.copy_(_normed(q, a.q_norm, a.eps, a.weight_offset))
        k.copy_(_normed(k, a.k_norm, a.eps, a.weight_offset))

    if is_normed and not a.norm_after:
        normalize()
    if is_normed and a.norm_values:
        v = _normed(v, torch.ones(dim), a.eps, 0.0)
    if a.cos_sin is not None:
        assert a.rotary_dim == dim
        _rotate(a, q, k)
    if is_normed and a.norm_after:
        normalize()
    if a.query_factors is not None:
        q.mul_(a.query_factors[a.positions].view(-1, 1, 1))
    if kv:
        _store(a, k, v)


def _rotated_queries(a: _Launch) -> Tensor:
    """Return rotated queries; store the newest keys and values, which are beside them in memory."""
    (n, heads, dim), kv = a.q.shape, a.num_kv_heads
    width = heads + a.num_gate_heads + 2 * kv
    own = {**a.__dict__, "num_heads": heads, "norm_after": 0, "norm_values": 0}
    own |= {"keys_as_values": 0, "query_factors": None}
    own["qkv"] = a.q.as_strided((n, width, dim), (a.q.stride(0), dim, 1)).clone()
    own["defines"] = {"QK_NORM": "0" if a.q_norm is None else "1"}
    _rotary(_Launch(own["defines"], own))
    return own["qkv"][:, :heads]


def _attend(a: _Launch, q: Tensor, table: Tensor, context: int) -> Tensor:
    """Return the attention of the last tokens of a sequence, q [n, heads, head_dim]."""
    positions = torch.arange(context)
    size = a.cache.shape[2]
    rows = a.cache[table[positions // size], :, positions % size]
    keys, values = rows.repeat_interleave(2 * q.shape[1] // rows.shape[1], 1).chunk(2, 1)
    scores = torch.einsum("nhd,thd->hnt", q, keys) * a.scale
    own = (context - len(q) + torch.arange(len(q))).unsqueeze(1)
    distance = own - positions
    visible = distance >= 0
    if a.window:
        visible &= distance < a.window
    if a.chunk:
        visible &= positions >= own // a.chunk * a.chunk
    if getattr(a, "first_key", 0):
        visible &= (positions >= a.first_key) | (positions == own)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hnt,thd->nhd", weights, values)


def _decode_attention(a: _Launch) -> None:
    if "ROTARY" in a.defines:
        a.q = _rotated_queries(a)
    for i, context in enumerate(a.context_lens.tolist()):
        a.out[i] = _attend(a, a.q[i : i + 1], a.block_tables[i], context) if context else 0


def _prefill_attention(a: _Launch) -> None:
    for i, context in enumerate(a.context_lens.tolist()):
        first, end = a.query_starts[i : i + 2].tolist()
        if end > first:
            a.out[first:end] = _attend(a, a.q[first:end], a.block_tables[i], context)


def _route(a: _Launch, logits: Tensor | None = None) -> None:
    config = RouterConfig(
        scores="sigmoid" if a.sigmoid else "softmax",
        by_logits=bool(a.by_logits),
        normalized=bool(a.normalized),
        eps=a.eps,
        scale=a.scale,
        groups=a.num_groups,
        top_groups=a.top_groups,
        best_of_group=a.best_of_group,
    )
    logits = a.logits if logits is None else logits
    logits = logits if a.bias is None else logits + a.bias
    weights, ids = routing.route(logits, a.correction, a.experts_per_token, config)
    if a.expert_scales is not None:
        weights = weights * a.expert_scales[ids]
    a.ids[:, : a.experts_per_token] = ids
    a.weights[:, : a.experts_per_token] = weights


def _router(a: _Launch) -> None:
    seen = _normed(a.x, a.norm_weight, a.norm_eps, a.weight_offset)
    own = a.norm_weight if a.expert_norm is None else a.expert_norm
    a.normed.copy_(_normed(a.x, own, a.norm_eps, a.weight_offset))
    assert not a.shared_gate
    _route(a, F.linear(seen, a.matrix))
    a.ids[:, a.experts_per_token :] = a.num_experts + torch.arange(a.num_shared)
    a.weights[:, a.experts_per_token :] = 1.0


def _gated(a: _Launch, x: Tensor, expert: int, weight: Tensor | float) -> Tensor:
    address, width = int(a.values[expert]), a.hidden_size
    # Only the kernels for few tokens compute parts of a shared expert.
    is_shared = expert >= getattr(a, "num_routed", len(a.values))
    up_rows = address + 4 * width * (a.shared_size if is_shared else a.expert_size)
    gate, up = (
        F.linear(x, matrix(first, a.expert_size, width, width)) * weight
        for first in (address, up_rows)
    )
    return ACTIVATIONS[a.defines["ACTIVATION"].lower()](gate) * up


def _down(a: _Launch, x: Tensor, expert: int) -> Tensor:
    is_shared = expert >= getattr(a, "num_routed", len(a.values))
    stride = a.shared_size if is_shared else a.expert_size
    return F.linear(x, matrix(int(a.values[expert]), a.hidden_size, a.expert_size, stride))


def _expert_gate_up(a: _Launch) -> None:
    for token, chosen in enumerate(a.ids.tolist()):
        for i, expert in enumerate(chosen):
            weight = 1.0 if a.input_weights is None else a.input_weights[token, i]
            a.out[token, i] = _gated(a, a.x[token], expert, weight)


def _expert_down(a: _Launch) -> None:
    if not a.accumulate:
        a.out.zero_()
    for token, chosen in enumerate(a.ids.tolist()):
        for i, expert in enumerate(chosen):
            weight = 1.0 if a.weights is None else a.weights[token, i]
            a.out[token] += weight * _down(a, a.x[token, i], expert)


def _expert_order(a: _Launch) -> None:
    flat = a.ids.flatten()
    a.order.copy_(flat.argsort(stable=True))
    counts = torch.bincount(flat, minlength=len(a.starts) - 1)
    a.starts.copy_(F.pad(counts.cumsum(0), (1, 0)))


def _by_expert(a: _Launch) -> Iterator[tuple[int, slice]]:
    ends = a.starts.tolist()
    yield from ((e, slice(*pair)) for e, pair in enumerate(pairwise(ends)))


def _grouped_gate_up(a: _Launch) -> None:
    for expert, rows in _by_expert(a):
        choices = a.order[rows].long()
        weights = None if a.input_weights is None else a.input_weights.flatten()[choices]
        weight = 1.0 if weights is None else weights.unsqueeze(1)
        a.out[rows] = _gated(a, a.x[choices // a.experts_per_token], expert, weight)


def _grouped_down(a: _Launch) -> None:
    for expert, rows in _by_expert(a):
        a.out[a.order[rows].long()] = _down(a, a.x[rows], expert)


def _expert_sum(a: _Launch) -> None:
    parts = a.parts if a.weights is None else a.parts * a.weights.unsqueeze(2)
    a.out.copy_(parts.sum(1))


def _copy_blocks(a: _Launch) -> None:
    sources, destinations = a.copies.long().unbind(1)
    a.destination[:, destinations] = a.source[:, sources]


def _host_call(a: _Launch) -> None:
    """A thread of the host takes the request."""
    a.host_inputs.copy_(a.inputs)
    a.requests += 1
    a.mailbox[16] = a.call
    a.mailbox[0] = a.requests[0]
    while a.mailbox[8] != a.requests[0]:
        pass
    a.outputs.copy_(a.host_outputs)


_KERNELS: dict[str, Callable[[_Launch], None]] = {
    "copy_blocks": _copy_blocks,
    "embed": _embed,
    "host_call": _host_call,
    "norm": _norm,
    "add_norm": _add_norm,
    "linear": _linear,
    "act_and_mul": _act_and_mul,
    "rotary": _rotary,
    "decode_attention": _decode_attention,
    "prefill_attention": _prefill_attention,
    "gather_rows": lambda a: a.out.copy_(a.x[a.rows]),
    "route": _route,
    "router": _router,
    "expert_gate_up": _expert_gate_up,
    "expert_down": _expert_down,
    "expert_order": _expert_order,
    "grouped_gate_up": _grouped_gate_up,
    "grouped_down": _grouped_down,
    "expert_sum": _expert_sum,
    **LATENT,
    **LOW_RANK,
    **MIXERS,
    **SAMPLING,
}
