"""Memory of a model's weights and KV cache, known before any of them is allocated."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from swiftchat.cuda.packed_layout import packed_bytes, packed_group_size
from swiftchat.engine.api.tile_layout import BLOCK_TYPES, TileLayout, block_layout, scheme_bytes
from swiftchat.errors import UsageError
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import shape_by_place, tensor_name
from swiftchat.weights.parallel.division import TensorSlice
from swiftchat.weights.parallel.tensor_parallel import Shard
from swiftchat.weights.quantization.quantize import QUANTIZABLE
from swiftchat.weights.quantization.scheme import (
    Float8,
    Int4,
    Int8,
    Int8Groups,
    Mxfp4Experts,
    QuantizedExperts,
    QuantizedMatrix,
    Scheme,
    sliced_group_size,
)
from swiftchat.weights.quantization.stored_tensor import StoredTensor

# Of free memory, for the system, other programs and activations.
RESERVED_FRACTION = 0.15

_PACKED = QUANTIZABLE | {"embed", "lm_head"}
_DEQUANTIZED = frozenset({"kv_b"})  # used in parts, see `engine.reference.latent_attention`
_KERNEL_SCHEMES: Mapping[type[QuantizedMatrix | QuantizedExperts], str] = MappingProxyType(
    {Int4: "INT4", Int8: "INT8", Int8Groups: "INT8", Float8: "FP8"}
)


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
    sources = ((name, tensor.packed or tensor.packed_experts) for name, tensor in packed.items())
    return {name: source.scheme for name, source in sources if source is not None}


def plain_weight_bytes(shard: Shard, item_bytes: int) -> int:
    """Return the bytes of a rank's weights that all take `item_bytes` an element."""
    return sum(math.prod(shape) for shape in shard.shapes().values()) * item_bytes


def gpu_weight_bytes(shard: Shard, schemes: Mapping[str, Scheme], item_bytes: int) -> int:
    """Return the bytes of a rank's weights when our CUDA kernels run the model.

    `schemes` is by Hugging Face tensor name. MXFP4 experts stay packed for 16-bit activations
    unless ranks divide them. Matrices stay quantized if the kernels support their scheme and size;
    all other weights take `item_bytes` an element.
    """
    shape_of, total = shape_by_place(shard.config), 0
    for place, tensor_slice in shard.own_tensors():
        shape = tensor_slice.shape(shape_of(*place[:2]))
        scheme = schemes.get(tensor_name(shard.config, *place))
        kernel_scheme = None
        if scheme is not None and scheme.matrix_type is Mxfp4Experts:
            if shard.size == 1 and item_bytes == 2:
                total += math.prod(shape) * 17 // 32
                continue
        elif scheme is not None and place[0] in _PACKED:
            kernel_scheme = _kernel_scheme(scheme, tensor_slice, shape)
        if kernel_scheme is None:
            total += math.prod(shape) * item_bytes
        else:
            name, group_size = kernel_scheme
            total += packed_bytes(name, shape[0], shape[1], group_size)
    return total


def cpu_weight_bytes(shard: Shard, stored: Mapping[str, StoredTensor], item_bytes: int) -> int:
    """Return the bytes of a rank's weights when the native CPU kernels run the model.

    `stored` are the quantized tensors by Hugging Face name. Scales that fp16 cannot hold, and
    matrices that turn out to have no minimums, make the result differ.
    """
    shape_of, total = shape_by_place(shard.config), 0
    for place, tensor_slice in shard.own_tensors():
        shape = tensor_slice.shape(shape_of(*place[:2]))
        tensor = stored.get(tensor_name(shard.config, *place))
        packed = None
        if tensor is not None and tensor.packed_experts is not None:
            packed = _mxfp4_bytes(shape, item_bytes) if shard.size == 1 else None
        elif tensor is not None and place[0] not in _DEQUANTIZED:
            packed = _tiles_bytes(tensor, tensor_slice, shape, item_bytes)
        total += math.prod(shape) * item_bytes if packed is None else packed
    return total


def _mxfp4_bytes(shape: tuple[int, ...], item_bytes: int) -> int | None:
    """Return the bytes of MXFP4 experts [experts, columns, rows] for the CPU; None: dequantized."""
    experts, columns, rows = shape
    return experts * TileLayout(8, columns, 32, False).nbytes(rows) if item_bytes == 2 else None


def _tiles_bytes(
    tensor: StoredTensor, tensor_slice: TensorSlice, shape: tuple[int, ...], item_bytes: int
) -> int | None:
    """Return the bytes of a matrix in the layout of the CPU kernels; None: it is dequantized."""
    if tensor.read_blocks is None and tensor.packed is None:
        return None
    rows, cols = shape
    exact = item_bytes == 4
    if tensor.read_blocks is not None and tensor.format in BLOCK_TYPES:
        return block_layout(tensor.format, cols, exact=exact).nbytes(rows)
    if tensor.packed is None:
        return None
    scheme = _sliced(tensor.packed.scheme, tensor_slice, cols)
    return scheme_bytes(scheme, rows, cols, exact=exact)


def _kernel_scheme(
    scheme: Scheme, tensor_slice: TensorSlice, shape: tuple[int, ...]
) -> tuple[str, int] | None:
    """Return the kernels' name of a scheme and the group size; None for a dequantized matrix."""
    name, columns = _KERNEL_SCHEMES[scheme.matrix_type], shape[1]
    size = packed_group_size(name, columns, _sliced(scheme, tensor_slice, columns).group_size)
    return None if size is None else (name, size)


def _sliced(scheme: Scheme, tensor_slice: TensorSlice, columns: int) -> Scheme:
    """Return the scheme of a slice with so many columns."""
    size = scheme.group_size
    if size and tensor_slice.axis == 1:
        size = sliced_group_size(size, tensor_slice.spans)
    # The single group of a row of floats is a scale of the row.
    is_row_scale = scheme.matrix_type is Float8 and size == columns
    return scheme._replace(group_size=0 if is_row_scale else size)
