"""Fused operations give the same results as the recorded ones, and are fewer."""

from ctypes import POINTER, Structure, cast, memmove, pointer, sizeof
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swiftchat.engine.cpu import native
from swiftchat.engine.cpu.fusion import fuse
from swiftchat.engine.cpu.matrices import FloatMatrix
from swiftchat.engine.cpu.recording import Recording
from swiftchat.engine.schedule.batch import Batch
from tests.support import tiny
from tests.support.native import recorded_ops
from tests.support.native.recorded_ops import Interpreter

NUM_IDS = 11
KINDS = ("norm", "linear", "linear", "act", "gate", "cap", "add", "add", "add")


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt-neox", "falcon-7b", "opt-350m", "bloom"])
def test_fused_operations_equal_those_of_torch(name: str, tmp_path: Path) -> None:
    """Both are fp32 and differ in the order of sums and in the formula of RMSNorm."""
    tiny.make(name, tmp_path)
    fused, expected = recorded_ops.logits_of_both(tmp_path, fused=True)
    assert (fused - expected).abs().max() <= 1e-5 * expected.abs().max()


def fused(name: str, folder: Path) -> Recording:
    tiny.make(name, folder)
    recording = recorded_ops.recorded(tiny.Bench(folder)).recording
    fuse(recording)
    return recording


def layer_operations(recording: Recording) -> list[str]:
    """Return the names of the operations of the second layer, with epilogues and norms."""
    names = []
    for op in recording.ops:
        name = type(op).__name__.removesuffix("Op")
        if isinstance(op, native.LinearOp):
            norm = "norm " if op.norm.kind else ""
            name = f"{norm}{native.Epilogue(op.epilogue).name.lower()}"
        names.append(name)
    first, second = [i for i, name in enumerate(names) if name == "Attention"][:2]
    return names[first:second]


LLAMA = ["Attention", "add", "norm act_and_mul", "add", "norm store", "Rotary"]

OLMO2 = ["Attention", "store", "Norm", "store", "Rotary"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama", LLAMA),
        ("gpt2", [*LLAMA[:2], "norm act", *LLAMA[3:]]),
        ("gemma2", ["Attention", "store", "Norm", LLAMA[2], "store", "Norm", *LLAMA[4:]]),
        (
            "olmo2",
            ["Attention", "store", "Norm", "act_and_mul", "store", "Norm", "store", "Rotary"],
        ),
        ("falcon-7b", ["Attention", "add", "act", "add", "Norm", "store", "Rotary"]),
        ("opt-350m", ["Attention", "add", "Norm", "act", "add", "Norm", "store", "Rotary"]),
    ],
)
def test_operations_of_a_layer(name: str, expected: list[str], tmp_path: Path) -> None:
    assert layer_operations(fused(name, tmp_path)) == expected


def test_after_the_last_attention_only_the_rows_of_the_logits_are_computed(tmp_path: Path) -> None:
    recording = fused("llama", tmp_path)
    last = max(i for i, op in enumerate(recording.ops) if isinstance(op, native.AttentionOp))
    rest = recording.ops[last + 1 :]
    assert [type(op) for op in rest] == [native.GatherOp, native.GatherOp, *[native.LinearOp] * 4]
    assert {op.header.row_set for op in recording.ops[: last + 1]} == {native.RowSet.TOKENS}
    assert {op.header.row_set for op in rest} == {native.RowSet.LOGITS}


def test_llama_needs_three_buffers_for_all_tokens(tmp_path: Path) -> None:
    """The stream, the output of the attention, and 80 elements of q k v, later of the MLP."""
    recording = fused("llama", tmp_path)
    widths = [width for row_set, width in recording.buffers if row_set == native.RowSet.TOKENS]
    assert sorted(widths) == [48, 48, 80]


def test_gates_that_share_a_tile_with_up_are_not_fused(tmp_path: Path) -> None:
    """24 rows of gates are one tile and a half."""
    tiny.make("llama", tmp_path, intermediate_size=24)
    interpreter = recorded_ops.recorded(tiny.Bench(tmp_path))
    fuse(interpreter.recording)
    assert sum(isinstance(op, native.ActAndMulOp) for op in interpreter.recording.ops) == 3


class RandomProgram:
    """A program whose operations read and write any of the buffers written before."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw
        self._generator = torch.Generator().manual_seed(draw(st.integers(0, 2**30)))
        self.recording = Recording([], [], 0, [])
        width = draw(st.sampled_from([32, 64]))
        table = FloatMatrix(self._random(NUM_IDS, width)).struct
        self._append(native.EmbedOp(scale=1.0, table=table), width)
        for _ in range(draw(st.integers(1, 12))):
            kind = draw(
                st.sampled_from(
                    [*["norm", "linear", "linear", "act", "gate", "cap", "add", "add", "add"]]
                )
            )
            getattr(self, f"_{kind}")(self._any_buffer())
        x = self._any_buffer()
        self._append(native.GatherOp(x=x), self._width(x), native.RowSet.LOGITS)
        if draw(st.booleans()):
            self._norm(self._last)
        self._linear(self._last)
        self.recording.output = self._last

    def _norm(self, x: int) -> None:
        same = self._others(x)
        op = native.NormOp(
            x=x,
            norm=native.Norm(native.NormKind.RMS, 1e-6, self._random(self._width(x)).data_ptr()),
        )
        if same and self._draw(st.booleans()):
            op.accumulate = 1
            self._append_to(self._draw(st.sampled_from(same)), op)
        else:
            self._append(op, self._width(x))

    def _linear(self, x: int) -> None:
        rows, cols = self._draw(st.sampled_from([32, 64])), self._width(x)
        part = pointer(FloatMatrix(self._random(rows, cols).mul_(cols**-0.5)).struct)
        parts = cast(part, POINTER(native.Matrix))
        self.recording.references.append(part)
        bias = self._random(rows).data_ptr() if self._draw(st.booleans()) else None
        self._append(native.LinearOp(x=x, num_parts=1, rows=rows, parts=parts, bias=bias), rows)

    def _act(self, x: int) -> None:
        self._append(native.ActAndMulOp(x=x, activation=native.Activation.GELU), self._width(x))

    def _gate(self, x: int) -> None:
        op = native.ActAndMulOp(x=x, activation=native.Activation.SILU, gated=1)
        self._append(op, self._width(x) // 2)

    def _cap(self, x: int) -> None:
        self._append_to(x, native.SoftcapOp(x=x, cap=3.0))

    def _add(self, x: int) -> None:
        if same := self._others(x):
            alpha, beta = self._draw(st.sampled_from([(1, 1), (1, 1), (0, 1), (0.5, 2)]))
            op = native.AddScaledOp(x=x, alpha=alpha, beta=beta)
            self._append_to(self._draw(st.sampled_from(same)), op)

    @property
    def _last(self) -> int:
        return len(self.recording.buffers) - 1

    def _any_buffer(self) -> int:
        """Prefer the last ones, so that there is something to fuse."""
        return max(0, self._last - self._draw(st.sampled_from([0, 0, 0, 1, 1, 2, 3])))

    def _others(self, x: int) -> list[int]:
        return [b for b in range(len(self.recording.buffers)) if self._shape(b, x) and b != x]

    def _shape(self, b: int, x: int) -> bool:
        return self.recording.buffers[b] == self.recording.buffers[x]

    def _width(self, buffer: int) -> int:
        return self.recording.buffers[buffer][1]

    def _append(self, op: Any, width: int, row_set: native.RowSet | None = None) -> None:
        buffers = self.recording.buffers
        buffers.append((row_set or (buffers[-1][0] if buffers else native.RowSet.TOKENS), width))
        self._append_to(len(buffers) - 1, op)

    def _append_to(self, out: int, op: Any) -> None:
        op.header.row_set = self.recording.buffers[out][0]
        if not isinstance(op, native.SoftcapOp):
            op.out = out
        self.recording.ops.append(op)

    def _random(self, *shape: int) -> Tensor:
        values = torch.randn(shape, generator=self._generator)
        self.recording.references.append(values)
        return values


def copied(op: Structure) -> Structure:
    copy = type(op)()
    memmove(pointer(copy), pointer(op), sizeof(op))
    return copy


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_random_programs_have_the_same_result_when_fused(data: st.DataObject) -> None:
    """The tolerance is for sums in another order, which later operations make larger."""
    recording = RandomProgram(data.draw).recording
    ids = [data.draw(st.integers(0, NUM_IDS - 1)) for _ in range(5)]
    batch = Batch(ids, list(range(5)), [], [4, 1], [], [])
    ops = [copied(op) for op in recording.ops]
    original = Recording(ops, list(recording.buffers), recording.output, recording.references)
    expected = Interpreter(original, 1).run(batch)
    fuse(recording)
    found = Interpreter(recording, 1).run(batch)
    assert len(recording.buffers) <= len(original.buffers) + 4
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
