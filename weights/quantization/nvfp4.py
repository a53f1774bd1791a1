"""NVFP4: 4-bit floats (e2m1) with an e4m3 scale per 16 elements and one fp32 scale in all.

Layout of checkpoints of NVIDIA's Model Optimizer (`quant_method: modelopt`, or
`hf_quant_config.json`), for a matrix [rows, columns]: `weight` U8 [rows, columns/2], two elements
per byte, low half first, `weight_scale` F8_E4M3 [rows, groups] and `weight_scale_2` F32, one
element. weight[r, 16·g + i] = e2m1(element i)·(weight_scale[r, g]·weight_scale_2). A matrix of FP8
(`quant_algo` FP8 or MIXED_PRECISION) has `weight` F8_E4M3 and `weight_scale`. compressed-tensors
(`nvfp4-pack-quantized`) has `weight_packed`, `weight_scale` and `weight_global_scale`, by which
scales are divided. Formulas: `NVFP4QTensor.dequantize` of Model Optimizer.
"""

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.arrays import Bytes, Floats
from swiftchat.weights.quantization.fp8 import FLOAT8, LARGEST_E4M3, nearest_e4m3, scaled_tensor
from swiftchat.weights.quantization.mxfp4 import (
    LARGEST_ELEMENT,
    better_scales,
    dequantize_e2m1,
)
from swiftchat.weights.quantization.scheme import Nvfp4, PackedSource, Scheme
from swiftchat.weights.quantization.settings import Settings
from swiftchat.weights.quantization.stored_tensor import CheckedTensors, StoredTensor

GROUP_SIZE = 16
SCALE_DTYPE = "F8_E4M3"

# Of global scales: weights are finite, and rows' scales too in every layout.
_SMALLEST, _LARGEST = np.float32(2.0**-100), np.float32(2.0**100)
_INPUT_FACTOR = "pre_quant_scale"
_ALGORITHMS = ("nvfp4", "fp8", "mixed_precision")
# Activations and KV cache are not quantized here, which is more accurate than the original run; the
# tensors show which matrices are.
_IGNORED = {
    "quant_method",
    "producer",
    "kv_cache_quant_algo",
    "kv_cache_scheme",
    "exclude_modules",
    "ignore",
    "quantized_layers",
    "config_groups",
}


def tensors(settings: Settings, source: CheckedTensors) -> dict[str, StoredTensor]:
    """Return every matrix `….weight` with 4-bit or 8-bit floats."""
    fields = settings.nested("quantization") if "quantization" in settings.fields else settings
    settings.reject_unknown(_IGNORED | {"quantization", "quant_algo", "group_size"})
    fields.reject_unknown(_IGNORED | {"quant_algo", "group_size"})
    fields.text("quant_algo", _ALGORITHMS)
    fields.integer("group_size", (GROUP_SIZE,), str(GROUP_SIZE), GROUP_SIZE)
    for name in source.tensors:
        if name.endswith(_INPUT_FACTOR):
            raise source.error(name, "no factors of inputs", "them")
    found: dict[str, StoredTensor] = {}
    for name, info in source.tensors.items():
        module = name.removesuffix(".weight")
        if module == name or info.dtype not in ("U8", *FLOAT8):
            continue
        scale = f"{module}.weight_scale"
        if info.dtype == "U8":
            parts = name, scale, f"{module}.weight_scale_2"
            found[name] = stored_matrix(source, "modelopt", *parts)
        elif scale in source.tensors:
            found[name] = scaled_tensor(source, "modelopt", name, scale, None)
        else:
            raise BadModelFile(f"no tensor {scale}: expected the scale of {name}")
    return found


def stored_matrix(
    source: CheckedTensors,
    format: str,
    values: str,
    scales: str,
    global_scale: str,
    *,
    divides: bool = False,
) -> StoredTensor:
    """Return the matrix in `values` U8 [rows, columns / 2] and `scales` [rows, groups].

    They are multiplied by the element of `global_scale`, or if it `divides` divided by it.
    """
    rows, row_bytes = source.shape(values, ("U8",), 2)
    columns = 2 * row_bytes
    if columns % GROUP_SIZE:
        raise source.error(values, f"columns in groups of {GROUP_SIZE}", f"{columns}")
    shape = rows, columns // GROUP_SIZE
    source.require(scales, (SCALE_DTYPE,), shape)
    stored = source.tensors[global_scale].shape if global_scale in source.tensors else ()
    source.require(global_scale, ("F32",), stored if stored == (1,) else ())

    def matrix_scale() -> np.float32:
        scale = source.read_floats(global_scale).reshape(())[()]
        if not _SMALLEST <= scale <= _LARGEST:
            raise source.error(global_scale, "a scale from 2^-100 to 2^100", str(scale))
        return np.float32(scale)

    def dequantize(start: int, stop: int) -> Floats:
        wide = FLOAT8[SCALE_DTYPE][source.read(scales)[start:stop]]
        wide = wide / matrix_scale() if divides else wide * matrix_scale()
        return dequantize_e2m1(source.read(values)[start:stop], wide)

    def read() -> Nvfp4:
        scale = source.read(scales).reshape(shape)
        if (scale & np.uint8(127) == 127).any():
            raise source.error(scales, "finite scales", "NaN")
        row_scale = np.full(rows, 1 / matrix_scale() if divides else matrix_scale(), np.float32)
        return Nvfp4(source.read(values).reshape(rows, -1), scale, row_scale)

    packed = PackedSource(Scheme(Nvfp4, GROUP_SIZE), read)
    parts = {"packed": values, "scale": scales, "global_scale": global_scale}
    return StoredTensor(format, (rows, columns), parts, dequantize, packed)


def divisor_of(matrix: Floats) -> Floats:
    """Return what divides the scales of a matrix: float32 [1], so that the largest is e4m3's."""
    largest = np.abs(matrix).max(keepdims=True).reshape(1) / np.float32(LARGEST_E4M3)
    divisor: Floats = LARGEST_ELEMENT / np.maximum(largest, _SMALLEST)
    return np.clip(divisor, _SMALLEST, _LARGEST)


def group_scales(rows: Floats, divisor: Floats) -> Bytes:
    """Return the scale of each group of rows [n, columns]: e4m3 bytes [n, groups].

    The largest element of a group becomes 6, or 4 if the squared error is smaller so (Cook et al.,
    2025).
    """
    groups = rows.reshape(len(rows), -1, GROUP_SIZE)
    largest = np.abs(groups).max(2) * divisor
    both = [nearest_e4m3(largest / element) for element in (LARGEST_ELEMENT, np.float32(4))]
    return better_scales(groups, both, [_divided(scales, divisor) for scales in both])


def scales_of_columns(scales: Bytes, divisor: Floats) -> Floats:
    """Return the scale of each column, float32 [n, columns]; that of zeros is not 0."""
    return np.repeat(_divided(scales, divisor), GROUP_SIZE, 1)


def _divided(scales: Bytes, divisor: Floats) -> Floats:
    wide: Floats = FLOAT8[SCALE_DTYPE][scales] / divisor
    return np.where(wide > 0, wide, np.float32(1))
