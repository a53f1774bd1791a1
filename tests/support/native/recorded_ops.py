"""Recorded operations computed by torch, in fp32: the reference for the recorder and the fusion."""

import ctypes
from ctypes import POINTER
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.cpu import native
from swiftchat.engine.cpu.fusion import fuse
from swiftchat.engine.cpu.native import (
    Epilogue,
    Format,
    KVFormat,
    Matrix,
    Norm,
    NormKind,
    RowSet,
)
from swiftchat.engine.cpu.recorder import Recorder
from swiftchat.engine.cpu.recording import Recording
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.reference.activations import ACTIVATIONS
from swiftchat.engine.schedule.batch import Batch
from tests.support import tiny

_ACTIVATIONS = ("silu", "relu", "gelu", "gelu_tanh", "gelu_sigmoid", "relu2")
_DTYPES = MappingProxyType(
    {Format.F32: torch.float32, Format.F16: torch.float16, Format.BF16: torch.bfloat16}
)
_KV_DTYPES = MappingProxyType(
    {KVFormat.F32: torch.float32, KVFormat.F16: torch.float16, KVFormat.BF16: torch.bfloat16}
)


def memory(address: int, dtype: torch.dtype, count: int) -> Tensor:
    """View `count` elements at an address."""
    raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return torch.from_numpy(np.frombuffer(raw, dtype=np.uint8)).view(dtype)


def floats(address: int | None, count: int) -> Tensor | None:
    return None if not address else memory(address, torch.float32, count)


def dense(matrix: Matrix) -> Tensor:
    """Return a float matrix in fp32."""
    dtype = _DTYPES[Format(matrix.format)]
    count = matrix.stride // dtype.itemsize * (matrix.rows - 1) + matrix.cols
    rows = memory(matrix.data, dtype, count)
    strides = (matrix.stride // dtype.itemsize, 1)
    return rows.as_strided((matrix.rows, matrix.cols), strides).float()


def normalize(x: Tensor, norm: Norm, weight: Tensor, bias: Tensor | None) -> Tensor:
    width = (x.shape[-1],)
    if norm.kind == NormKind.RMS:
        return F.rms_norm(x, width, eps=norm.eps) * weight
    out = F.layer_norm(x, width, eps=norm.eps) * weight
    return out if bias is None else out + bias


def activate(x: Tensor, kind: int) -> Tensor:
    return ACTIVATIONS[_ACTIVATIONS[kind - 1]](x)


@dataclass
class Interpreter:
    """Computes a recording for one batch after another."""

    recording: Recording
    block_size: int

    def run(self, batch: Batch) -> Tensor:
        """Return the logits, fp32 [m, vocab_size]."""
        self.batch = batch
        nan = float("nan")
        rows = {RowSet.TOKENS: len(batch.ids), RowSet.LOGITS: len(batch.logits_indices)}
        shapes = self.recording.buffers
        self.buffers = [torch.full((rows[row_set], width), nan) for row_set, width in shapes]
        for op in self.recording.ops:
            for buffer in (op.x, op.out) if isinstance(op, native.LinearOp) else ():
                assert shapes[buffer][0] == op.header.row_set
            getattr(self, type(op).__name__)(op)
        return self.buffers[self.recording.output]

    def EmbedOp(self, op: native.EmbedOp) -> None:
        out = torch.zeros_like(self.buffers[op.out])
        if op.table.data:
            out += op.scale * dense(op.table)[self.batch.ids]
        if op.positions.data:
            out += dense(op.positions)[torch.tensor(self.batch.positions) + op.position_offset]
        self.buffers[op.out][:] = out

    def norm(self, x: Tensor, norm: Norm) -> Tensor:
        if norm.kind == NormKind.NONE:
            return x
        weight = floats(norm.weight, x.shape[1])
        assert weight is not None
        return normalize(x, norm, weight, floats(norm.bias, x.shape[1]))

    def NormOp(self, op: native.NormOp) -> None:
        normed = self.norm(self.buffers[op.x], op.norm)
        self.buffers[op.out][:] = normed + self.buffers[op.out] if op.accumulate else normed

    def LinearOp(self, op: native.LinearOp) -> None:
        assert op.x != op.out
        weight = torch.cat([dense(part) for part in op.parts[: op.num_parts]])
        assert len(weight) == op.rows
        y = F.linear(self.norm(self.buffers[op.x], op.norm), weight, floats(op.bias, op.rows))
        if op.epilogue == Epilogue.ADD:
            y = self.buffers[op.out] + y
        elif op.epilogue == Epilogue.ACT:
            y = activate(y, op.activation)
        elif op.epilogue == Epilogue.ACT_AND_MUL:
            gate, up = y.chunk(2, 1)
            y = activate(gate, op.activation) * up
        self.buffers[op.out][:] = y

    def layer_cache(self, op: native.RotaryOp | native.AttentionOp) -> Tensor:
        """View the used blocks [n, 2 * num_kv_heads, block_size, head_dim]."""
        blocks = 1 + max(max(span.block_table) for span in self.batch.spans)
        shape = (blocks, 2 * op.num_kv_heads, op.cache.block_size, op.head_dim)
        dtype = _KV_DTYPES[KVFormat(op.cache.format)]
        return memory(op.cache.values, dtype, int(np.prod(shape))).view(shape)

    def RotaryOp(self, op: native.RotaryOp) -> None:
        qkv = self.buffers[op.qkv]
        heads = qkv.view(len(qkv), -1, op.head_dim)
        end = op.num_heads + op.num_kv_heads
        q, k, v = heads.tensor_split((op.num_heads, end), 1)
        for part, norm in ((q, op.q_norm), (k, op.k_norm)):
            if norm.kind != NormKind.NONE:
                count = part.shape[1] * op.head_dim
                weight = floats(norm.weight, count)
                assert weight is not None
                width = op.head_dim if op.norm_width == op.head_dim else count
                rows = part.reshape(len(qkv), -1, width)
                part[:] = normalize(rows, norm, weight.view(-1, width), None).view(part.shape)
        if op.cos_sin:
            self.rotate(heads[:, :end], op)
        cache = self.layer_cache(op)
        slots = torch.tensor(self.batch.slot_mapping)
        cache[slots // op.cache.block_size, :, slots % op.cache.block_size] = torch.cat(
            [k, v], 1
        ).to(cache.dtype)

    def rotate(self, x: Tensor, op: native.RotaryOp) -> None:
        table = floats(op.cos_sin, op.num_positions * op.head_dim)
        assert table is not None
        table = table.view(op.num_positions, 2, op.head_dim // 2)
        rows = table[torch.tensor(self.batch.positions)]
        if op.two_dimensional:
            first, second = (table[list(p)] for p in zip(*self.batch.position_pairs(), strict=True))
            half = op.head_dim // 4
            rows = torch.cat([first[..., :half], second[..., half:]], -1)
        cos, sin = rows.unsqueeze(2).unbind(1)
        one, two = x.clone().chunk(2, -1)
        x[:] = torch.cat([one * cos - two * sin, two * cos + one * sin], -1)

    def AttentionOp(self, op: native.AttentionOp) -> None:
        assert op.qkv != op.out
        cache, group = self.layer_cache(op).float(), op.num_heads // op.num_kv_heads
        queries = self.buffers[op.qkv].view(-1, op.num_heads + 2 * op.num_kv_heads, op.head_dim)
        slopes, sinks = floats(op.slopes, op.num_heads), floats(op.sinks, op.num_heads)
        for span in self.batch.spans:
            rows = slice(span.start, span.start + span.num_tokens)
            length = span.context_len
            context = cache[span.block_table].transpose(1, 2).flatten(0, 1)[:length]
            keys, values = (each.repeat_interleave(group, 1) for each in context.chunk(2, 1))
            scores = torch.einsum("qhd,khd->hqk", queries[rows, : op.num_heads], keys) * op.scale
            if op.softcap:
                scores = op.softcap * torch.tanh(scores / op.softcap)
            key = torch.arange(length)
            query = torch.arange(length - span.num_tokens, length).unsqueeze(1)
            seen = (key <= query) | (key < span.bidirectional_prefix.length)
            if op.window:
                seen &= key > query - op.window
            if slopes is not None:
                scores += slopes.view(-1, 1, 1) * (key - query)
            scores = scores.masked_fill(~seen, float("-inf"))
            if sinks is not None:
                sink = sinks.view(-1, 1, 1).expand(-1, span.num_tokens, 1)
                probs = torch.cat([scores, sink], -1).softmax(-1)[..., :-1]
            else:
                probs = scores.softmax(-1)
            out = torch.einsum("hqk,khd->qhd", probs, values)
            self.buffers[op.out][rows] = out.flatten(1)

    def gate(self, x: Tensor, op: native.ActAndMulOp) -> Tensor:
        if not op.gated:
            return activate(x, op.activation)
        gate, up = x.chunk(2, 1)
        if op.gate_limit:
            gate = gate.clamp(max=op.gate_limit)
            up = up.clamp(-op.gate_limit, op.gate_limit) + 1
        return activate(gate, op.activation) * up

    def ActAndMulOp(self, op: native.ActAndMulOp) -> None:
        assert op.x != op.out
        self.buffers[op.out][:] = self.gate(self.buffers[op.x], op)

    def AddScaledOp(self, op: native.AddScaledOp) -> None:
        x, out = self.buffers[op.x], self.buffers[op.out]
        out[:] = op.beta * x + (op.alpha * out if op.alpha else 0)

    def SoftcapOp(self, op: native.SoftcapOp) -> None:
        x = self.buffers[op.x]
        x[:] = op.cap * torch.tanh(x / op.cap)

    def GatherOp(self, op: native.GatherOp) -> None:
        self.buffers[op.out][:] = self.buffers[op.x][self.batch.logits_indices]

    def MoeOp(self, op: native.MoeOp) -> None:
        x = self.buffers[op.x]
        scores = F.linear(x, dense(op.router), floats(op.router_bias, op.num_experts))
        weights, chosen = scores.softmax(-1).sort(dim=-1, descending=True, stable=True)
        weights, chosen = (t[:, : op.experts_per_token] for t in (weights, chosen))
        if op.normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        experts = ctypes.cast(op.experts, POINTER(native.Expert))
        for row, column in np.ndindex(*chosen.shape):
            expert = experts[int(chosen[row, column])]
            out[row] += weights[row, column] * self.mlp(x[row : row + 1], expert, op)[0]
        if op.shared_size:
            weight = F.linear(x, dense(op.shared_router)).sigmoid()
            out += weight * self.mlp(x, experts[op.num_experts], op)
        self.buffers[op.out][:] = out

    def mlp(self, x: Tensor, expert: native.Expert, op: native.MoeOp) -> Tensor:
        gate_up, down = dense(expert.gate_up), dense(expert.down)
        inner = F.linear(x, gate_up, floats(expert.gate_up_bias, len(gate_up)))
        return F.linear(self.gate(inner, op.act), down, floats(expert.down_bias, len(down)))


def recorded(bench: tiny.Bench, kv_dtype: str = "auto") -> Interpreter:
    """Record the bench's decoder; give the bench a cache for the recording."""
    config, weights = bench.decoder.config, bench.decoder.weights
    num_blocks, block_size = bench.allocator.num_blocks, bench.allocator.block_size
    cpu = torch.device("cpu")
    bench.cache = KVCache(
        *(config, num_blocks, block_size, weights.dtype, cpu), heads_first=True, kv_dtype=kv_dtype
    )
    recording = Recorder(config, weights, config.max_context_tokens).record(bench.cache)
    return Interpreter(recording, block_size)


def logits_of_both(folder: Path, fused: bool = False) -> tuple[Tensor, Tensor]:
    """Return the logits of a prompt in chunks, then of single tokens: recorded, and by torch.

    The prompt goes first, then come tokens that follow a part of it in another order of blocks.
    """
    benches = [tiny.Bench(folder, chunk_tokens=7) for _ in range(2)]
    interpreter = recorded(benches[0])
    if fused:
        fuse(interpreter.recording)
    benches[0].decoder.forward = lambda batch, cache: interpreter.run(batch)  # type: ignore[method-assign]
    found = []
    for bench in benches:
        prompt = bench.last_logits(tiny.random_ids(19)).unsqueeze(0)
        found.append(torch.cat([prompt, bench.logits(tiny.random_ids(6, seed=3))]))
    return found[0], found[1]
