"""A quick check of the kernels against torch, before an engine computes with them.

It finds a library that does not fit to this processor or was damaged: one small layer of each kind,
as one decode row and as a prefill, takes a few milliseconds.
"""

from ctypes import POINTER, cast
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.engine.api.tile_layout import TileLayout
from swiftchat.engine.cpu import structures as native
from swiftchat.engine.cpu.matrices import FloatMatrix, NativeMatrix, TiledMatrix
from swiftchat.engine.cpu.program import Pool, Program, RunInputs, SpanRows
from swiftchat.engine.cpu.structures import (
    BLOCK_COLS,
    TILE_ROWS,
    AnyOp,
    Epilogue,
    KVFormat,
    LayerCache,
    Matrix,
    Norm,
    NormKind,
    OpHeader,
    RowSet,
)

_HEAD_DIM, _NUM_HEADS = 32, 2
_WIDTH = _HEAD_DIM * _NUM_HEADS
_MAX_ROWS = 20
# Of the largest result. Processors with bf16 products round activations to 8 bits, an error of at
# most 2e-3 of each; a fault of a kernel gives results that have nothing to do with the expected.
_TOLERANCE = 1e-2
_INT4_CENTER = 8


def self_test(pool: Pool) -> str | None:
    """Compute a small layer with the kernels and with torch; return what differs, None if nothing.

    Raises MemoryError.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on busy cores several take 100 ms, for a reference that is tiny
    try:
        return _find_fault(pool)
    finally:
        torch.set_num_threads(num_threads)


def _find_fault(pool: Pool) -> str | None:
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
        generator = torch.Generator().manual_seed(0)

        def random(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator) - 0.5

        qkv, values = _random_int4(3 * _WIDTH, _WIDTH, generator)
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
        ops: list[AnyOp] = [
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
        """Compute the first `num_rows` rows with torch, in fp64."""
        x = self.table[:num_rows].double()
        normed = x / x.square().mean(1, keepdim=True).sqrt() * self.norm_weight.double()
        qkv = normed @ self.qkv_values.T
        q, k, v = qkv.view(num_rows, 3, _NUM_HEADS, _HEAD_DIM).permute(1, 2, 0, 3)
        future = torch.ones(num_rows, num_rows, dtype=torch.bool).triu(1)
        weights = (q @ k.transpose(1, 2)).masked_fill(future, -torch.inf).softmax(2)
        attended = (weights @ v).transpose(0, 1).reshape(num_rows, _WIDTH)
        residual = x + attended @ self.output.double().T
        return {"residual": residual, "int4 matmul": qkv, "attention": attended}


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
        parts=cast(parts, POINTER(Matrix)),
        norm=norm or Norm(),
    )


def _random_int4(rows: int, cols: int, generator: torch.Generator) -> tuple[TiledMatrix, Tensor]:
    """Return a matrix in tiles and its values fp64, decoded as matrix.h documents the layout."""
    layout = TileLayout(4, cols, group_cols=BLOCK_COLS, has_minimum=False)
    num_tiles, blocks = rows // TILE_ROWS, cols // BLOCK_COLS
    scales = torch.rand(num_tiles, blocks, TILE_ROWS, generator=generator).half() / 16
    packed = torch.randint(
        256, (num_tiles, blocks, 4, TILE_ROWS, 4), generator=generator, dtype=torch.uint8
    )
    tiles = torch.zeros(num_tiles, layout.tile_bytes, dtype=torch.uint8)
    table = scales.reshape(num_tiles, -1).view(torch.uint8)
    tiles[:, : table.shape[1]] = table
    tiles[:, layout.table_bytes :] = packed.reshape(num_tiles, -1)
    halves = torch.stack((packed & 15, packed >> 4))  # [half, tile, block, j, row, c]
    values = halves.permute(1, 4, 2, 0, 3, 5).reshape(num_tiles, TILE_ROWS, blocks, BLOCK_COLS)
    weights = (values.double() - _INT4_CENTER) * scales.double().transpose(1, 2).unsqueeze(3)
    return TiledMatrix(layout, rows, tiles, None), weights.reshape(rows, cols)
