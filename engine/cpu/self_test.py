"""A quick check of the kernels against numpy, before an engine computes with them.

It finds a library that does not fit to this processor or was damaged: one small layer of each kind,
as one decode row and as a prefill, takes a few milliseconds. Torch is not the reference: its
operators would bring more than 10 MB of code into memory that the engine does not use otherwise.
"""

import math
from ctypes import Structure
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swiftchat.engine.api.tile_layout import TileLayout
from swiftchat.engine.cpu import native
from swiftchat.engine.cpu.matrices import FloatMatrix, NativeMatrix, TiledMatrix
from swiftchat.engine.cpu.native import (
    BLOCK_COLS,
    INT4_CENTER,
    TILE_ROWS,
    Epilogue,
    KVFormat,
    LayerCache,
    Matrix,
    Norm,
    NormKind,
    OpHeader,
    RowSet,
)
from swiftchat.engine.cpu.program import Pool, Program, RunInputs, SpanRows

_HEAD_DIM, _NUM_HEADS = 32, 2
_WIDTH = _HEAD_DIM * _NUM_HEADS
_MAX_ROWS = 20
# Of the largest result. Processors with bf16 products round activations to 8 bits, an error of at
# most 2e-3 of each; a fault of a kernel gives results that have nothing to do with the expected.
_TOLERANCE = 1e-2


def self_test(pool: Pool) -> str | None:
    """Compute a small layer with the kernels and with numpy; return what differs, None if nothing.

    Raises MemoryError.
    """
    layer = _Layer.random()
    # Few rows are computed by GEMV, many by GEMM; the prefill is computed by all threads.
    for num_rows in (1, _MAX_ROWS):
        expected = layer.reference(num_rows)
        for name, found in layer.run(pool, num_rows).items():
            error = (found - expected[name]).abs().amax() / expected[name].abs().amax()
            if not error <= _TOLERANCE:  # also if it is NaN
                return f"{name} of {num_rows} rows errs by {error:.1g}"
    return None


@dataclass(frozen=True)
class _Layer:
    """Embedding, norm, matmul with int4 weights, attention, matmul with bf16 weights."""

    table: Tensor
    norm_weight: Tensor
    qkv: TiledMatrix
    qkv_values: Tensor
    output: Tensor

    @classmethod
    def random(cls) -> "_Layer":
        noise = _Noise()

        def random(*shape: int) -> Tensor:
            return torch.from_numpy(noise.numbers(*shape) - 0.5).float()

        qkv, values = _random_int4(3 * _WIDTH, _WIDTH, noise)
        return cls(
            random(_MAX_ROWS, _WIDTH).bfloat16(),
            1 + random(_WIDTH),
            qkv,
            values,
            random(_WIDTH, _WIDTH).bfloat16(),
        )

    def run(self, pool: Pool, num_rows: int) -> dict[str, Tensor]:
        """Compute the first `num_rows` rows with the kernels."""
        cache = torch.full((1, 2 * _NUM_HEADS, _MAX_ROWS, _HEAD_DIM), torch.nan)
        tokens = OpHeader(row_set=RowSet.TOKENS)
        layer_cache = LayerCache(KVFormat.F32, _MAX_ROWS, cache.data_ptr())
        heads = {"num_heads": _NUM_HEADS, "num_kv_heads": _NUM_HEADS, "head_dim": _HEAD_DIM}
        norm = Norm(NormKind.RMS, 0.0, self.norm_weight.data_ptr())
        ops: list[Structure] = [
            native.EmbedOp(tokens, 0, 1.0, table=FloatMatrix(self.table).struct),
            _linear(self.qkv, x=0, out=1, norm=norm),
            native.RotaryOp(tokens, 1, **heads, norm_width=_HEAD_DIM, cache=layer_cache),
            native.AttentionOp(tokens, 1, 2, **heads, scale=1.0, cache=layer_cache),
            _linear(FloatMatrix(self.output), x=2, out=0, epilogue=Epilogue.ADD),
        ]
        widths = [(RowSet.TOKENS, width) for width in (_WIDTH, 3 * _WIDTH, _WIDTH)]
        program = Program(pool, ops, widths)
        rows = torch.arange(num_rows, dtype=torch.int32)
        span = SpanRows(0, num_rows, num_rows, 0, torch.zeros(1, dtype=torch.int32))
        program.run(RunInputs(ids=rows, positions=rows, slots=rows, logits_rows=rows, spans=[span]))
        names = ("residual", "int4 matmul", "attention")
        return {name: program.buffer(i).clone() for i, name in enumerate(names)}

    def reference(self, num_rows: int) -> dict[str, Tensor]:
        """Compute the first `num_rows` rows in fp64, by numpy without BLAS."""
        x = self.table[:num_rows].double().numpy()
        normed = x / np.sqrt(np.mean(x**2, axis=1, keepdims=True)) * self.norm_weight.numpy()
        qkv = np.einsum("nk,mk->nm", normed, self.qkv_values.numpy())
        q, k, v = qkv.reshape(num_rows, 3, _NUM_HEADS, _HEAD_DIM).transpose(1, 2, 0, 3)
        scores = np.einsum("hnd,hmd->hnm", q, k)
        weights = np.exp(np.where(np.tri(num_rows, dtype=bool), scores, -np.inf))
        weights /= weights.sum(axis=2, keepdims=True)
        attended = np.einsum("hnm,hmd->nhd", weights, v).reshape(num_rows, _WIDTH)
        residual = x + np.einsum("nk,mk->nm", attended, self.output.double().numpy())
        found = {"residual": residual, "int4 matmul": qkv, "attention": attended}
        return {name: torch.from_numpy(np.ascontiguousarray(y)) for name, y in found.items()}


def _linear(
    matrix: NativeMatrix,
    x: int,
    out: int,
    norm: Norm | None = None,
    epilogue: Epilogue = Epilogue.STORE,
) -> native.LinearOp:
    parts = (Matrix * 1)(matrix.struct)
    return native.LinearOp(
        header=OpHeader(row_set=RowSet.TOKENS),
        x=x,
        out=out,
        epilogue=epilogue,
        num_parts=1,
        rows=matrix.rows,
        parts=parts,
        norm=norm or Norm(),
    )


class _Noise:
    """Pseudorandom numbers by xorshift, for which no library's generator is loaded."""

    def __init__(self) -> None:
        self._used = 1

    def numbers(self, *shape: int) -> npt.NDArray[np.float64]:
        """Return numbers from 0 to 1 (exclusive)."""
        count = math.prod(shape)
        x = np.arange(self._used, self._used + count, dtype=np.uint32) * np.uint32(2654435761)
        self._used += count
        for shift in (13, -17, 5):
            x ^= x << np.uint32(shift) if shift > 0 else x >> np.uint32(-shift)
        return (x / 2.0**32).reshape(shape)


def _random_int4(rows: int, cols: int, noise: _Noise) -> tuple[TiledMatrix, Tensor]:
    """Return a matrix in tiles and its values fp64, decoded as matrix.h documents the layout."""
    layout = TileLayout("int4", cols, group_cols=BLOCK_COLS, has_minimum=False)
    num_tiles, blocks = rows // TILE_ROWS, cols // BLOCK_COLS
    scales = (noise.numbers(num_tiles, blocks, TILE_ROWS) / 16).astype(np.float16)
    packed = (noise.numbers(num_tiles, blocks, 4, TILE_ROWS, 4) * 256).astype(np.uint8)
    tiles = np.zeros((num_tiles, layout.tile_bytes), np.uint8)
    table = scales.reshape(num_tiles, -1).view(np.uint8)
    tiles[:, : table.shape[1]] = table
    tiles[:, layout.table_bytes :] = packed.reshape(num_tiles, -1)
    halves = np.stack((packed & 15, packed >> 4))  # [half, tile, block, j, row, c]
    values = halves.transpose(1, 4, 2, 0, 3, 5).reshape(num_tiles, TILE_ROWS, blocks, BLOCK_COLS)
    weights = (values.astype(np.float64) - INT4_CENTER) * scales.swapaxes(1, 2)[..., None]
    aligned = torch.empty(tiles.size, dtype=torch.uint8).view(tiles.shape)  # to 64 bytes
    aligned.numpy()[:] = tiles
    return TiledMatrix(layout, rows, aligned, None), torch.from_numpy(weights.reshape(rows, cols))
