"""The tensors of a GGUF file as a checkpoint, read from the mapped file."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import expected_tensors
from swiftchat.weights.formats.arrays import Array, Bytes, Floats
from swiftchat.weights.formats.gguf import GgufFile, open_gguf
from swiftchat.weights.formats.gguf_header import GgufTensor
from swiftchat.weights.formats.tensor_info import TensorInfo
from swiftchat.weights.gguf.architectures import gguf_architecture
from swiftchat.weights.gguf.tensor_source import (
    MergedRows,
    OrderedColumns,
    StackedExperts,
    TensorRows,
    TensorSource,
)
from swiftchat.weights.gguf.tensors import block_matrices, tensor_sources
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.quantization.gguf_blocks import block_tensor, with_columns
from swiftchat.weights.quantization.stored_tensor import FLOATS, CheckedTensors, StoredTensor


class GgufCheckpoint(Checkpoint):
    """The tensor table of a GGUF file, or of all files of a split model.

    A float tensor that the file stores as Hugging Face does is in `tensors` under its name. All
    others are in `quantized`: matrices of blocks, and tensors that have other rows, another offset
    or the other orientation in the file; their parts are `NAME.TYPE`, uint8 [rows, row bytes].
    A merged tensor has such a part for each tensor that it is made of.
    """

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        sources = tensor_sources(file, gguf_architecture(file)[0], config)
        stacks = {
            name: source for name, source in sources.items() if not isinstance(source, TensorRows)
        }
        places = {
            name: _Place(file, source)
            for name, source in sources.items()
            if isinstance(source, TensorRows)
        }
        plain = {name for name, place in places.items() if place.is_plain}
        shapes = expected_tensors(config)
        infos = [
            place.info(name, shapes[name]) if name in plain else place.bytes_info(name)
            for name, place in places.items()
        ]
        for name, source in stacks.items():
            infos += _stack_infos(file, name, source)
        super().__init__(file.path, {info.name: info for info in infos})
        self._orders = {
            place.part_of(name): place.order
            for name, place in places.items()
            if place.order is not None
        }
        blocks, checked = block_matrices(config, sources), CheckedTensors(self.tensors, self.read)
        self.quantized = {
            name: block_tensor(checked, name, place.type_name)
            if name in blocks
            else self._converted(name, shapes[name], place)
            for name, place in places.items()
            if name not in plain
        }
        for name, source in stacks.items():
            self.quantized[name] = self._stacked(name, shapes[name], source)
            if name in blocks and isinstance(source, OrderedColumns):
                kind = source.tensors[0].type_name
                tensor = block_tensor(checked, f"{name}.0", kind)
                self.quantized[name] = with_columns(tensor, source.spans)
            elif name in blocks and isinstance(source, MergedRows | StackedExperts):
                self.quantized[name] = self._with_blocks(self.quantized[name], name, source)

    @classmethod
    def of_file(cls, path: Path, config: ModelConfig) -> "GgufCheckpoint":
        """Open the GGUF file `path`, with the other files if it is the first of several.

        Raises as `open_gguf` and `tensor_sources` do.
        """
        return cls(open_gguf(path), config)

    def read(self, name: str) -> Array:
        """Return a tensor with its rows in Hugging Face's order; a copy if that differs."""
        stored, order = super().read(name), self._orders.get(name)
        return stored if order is None else stored[order]

    def _converted(self, name: str, shape: tuple[int, ...], place: "_Place") -> StoredTensor:
        """Return a tensor that is dequantized, reordered, shifted or transposed when it is read."""
        part = place.part_of(name)

        def dequantize_rows(start: int, stop: int) -> Floats:
            return self._finite(name, place.dequantize(self.read(part), start, stop))

        return StoredTensor(place.type_name, shape, {"data": part}, dequantize_rows)

    def _stacked(self, name: str, shape: tuple[int, ...], source: TensorSource) -> StoredTensor:
        """Return a tensor that is made of several, whose parts are dequantized when read."""
        parts = {str(i): _part(name, i, each) for i, each in enumerate(source.tensors)}

        def dequantize_part(start: int, stop: int) -> Floats:
            stored = [self.read(part) for part in parts.values()]
            return self._finite(name, source.part(stored, start, stop))

        kind = source.tensors[0].type_name if source.tensors else "F32"
        return StoredTensor(kind, shape, parts, dequantize_part)

    def _with_blocks(
        self, tensor: StoredTensor, name: str, source: MergedRows | StackedExperts
    ) -> StoredTensor:
        """Add the blocks of a tensor that is made of several; they are copied when read."""
        stored, infos = f"{name}.{tensor.format}", [self.tensors[i] for i in tensor.parts.values()]
        num_rows, row_bytes = sum(info.shape[0] for info in infos), infos[0].shape[1]
        merged = replace(infos[0], name=stored, shape=(num_rows, row_bytes))

        def read(_: str) -> Bytes:
            return source.merged_rows([self.read(part) for part in tensor.parts.values()])

        found = block_tensor(CheckedTensors({stored: merged}, read), name, tensor.format)
        return replace(tensor, packed=found.packed, read_blocks=found.read_blocks)

    def _finite(self, name: str, found: Floats) -> Floats:
        if not np.isfinite(found).all():
            raise BadModelFile(f"{self.path}: tensor {name} has elements that are not finite")
        return found


class _Place:
    """Where and how a GGUF file stores the rows of a tensor.

    `order` are the positions of the tensor's rows among the stored rows; None: they are the same.
    """

    def __init__(self, file: GgufFile, source: TensorRows) -> None:
        tensor, rows = source.tensor, source.rows
        self.source, self.type_name = source, tensor.type_name
        if len(tensor.shape) == 1 and self.type_name not in FLOATS:
            raise BadModelFile(
                f"{file.path}: tensor {tensor.name}: expected one of {', '.join(FLOATS)}, "
                f"found {self.type_name}"
            )
        self._file = file.paths[tensor.file_index]
        self._row_bytes = tensor.nbytes // math.prod(tensor.shape[:-1] or tensor.shape)
        self._num_rows = len(rows)
        first = rows.start if isinstance(rows, range) else int(rows.min())
        self.order = None if isinstance(rows, range) else rows - first
        self._offset = tensor.offset + first * self._row_bytes

    @property
    def is_plain(self) -> bool:
        """Whether the file has exactly the tensor's elements in its order."""
        source = self.source
        is_same = self.order is None and not source.offset and not source.transposed
        return is_same and self.type_name in FLOATS

    def part_of(self, name: str) -> str:
        return f"{name}.{self.type_name}"

    def info(self, name: str, shape: tuple[int, ...]) -> TensorInfo:
        """Return the place of a plain tensor."""
        return TensorInfo(name, self._file, self.type_name, shape, self._offset, self._nbytes)

    def bytes_info(self, name: str) -> TensorInfo:
        """Return the place of any tensor as uint8 [rows, row bytes]."""
        shape = (self._num_rows, self._row_bytes)
        return TensorInfo(self.part_of(name), self._file, "U8", shape, self._offset, self._nbytes)

    def dequantize(self, stored: Bytes, start: int, stop: int) -> Floats:
        """Return a range of the tensor's first axis, given the ordered rows of `bytes_info`."""
        return replace(self.source, rows=range(self._num_rows)).part([stored], start, stop)

    @property
    def _nbytes(self) -> int:
        return self._num_rows * self._row_bytes


def _part(name: str, index: int, tensor: GgufTensor) -> str:
    return f"{name}.{index}.{tensor.type_name}"


def _stack_infos(file: GgufFile, name: str, source: TensorSource) -> list[TensorInfo]:
    """Return the places of the tensors of a stack as uint8 [all rows, row bytes]."""
    infos = []
    for i, tensor in enumerate(source.tensors):
        num_rows = math.prod(tensor.shape[:-1])
        shape, path = (num_rows, tensor.nbytes // num_rows), file.paths[tensor.file_index]
        part = _part(name, i, tensor)
        infos.append(TensorInfo(part, path, "U8", shape, tensor.offset, tensor.nbytes))
    return infos
