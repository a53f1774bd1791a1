"""The experts of layers as calls without Python, for rows that another device has routed."""

from collections.abc import Mapping
from ctypes import addressof, byref, c_void_p, pointer
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.engine.cpu import native
from swiftchat.engine.cpu.native import RowSet
from swiftchat.engine.cpu.program import ALIGNMENT_BYTES, Pool
from swiftchat.engine.cpu.references import References

_ALIGNMENT_WORDS = ALIGNMENT_BYTES // 4


@dataclass(frozen=True)
class InputLayout:
    """How the inputs of routed experts lie in memory of 32-bit words, for any number of rows.

    First rows fp32 [n, hidden_size], then their experts int32 [n, experts_per_token], and the
    weights of these fp32 [n, experts_per_token]. Each begins at a multiple of 64 bytes.
    """

    hidden_size: int
    experts_per_token: int

    def begins(self, num_rows: int) -> tuple[int, int]:
        """Return the words before the experts, and before the weights."""
        experts = _round_up(num_rows * self.hidden_size)
        return experts, experts + _round_up(num_rows * self.experts_per_token)

    def num_words(self, num_rows: int) -> int:
        return self.begins(num_rows)[1] + _round_up(num_rows * self.experts_per_token)


def _round_up(num_words: int) -> int:
    return -(-num_words // _ALIGNMENT_WORDS) * _ALIGNMENT_WORDS


class RoutedExperts:
    """Computes the weighted sums of routed experts in memory at fixed addresses.

    `call` returns the address of a HostCall, which a thread makes for a GPU (`HostCaller`). For n
    rows it reads `inputs`, which has the `layout`, and writes the sums fp32 [n, hidden_size] to
    `sums`. Both are fp32 tensors that begin at multiples of 64 bytes. Calls must follow each other.

    `ops` are the operations of the layers (`routed_op`), which read memory of `references`. Raises
    MemoryError.
    """

    def __init__(
        self,
        pool: Pool,
        ops: Mapping[int, native.MoeOp],
        references: References,
        layout: InputLayout,
        inputs: Tensor,
        sums: Tensor,
    ) -> None:
        self._pool, self._references, self._inputs, self._sums = pool, references, inputs, sums
        self._layout, width = layout, layout.hidden_size
        self._widths = (native.Buffer * 2)(*[(RowSet.TOKENS, width)] * 2)
        self._programs = {layer: self._program(op) for layer, op in ops.items()}
        self._workspace = self._new_workspace()
        self._runs: dict[int, native.Run] = {}
        self._calls: dict[tuple[int, int], native.HostCall] = {}
        self._allocate()

    def call(self, layer: int, num_rows: int) -> int:
        """Return the address of the call of a layer, valid as long as this object exists."""
        key = layer, num_rows
        if key not in self._calls:
            program, run = self._programs[layer], self._run(num_rows)
            self._calls[key] = native.HostCall(self._pool.handle, pointer(program), pointer(run))
        return addressof(self._calls[key])

    def _program(self, op: native.MoeOp) -> native.Program:
        op.x, op.out = 0, 1
        ops = self._references.keep((native.Op * 1)(native.op_union(op)))
        return native.Program(1, len(self._widths), ops, self._widths)

    def _run(self, num_rows: int) -> native.Run:
        if num_rows not in self._runs:
            inputs, (chosen, weights) = self._inputs.data_ptr(), self._layout.begins(num_rows)
            buffers = (c_void_p * 2)(inputs, self._sums.data_ptr())
            self._runs[num_rows] = native.Run(
                num_tokens=num_rows,
                num_threads=self._pool.num_threads,
                chosen=inputs + 4 * chosen,
                chosen_weights=inputs + 4 * weights,
                buffers=buffers,
                widths=self._widths,
                workspace=self._workspace.data_ptr(),
            )
        return self._runs[num_rows]

    def _new_workspace(self) -> Tensor:
        size = self._pool.library.program_workspace_bytes
        max_rows = self._sums.numel() // self._layout.hidden_size
        nbytes = max(size(byref(p), max_rows, 0) for p in self._programs.values())
        whole = torch.empty(nbytes + ALIGNMENT_BYTES, dtype=torch.uint8)
        return whole[-whole.data_ptr() % ALIGNMENT_BYTES :]

    def _allocate(self) -> None:
        """Run each layer once, which allocates what it needs: later calls cannot report errors."""
        self._inputs.zero_()
        for layer in self._programs:
            address = self.call(layer, 1)
            self._pool.library.run_host_call(address)
            if native.HostCall.from_address(address).failed:
                raise MemoryError("The CPU kernels are out of memory")
