"""Memory of a model's weights and KV cache, known before any of them is allocated."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from swiftchat.cuda.packed_layout import packed_bytes, packed_group_size
from swiftchat.engine.api.tile_layout import BLOCK_TYPES, block_layout, scheme_bytes
from swiftchat.errors import UsageError
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import shape_by_place, tensor_name
from swiftchat.weights.parallel.division import TensorSlice
from swiftchat.weights.parallel.tensor_parallel import Shard, TensorKey
from swiftchat.weights.quantization.quantize import QUANTIZABLE
from swiftchat.weights.quantization.scheme import (
    Float8,
    Int4,
    Int8,
    Int8Groups,
    Mxfp4,
    Nvfp4,
    QuantizedMatrix,
    Scheme,
    Spans,
    sliced_group_size,
)
from swiftchat.weights.quantization.stored_tensor import StoredTensor

# Of free memory, for the system, other programs and activations.
RESERVED_FRACTION = 0.15

_PACKED = QUANTIZABLE | {"embed", "lm_head"}
_DEQUANTIZED = frozenset({"kv_b"})  # used in parts, see `engine.reference.latent_attention`
_KERNEL_SCHEMES: Mapping[type[QuantizedMatrix], str] = MappingProxyType(
    {
        Int4: "INT4",
        Int8: "INT8",
        Int8Groups: "INT8",
        Float8: "FP8",
        Mxfp4: "MXFP4",
        Nvfp4: "NVFP4",
    }
)


def rank_counts(
    choices: Iterable[int], num_stages: int, num_gpus: int, free_bytes: Callable[[int], int]
) -> Iterator[tuple[int, int]]:
    """Yield each number of ranks for which there are GPUs, and the free bytes of the fullest one.

    `choices` are ascending numbers of ranks of each stage, which take the GPUs from the first on.
    `free_bytes` returns those of a GPU by its index; it is called once for each, when needed.
    """
    free: list[int] = []
    for num_ranks in choices:
        needed = num_ranks * num_stages
        if needed > num_gpus:
            return
        free += map(free_bytes, range(len(free), needed))
        yield num_ranks, min(free)


def kv_bytes_per_token(config: ModelConfig, item_bytes: int, kv_dtype: str = "auto") -> int:
    """Return the bytes of one token's keys and values, or latents, in all layers.

    `item_bytes` is the element size of an unquantized cache (`kv_dtype` auto). A quantized one
    has a fp32 scale per head, and 8 bits an element; with int5 a key has 6, a value 5. Raises
    `UsageError` if the model's cache cannot be quantized so.
    """
    if config.attention.latent is not None and kv_dtype != "auto":
        raise UsageError(
            f"--kv-dtype {kv_dtype} does not apply to this model: its KV cache holds latents, "
            "which are compressed already",
            "leave out --kv-dtype, or use --kv-dtype auto",
        )
    total = 0
    for attention in config.attentions:
        if attention.kv_source is not None:
            continue
        rows, width = attention.cached_rows
        total += _token_bytes(rows, width, item_bytes, kv_dtype)
    return total


def _token_bytes(rows: int, width: int, item_bytes: int, kv_dtype: str) -> int:
    if kv_dtype == "auto":
        return rows * width * item_bytes
    if kv_dtype != "int5":
        return rows * (width + 4)
    if width % 8:
        raise UsageError(
            f"--kv-dtype int5 does not apply to this model: {width} elements of a head are not a "
            "multiple of 8",
            "use --kv-dtype int8",
        )
    return rows * (width // 2 + 4) + rows // 2 * (width // 4 + width // 8)


def packed_schemes(packed: Mapping[str, StoredTensor]) -> dict[str, Scheme]:
    """Return the schemes of the tensors that can stay quantized, by name."""
    return {name: own.packed.scheme for name, own in packed.items() if own.packed is not None}


def plain_weight_bytes(shard: Shard, item_bytes: int) -> int:
    """Return the bytes of a rank's weights that all take `item_bytes` an element."""
    return sum(math.prod(shape) for shape in shard.shapes().values()) * item_bytes


def gpu_weight_bytes(shard: Shard, schemes: Mapping[str, Scheme], item_bytes: int) -> int:
    """Return the bytes of a rank's weights when our CUDA kernels run the model.

    `schemes` is by Hugging Face tensor name. Matrices stay quantized if the kernels support their
    scheme and size; all other weights take `item_bytes` an element.
    """
    return sum(nbytes for _, nbytes in gpu_tensor_bytes(shard, schemes, item_bytes))


def gpu_tensor_bytes(
    shard: Shard, schemes: Mapping[str, Scheme], item_bytes: int
) -> Iterator[tuple[TensorKey, int]]:
    """Yield every tensor of a rank with its bytes, as `gpu_weight_bytes` counts them."""
    shape_of = shape_by_place(shard.config)
    for place, tensor_slice in shard.own_tensors():
        shape = tensor_slice.shape(shape_of(*place[:2]))
        scheme = schemes.get(tensor_name(shard.config, *place))
        found = None
        if scheme is not None and (place[0] in _PACKED or len(shape) == 3):
            matrix = _Matrix.of(tensor_slice, shape)
            found = _kernel_scheme(scheme, matrix)
        if found is None:
            yield place, math.prod(shape) * item_bytes
        else:
            name, group_size = found
            nbytes = packed_bytes(name, matrix.rows, matrix.columns, group_size)
            yield place, matrix.count * nbytes


def cpu_weight_bytes(shard: Shard, stored: Mapping[str, StoredTensor], item_bytes: int) -> int:
    """Return the bytes of a rank's weights when the native CPU kernels run the model.

    `stored` are the quantized tensors by Hugging Face name. Scales that fp16 cannot hold, and
    matrices that turn out to have no minimums, make the result differ.
    """
    return sum(nbytes for _, nbytes in cpu_tensor_bytes(shard, stored, item_bytes))


def cpu_tensor_bytes(
    shard: Shard, stored: Mapping[str, StoredTensor], item_bytes: int
) -> Iterator[tuple[TensorKey, int]]:
    """Yield every tensor of a rank with its bytes, as `cpu_weight_bytes` counts them."""
    shape_of = shape_by_place(shard.config)
    for place, tensor_slice in shard.own_tensors():
        shape = tensor_slice.shape(shape_of(*place[:2]))
        tensor = stored.get(tensor_name(shard.config, *place))
        packed = None
        if tensor is not None and place[0] not in _DEQUANTIZED:
            packed = _tiles_bytes(tensor, tensor_slice, shape, item_bytes)
        yield place, math.prod(shape) * item_bytes if packed is None else packed


def _tiles_bytes(
    tensor: StoredTensor, tensor_slice: TensorSlice, shape: tuple[int, ...], item_bytes: int
) -> int | None:
    """Return the bytes of a matrix in the layout of the CPU kernels; None: it is dequantized."""
    if tensor.read_blocks is None and tensor.packed is None:
        return None
    matrix = _Matrix.of(tensor_slice, shape)
    exact = item_bytes == 4
    nbytes = None
    if tensor.read_blocks is not None and tensor.format in BLOCK_TYPES:
        layout = block_layout(tensor.format, matrix.columns, matrix.spans or ())
        nbytes = layout.nbytes(matrix.rows)
    elif tensor.packed is not None:
        scheme = matrix.sliced(tensor.packed.scheme)
        nbytes = scheme_bytes(scheme, matrix.rows, matrix.columns, exact=exact)
    return None if nbytes is None else matrix.count * nbytes


@dataclass(frozen=True)
class _Matrix:
    """The slice of a matrix, or `count` matrices of experts in one tensor, by a slice of columns.

    `spans` are those of the columns; None: all of them.
    """

    count: int
    rows: int
    columns: int
    spans: Spans | None

    @classmethod
    def of(cls, tensor_slice: TensorSlice, shape: tuple[int, ...]) -> Self:
        """Return the slice of shape [rows, columns], or of experts [experts, columns, rows]."""
        count, rows, columns = (1, *shape) if len(shape) == 2 else (shape[0], shape[2], shape[1])
        return cls(count, rows, columns, tensor_slice.spans if tensor_slice.axis == 1 else None)

    def sliced(self, scheme: Scheme) -> Scheme:
        """Return the scheme of the slice."""
        size = scheme.group_size
        if size and self.spans is not None:
            size = sliced_group_size(size, self.spans)
        # The single group of a row of floats is a scale of the row.
        is_row_scale = scheme.matrix_type is Float8 and size == self.columns
        return scheme._replace(group_size=0 if is_row_scale else size)


def _kernel_scheme(scheme: Scheme, matrix: _Matrix) -> tuple[str, int] | None:
    """Return the kernels' name of a scheme and the group size; None for a dequantized matrix."""
    name = _KERNEL_SCHEMES[scheme.matrix_type]
    size = packed_group_size(name, matrix.columns, matrix.sliced(scheme).group_size)
    return None if size is None else (name, size)
