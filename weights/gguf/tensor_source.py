"""How tensors of a Hugging Face model are made from those of a GGUF file."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from swiftchat.weights.formats.arrays import Bytes, Floats, Places
from swiftchat.weights.formats.ggml_dequantize import BLOCK_TYPES, dequantize
from swiftchat.weights.formats.gguf_header import GgufTensor
from swiftchat.weights.quantization.gguf_blocks import GROUP_SIZE, KEPT_TYPES
from swiftchat.weights.quantization.scheme import Spans

_CHUNK_ELEMENTS = 1 << 20

Rows = range | Places


class TensorSource(ABC):
    """One tensor, made from `tensors` of the file.

    The bytes of these are `stored`, uint8 [all rows, bytes of a row] each.
    """

    tensors: tuple[GgufTensor, ...]

    @property
    @abstractmethod
    def length(self) -> int:
        """The size of the tensor's first axis."""

    @property
    @abstractmethod
    def chunk_length(self) -> int:
        """The size of a chunk along the first axis: what is dequantized at once."""

    @property
    def keeps_blocks(self) -> bool:
        """Whether a matrix consists of blocks of the file as they are, if they have one type."""
        return False

    @abstractmethod
    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        """Return a range of the first axis, dequantized."""

    def chunks(self, rows: Callable[[GgufTensor], Bytes]) -> Iterator[Floats]:
        """Yield all elements flat, chunk by chunk; `rows` returns the bytes of a tensor."""
        stored = [rows(tensor) for tensor in self.tensors]
        for start in range(0, self.length, self.chunk_length):
            stop = min(start + self.chunk_length, self.length)
            yield self.part(stored, start, stop).reshape(-1)

    def has_whole_blocks(self) -> bool:
        """Return whether the matrix can be made of blocks of one type without changing them."""
        types = {tensor.type_name for tensor in self.tensors}
        return self.keeps_blocks and len(types) == 1 and types <= KEPT_TYPES


@dataclass(frozen=True)
class TensorRows(TensorSource):
    """The rows of one tensor that make up a Hugging Face tensor, in their order.

    Rows of a vector are its elements; those of a three-dimensional tensor are numbered over the
    first two dimensions. `offset` is subtracted from every element. With `transposed` the tensor
    is transposed, and `rows` are all rows in their order.
    """

    tensors: tuple[GgufTensor]
    rows: Rows
    offset: float = 0.0
    transposed: bool = False

    @property
    def tensor(self) -> GgufTensor:
        return self.tensors[0]

    @property
    def length(self) -> int:
        return self.tensor.shape[-1] if self.transposed else len(self.rows)

    @property
    def chunk_length(self) -> int:
        if self.transposed:
            block = BLOCK_TYPES[self.tensor.type_name].block_elements
            return max(1, _CHUNK_ELEMENTS // len(self.rows) // block) * block
        is_vector = len(self.tensor.shape) == 1
        return self.length if is_vector else _rows_of_a_chunk(self.tensor)

    @property
    def keeps_blocks(self) -> bool:
        return not self.transposed

    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        (data,), type_name = stored, self.tensor.type_name
        if self.transposed:
            return _columns(data, type_name, start, stop)
        rows = self.rows[start:stop]
        # Slicing a mapped file makes a view, indexing makes a copy.
        index = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
        if len(self.tensor.shape) == 1:
            elements = dequantize(data.reshape(1, -1), type_name).reshape(-1)[index]
        else:
            elements = dequantize(data[index], type_name)
        return elements - np.float32(self.offset) if self.offset else elements


@dataclass(frozen=True)
class MetadataNumber(TensorSource):
    """A tensor of one element, which the file has in its metadata."""

    value: float
    tensors: tuple[GgufTensor, ...] = ()

    @property
    def length(self) -> int:
        return 1

    @property
    def chunk_length(self) -> int:
        return 1

    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        return np.full(1, self.value, np.float32)[start:stop]


@dataclass(frozen=True)
class ReshapedTensor(TensorSource):
    """A small tensor, usually of a token mixer, with other dimensions in the file.

    It becomes `shape`. With `is_decay` the file has −exp(x) or exp(x) of its elements x. `order`
    are the places in the file of what the first axis has; None: they keep their order.
    """

    tensors: tuple[GgufTensor]
    shape: tuple[int, ...]
    is_decay: bool
    order: Places | None = None

    @property
    def length(self) -> int:
        return self.shape[0]

    @property
    def chunk_length(self) -> int:
        return self.length

    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        whole = dequantize(stored[0], self.tensors[0].type_name).reshape(self.shape)
        part = whole[start:stop] if self.order is None else whole[self.order[start:stop]]
        return np.log(np.abs(part)) if self.is_decay else part


@dataclass(frozen=True)
class OrderedColumns(TensorSource):
    """A matrix; it has the file's columns in `spans`, (start, stop) each, beside one another."""

    tensors: tuple[GgufTensor]
    spans: Spans

    @property
    def length(self) -> int:
        return self.tensors[0].shape[0]

    @property
    def chunk_length(self) -> int:
        return _rows_of_a_chunk(self.tensors[0])

    @property
    def keeps_blocks(self) -> bool:
        return not any(border % GROUP_SIZE for span in self.spans for border in span)

    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        rows = dequantize(stored[0][start:stop], self.tensors[0].type_name)
        rows = rows.reshape(stop - start, -1)
        return np.concatenate([rows[:, first:end] for first, end in self.spans], axis=1)


@dataclass(frozen=True)
class MergedRows(TensorSource):
    """Two matrices one below the other, such as gate and up.

    `order` are the places of the merged matrix's rows there; None: they keep their order.
    """

    tensors: tuple[GgufTensor, GgufTensor]
    order: Places | None = None

    @property
    def length(self) -> int:
        both = sum(tensor.shape[0] for tensor in self.tensors)
        return both if self.order is None else len(self.order)

    @property
    def chunk_length(self) -> int:
        return _rows_of_a_chunk(self.tensors[0])

    @property
    def keeps_blocks(self) -> bool:
        return True

    def merged_rows(self, stored: Sequence[Bytes]) -> Bytes:
        """Return the rows as the file has them, uint8 [rows, row bytes]."""
        rows = np.concatenate(stored)
        return rows if self.order is None else rows[self.order]

    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        places = np.arange(start, stop) if self.order is None else self.order[start:stop]
        merged = np.empty((stop - start, self.tensors[0].shape[1]), np.float32)
        first = 0
        for tensor, data in zip(self.tensors, stored, strict=True):
            is_here = (places >= first) & (places < first + len(data))
            if is_here.any():
                rows = dequantize(data[places[is_here] - first], tensor.type_name)
                merged[is_here] = rows.reshape(-1, merged.shape[1])
            first += len(data)
        return merged


@dataclass(frozen=True)
class KeyValueMatrix(TensorSource):
    """The matrix that makes keys and values of latents.

    The file has keys [heads, kv_rank, nope_dim], transposed, and values [heads, value_dim,
    kv_rank]. The merged matrix [heads * (nope_dim + value_dim), kv_rank] has the rows of a head's
    key, then those of its value.
    """

    tensors: tuple[GgufTensor, GgufTensor]

    @property
    def length(self) -> int:
        return self.tensors[0].shape[0] * self.chunk_length

    @property
    def chunk_length(self) -> int:
        """The rows of a head."""
        keys, values = self.tensors
        return keys.shape[2] + values.shape[1]

    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        height = self.chunk_length
        first = start // height
        heads = [self._head(stored, head) for head in range(first, -(-stop // height))]
        return np.concatenate(heads)[start - first * height : stop - first * height]

    def _head(self, stored: Sequence[Bytes], head: int) -> Floats:
        pairs = zip(self.tensors, stored, strict=True)
        keys, values = (_item(tensor, data, head) for tensor, data in pairs)
        return np.concatenate([keys.T, values])


@dataclass(frozen=True)
class FlatExperts(TensorSource):
    """A tensor [experts, rows, columns] as one matrix [experts * rows, columns] (DBRX).

    With `transposed` the matrix of each expert is transposed.
    """

    tensors: tuple[GgufTensor]
    transposed: bool

    @property
    def length(self) -> int:
        return self.tensors[0].shape[0] * self.chunk_length

    @property
    def chunk_length(self) -> int:
        """The rows of an expert."""
        _, rows, columns = self.tensors[0].shape
        return columns if self.transposed else rows

    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        height = self.chunk_length
        first = start // height
        experts = (_item(self.tensors[0], stored[0], e) for e in range(first, -(-stop // height)))
        rows = np.concatenate([expert.T if self.transposed else expert for expert in experts])
        return rows[start - first * height : stop - first * height]


@dataclass(frozen=True)
class StackedExperts(TensorSource):
    """All experts of a layer, from gate and up, or one tensor.

    Each of `tensors` is [experts, rows, columns], a bias [experts, rows]. In the merged tensor
    their rows alternate if `interleaved`, else one follows the other. With `transposed` an
    expert's merged matrix is [columns, rows].
    """

    tensors: tuple[GgufTensor, ...]
    interleaved: bool
    transposed: bool

    @property
    def length(self) -> int:
        return self.tensors[0].shape[0]

    @property
    def chunk_length(self) -> int:
        return 1

    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        return np.stack([self._expert(stored, e) for e in range(start, stop)])

    @property
    def keeps_blocks(self) -> bool:
        """The file has matrices [outputs, inputs], which the merged tensor has transposed."""
        return self.transposed and len(self.tensors[0].shape) == 3

    def merged_rows(self, stored: Sequence[Bytes]) -> Bytes:
        """Return the rows of all experts as the file has them, uint8 [all rows, row bytes]."""
        parts = [data.reshape(self.length, -1, data.shape[1]) for data in stored]
        merged = np.stack(parts, axis=2 if self.interleaved else 1)
        return merged.reshape(-1, parts[0].shape[2])

    def _expert(self, stored: Sequence[Bytes], e: int) -> Floats:
        pairs = zip(self.tensors, stored, strict=True)
        parts = [_item(tensor, data, e) for tensor, data in pairs]
        merged = np.stack(parts, axis=1 if self.interleaved else 0)
        merged = merged.reshape(-1, *parts[0].shape[1:])
        return merged.T if self.transposed else merged


def _rows_of_a_chunk(tensor: GgufTensor) -> int:
    return max(1, _CHUNK_ELEMENTS // tensor.shape[-1])


def _item(tensor: GgufTensor, data: Bytes, index: int) -> Floats:
    """Return the matrix or row `index` along the first axis of a tensor, dequantized."""
    num_rows = len(data) // tensor.shape[0]
    part = dequantize(data[index * num_rows : (index + 1) * num_rows], tensor.type_name)
    return part.reshape(tensor.shape[1:])


def _columns(data: Bytes, type_name: str, start: int, stop: int) -> Floats:
    """Return columns as rows; whole blocks are dequantized."""
    kind = BLOCK_TYPES[type_name]
    first, end = start // kind.block_elements, -(-stop // kind.block_elements)
    part = data[:, first * kind.block_bytes : end * kind.block_bytes]
    elements = dequantize(np.ascontiguousarray(part), type_name)
    inside = start - first * kind.block_elements
    return elements[:, inside : inside + stop - start].T
