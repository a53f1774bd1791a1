"""Programs for the native kernels: operations, and the memory that they need."""

import ctypes
from collections.abc import Sequence
from ctypes import Structure, byref, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.engine.cpu import native
from swiftchat.engine.cpu.low_rank import EmbeddingRows
from swiftchat.engine.cpu.native import RowSet

ALIGNMENT_BYTES = 64


class Pool:
    """The threads that compute programs; one of them is the caller."""

    def __init__(self, library: ctypes.CDLL, num_threads: int) -> None:
        self.library = library
        self.num_threads = num_threads
        self._handle = library.pool_create(num_threads)
        if not self._handle:
            raise MemoryError("The threads of the CPU kernels could not be started")

    @property
    def handle(self) -> int:
        if not self._handle:
            raise RuntimeError("The thread pool is closed")
        return int(self._handle)

    def close(self) -> None:
        """End the threads."""
        if self._handle:
            self.library.pool_destroy(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True)
class SpanRows:
    """The rows of one sequence, see `Span` in program.h; its tensors are int32."""

    first_row: int
    num_rows: int
    context_len: int
    prefix_len: int
    block_table: Tensor
    state_slot: int = -1
    after_slots: Tensor | None = None

    @property
    def struct(self) -> native.Span:
        numbers = (self.first_row, self.num_rows, self.context_len, self.prefix_len)
        after = None if self.after_slots is None else self.after_slots.data_ptr()
        return native.Span(*numbers, self.state_slot, self.block_table.data_ptr(), after)


@dataclass(frozen=True)
class RunInputs:
    """The tokens of one batch: contiguous int32 tensors, and their sequences.

    `sets` and `embeddings` are those of `Run` in program.h.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    logits_rows: Tensor
    spans: Sequence[SpanRows] = ()
    second_positions: Tensor | None = None
    sets: Tensor | None = None
    embeddings: EmbeddingRows | None = None


class Program:
    """Operations and the memory that they need; runs them for one batch after another.

    `references` keeps objects alive whose memory the operations read (weights, tables, caches). The
    buffer `output` is a new tensor in every run, which returns it.
    """

    def __init__(
        self,
        pool: Pool,
        ops: Sequence[Structure],
        buffers: Sequence[tuple[RowSet, int]],
        references: Sequence[object] = (),
        output: int | None = None,
    ) -> None:
        self._pool = pool
        self._references, self._output = references, output
        self._ops = (native.Op * len(ops))(*map(native.op_union, ops))
        self._buffers = (native.Buffer * len(buffers))(*buffers)
        self._program = native.Program(len(ops), len(buffers), self._ops, self._buffers)
        self._pointers = (c_void_p * len(buffers))()
        self._offsets = [0] * len(buffers)
        self._run = native.Run(buffers=self._pointers, widths=self._buffers)
        self._num_tokens = self._num_logits = 0
        self._reserved = (0, 0)
        self._memory = torch.empty(0, dtype=torch.uint8)

    @property
    def memory_bytes(self) -> int:
        """The size of the buffers and the workspace."""
        return self._memory.nbytes

    def reserve(self, num_tokens: int, num_logits: int) -> None:
        """Allocate memory for batches of at most this size, if there is not enough yet."""
        if num_tokens <= self._reserved[0] and num_logits <= self._reserved[1]:
            return
        num_tokens, num_logits = map(max, self._reserved, (num_tokens, num_logits))
        nbytes = ALIGNMENT_BYTES
        for i, buffer in enumerate(self._buffers):
            self._offsets[i] = nbytes
            rows = num_logits if buffer.row_set == RowSet.LOGITS else num_tokens
            nbytes += 0 if i == self._output else _round_up(4 * rows * buffer.width)
        workspace_offset = nbytes
        nbytes += _round_up(
            self._pool.library.program_workspace_bytes(byref(self._program), num_tokens, num_logits)
        )
        self._memory = torch.empty(nbytes, dtype=torch.uint8)
        base = self._memory.data_ptr()
        shift = _round_up(base) - base - ALIGNMENT_BYTES
        self._offsets = [offset + shift for offset in self._offsets]
        for i, offset in enumerate(self._offsets):
            self._pointers[i] = base + offset
        self._run.workspace = base + shift + workspace_offset
        self._reserved = (num_tokens, num_logits)

    def grow(self) -> None:
        """Allocate memory anew for the same batches, after operations have changed."""
        num_tokens, num_logits = self._reserved
        self._reserved = (0, 0)
        self.reserve(num_tokens, num_logits)

    def buffer(self, index: int) -> Tensor:
        """Return a view of a buffer's rows in the current or last batch, fp32 [rows, width]."""
        buffer = self._buffers[index]
        rows = self._num_logits if buffer.row_set == RowSet.LOGITS else self._num_tokens
        start, nbytes = self._offsets[index], 4 * rows * buffer.width
        view = self._memory[start : start + nbytes].view(torch.float32)
        return view.view(rows, buffer.width)

    def begin(self, num_tokens: int, num_logits: int) -> None:
        """Prepare a batch of this size, so that `buffer` has its shape."""
        self.reserve(num_tokens, num_logits)
        self._num_tokens, self._num_logits = num_tokens, num_logits

    def run(self, inputs: RunInputs, num_threads: int = 0) -> Tensor | None:
        """Compute all operations; with `num_threads` by at most so many of the pool's threads.

        Returns the output fp32 [rows, width], if the program has one. Raises MemoryError.
        """
        self.begin(len(inputs.ids), len(inputs.logits_rows))
        output = self._new_output()
        spans = (native.Span * len(inputs.spans))(*(span.struct for span in inputs.spans))
        run, second = self._run, inputs.second_positions
        run.num_tokens, run.num_logits = self._num_tokens, self._num_logits
        run.num_spans, run.spans = len(spans), spans
        run.num_threads = num_threads or self._pool.num_threads
        run.ids = inputs.ids.data_ptr()
        run.positions = inputs.positions.data_ptr()
        run.second_positions = None if second is None else second.data_ptr()
        run.slots = inputs.slots.data_ptr()
        run.logits_rows = inputs.logits_rows.data_ptr()
        run.sets = None if inputs.sets is None else inputs.sets.data_ptr()
        run.embeddings = None if inputs.embeddings is None else inputs.embeddings.pointers
        library = self._pool.library
        if library.run_program(self._pool.handle, byref(self._program), byref(run)):
            raise MemoryError("The CPU kernels are out of memory")
        return output

    def _new_output(self) -> Tensor | None:
        if self._output is None:
            return None
        buffer = self._buffers[self._output]
        rows = self._num_logits if buffer.row_set == RowSet.LOGITS else self._num_tokens
        output = torch.empty(rows, buffer.width)  # torch aligns to 64 bytes
        self._pointers[self._output] = output.data_ptr()
        return output


def _round_up(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
