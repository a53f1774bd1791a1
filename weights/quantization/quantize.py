"""Quantization of weight matrices for `convert --quantize`, in compressed-tensors' layout.

int8: one scale per row, values from −127 to 127. int4: a scale and a zero point per group of
columns. fp8: e4m3 values, one scale per row, fp8-block: one per 128 × 128 weights. mxfp4: e2m1
values, one power of two per 32 columns, nvfp4: an e4m3 scale per 16. w8a8-int8 and w8a8-fp8: the
same weights as int8 and fp8, one byte per value, with quantized inputs.
`compressed_tensors` describes the layout.
"""

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from swiftchat.errors import BadModelFile, UsageError
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import canonical_tensors, tensor_name
from swiftchat.weights.formats.arrays import Array, Floats
from swiftchat.weights.formats.safetensors import TensorSpec
from swiftchat.weights.quantization import mxfp4, nvfp4
from swiftchat.weights.quantization.fp8 import FLOAT8, LARGEST_E4M3, nearest_e4m3
from swiftchat.weights.quantization.gptq_rounding import GptqRounding
from swiftchat.weights.quantization.int4_groups import StoreScale, quantize_int4
from swiftchat.weights.quantization.rounding import WIRE_NAMES, convert_dtype
from swiftchat.weights.quantization.stored_tensor import as_float32, pack_nibbles

WEIGHT_ONLY = ("int8", "int4", "fp8", "fp8-block", "mxfp4", "nvfp4")
# Schemes with quantized inputs, and the scheme of their weights.
W8A8: Mapping[str, Literal["int8", "fp8"]] = MappingProxyType(
    {"w8a8-int8": "int8", "w8a8-fp8": "fp8"}
)
GROUP_SIZES = (32, 64, 128)
FP8_BLOCK = 128  # rows and columns

# Matrices of the layers by canonical name; embeddings, head, routers and norms are not quantized.
QUANTIZABLE = frozenset(
    (
        "q",
        "k",
        "v",
        "qkv",
        "q_a",
        "q_b",
        "kv_a",
        "o",
        "gate",
        "up",
        "gate_up",
        "down",
        "expert_gate",
        "expert_up",
        "expert_down",
        "shared_gate",
        "shared_up",
        "shared_down",
        "mixer_in",
        "mixer_qkvz",
        "mixer_qkv",
        "mixer_q",
        "mixer_k",
        "mixer_v",
        "mixer_x_in",
        "mixer_y_in",
        "mixer_z",
        "mixer_key",
        "mixer_value",
        "mixer_out",
        "channel_gate",
        "block_out",
    )
)
# The columns of a group of e2m1 elements.
_FOUR_BIT_FLOATS = {"mxfp4": mxfp4.GROUP_SIZE, "nvfp4": nvfp4.GROUP_SIZE}
# In compressed-tensors' settings.
_STRATEGIES = {"int4": "group", "mxfp4": "group", "nvfp4": "tensor_group", "fp8-block": "block"}
_SCALE_DTYPES = {"mxfp4": "torch.uint8", "nvfp4": "torch.float8_e4m3fn"}
_ROWS_AT_ONCE = 512  # bounds the memory of temporaries; a multiple of FP8_BLOCK
# Smallest positive scale per dtype: rows of zeros need a scale above zero too.
_MIN_SCALE = {"bfloat16": 2.0**-126, "float16": 2.0**-24, "float32": 2.0**-126}


# Returns quantized values, and the weights they represent, for weights and their scales.
ToNearest = Callable[[Floats, Floats], tuple[Array, Floats]]


@dataclass(frozen=True)
class QuantizationSpec:
    """How `convert` quantizes the matrices of the layers.

    `scheme` is one of `WEIGHT_ONLY` or `W8A8`, `group_size` that of int4. Tensors that match a
    pattern of `keep` are not quantized; matrices that match one of `int8`, among them possibly
    the head, are rounded to int8 instead. `second_moments(name)` returns the second moments of a
    matrix's inputs for `GptqRounding`; None: each value is rounded to nearest.
    `abs_maxima(name)` returns the absolute maximum of each input of a matrix, for W8A8
    (`apply_smoothquant`). Raises `UsageError` for an unknown scheme or group size, and for
    calibration statistics that the scheme does not use.
    """

    scheme: str
    group_size: int = 32
    keep: Sequence[str] = ()
    second_moments: Callable[[str], Floats] | None = None
    abs_maxima: Callable[[str], Floats] | None = None
    int8: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.scheme not in (*WEIGHT_ONLY, *W8A8):
            known = ", ".join((*WEIGHT_ONLY, *W8A8))
            raise UsageError(f"unknown quantization scheme {self.scheme!r}", f"one of {known}")
        if self.group_size not in GROUP_SIZES:
            sizes = ", ".join(map(str, GROUP_SIZES))
            raise UsageError(f"group size {self.group_size} is not supported", f"one of {sizes}")
        if self.int8 and self._format != "pack-quantized":
            raise UsageError(
                f"--int8 does not work with {self.scheme}", "use it with int4 or int8 only"
            )
        if self.second_moments is not None and self.scheme in W8A8:
            raise UsageError(
                f"{self.scheme} is not calibrated with second moments", "it uses SmoothQuant"
            )
        if self.abs_maxima is not None and self.scheme not in W8A8:
            raise UsageError(
                f"{self.scheme} does not use SmoothQuant", f"only {' and '.join(W8A8)} do"
            )

    @property
    def is_calibrated(self) -> bool:
        return self.second_moments is not None or self.abs_maxima is not None

    def select_matrices(
        self, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]
    ) -> list[str]:
        """Return the names in `shapes` of the matrices to quantize.

        Raises `BadModelFile` for a matrix whose columns the group size does not divide, and
        `UsageError` for a pattern without a match and when no matrix is left.
        """
        transposed = ARCHITECTURES[config.architecture].transposed
        names = [
            name
            for canonical, layer, part in canonical_tensors(config)
            if canonical in (QUANTIZABLE | {"lm_head"}) - transposed
            and (name := tensor_name(config, canonical, layer, part)) in shapes
            and (canonical != "lm_head" or self._spec_of(name) is not self)
        ]
        for pattern in self.int8:
            if not fnmatch.filter(names, pattern):
                raise UsageError(
                    f"--int8 {pattern!r} matches no matrix",
                    "a model with tied embeddings has no matrix for the head",
                )
        for pattern in self.keep:
            if not fnmatch.filter(shapes, pattern):
                raise UsageError(f"--keep {pattern!r} matches no tensor")
        kept = {name for name in names for pattern in self.keep if fnmatch.fnmatch(name, pattern)}
        selected = [name for name in names if name not in kept]
        if not selected:
            raise UsageError(f"no matrix of {config.architecture} is left to quantize")
        for name in selected:
            size = self._spec_of(name)._group_columns
            if size and shapes[name][1] % size:
                raise BadModelFile(
                    f"tensor {name}: expected columns in groups of {size}, found {shapes[name][1]}",
                    "choose another --group-size, or --keep the tensor",
                )
        return selected

    def quantization_config(
        self, ignored: Sequence[str], quantized: Sequence[str]
    ) -> dict[str, Any]:
        """Return `quantization_config` for `config.json`; `ignored` are modules left as is."""
        groups = {"group_0": self._group_config(["Linear"])}
        as_int8 = [name for name in quantized if self._spec_of(name) is not self]
        if as_int8:
            modules = [name.removesuffix(".weight") for name in as_int8]
            groups["group_1"] = self._spec_of(as_int8[0])._group_config(modules)
        return {
            "quant_method": "compressed-tensors",
            "format": self._format,
            "quantization_status": "compressed",
            "config_groups": groups,
            "ignore": list(ignored),
        }

    def _group_config(self, targets: Sequence[str]) -> dict[str, Any]:
        weights: dict[str, Any] = {
            "num_bits": self._bits,
            "type": "float" if self._is_float else "int",
            "symmetric": self.scheme != "int4",
            "strategy": _STRATEGIES.get(self.scheme, "channel"),
            "dynamic": False,
        }
        if self._group_columns:
            weights["group_size"] = self._group_columns
        if self.scheme == "fp8-block":
            weights["block_structure"] = [FP8_BLOCK, FP8_BLOCK]
        if self.scheme in _SCALE_DTYPES:
            weights["scale_dtype"] = _SCALE_DTYPES[self.scheme]
        inputs = None
        if self.scheme in W8A8:
            inputs = {**weights, "strategy": "token", "dynamic": True}
        return {
            "targets": list(targets),
            "weights": weights,
            "input_activations": inputs,
            "output_activations": None,
        }

    def _spec_of(self, name: str) -> "QuantizationSpec":
        """Return `self`, or plain int8 for a tensor that matches a pattern of `int8`."""
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.int8):
            return replace(self, scheme="int8", second_moments=None, int8=())
        return self

    @property
    def _bits(self) -> int:
        return 4 if self.scheme in ("int4", *_FOUR_BIT_FLOATS) else 8

    @property
    def _group_columns(self) -> int:
        """The columns of a row that share a scale; 0: it has one scale, or blocks have."""
        return {"int4": self.group_size, **_FOUR_BIT_FLOATS}.get(self.scheme, 0)

    @property
    def _is_float(self) -> bool:
        return W8A8.get(self.scheme, self.scheme) in ("fp8", "fp8-block", *_FOUR_BIT_FLOATS)

    @property
    def _format(self) -> str:
        if self.scheme in _FOUR_BIT_FLOATS:
            return f"{self.scheme}-pack-quantized"
        if self._is_float:
            return "float-quantized"
        return "int-quantized" if self.scheme in W8A8 else "pack-quantized"

    def tensor_specs(self, name: str, shape: tuple[int, ...], dtype: str) -> list[TensorSpec]:
        """Return the file's tensors for the matrix `name`; its scales have `dtype`."""
        if (spec := self._spec_of(name)) is not self:
            return spec.tensor_specs(name, shape, dtype)
        module, (rows, columns) = name.removesuffix(".weight"), shape
        wire = WIRE_NAMES[dtype]
        if self.scheme in _FOUR_BIT_FLOATS:
            is_nvfp4, scales = self.scheme == "nvfp4", (rows, columns // self._group_columns)
            specs: list[TensorSpec] = [
                (f"{module}.weight_packed", "U8", (rows, columns // 2)),
                (f"{module}.weight_scale", nvfp4.SCALE_DTYPE if is_nvfp4 else "U8", scales),
            ]
            return specs + [(f"{module}.weight_global_scale", "F32", (1,))] * is_nvfp4
        if self._format != "pack-quantized":
            scales = rows, 1
            if self.scheme == "fp8-block":
                scales = -(-rows // FP8_BLOCK), -(-columns // FP8_BLOCK)
            return [
                (name, "F8_E4M3" if self._is_float else "I8", shape),
                (f"{module}.weight_scale", wire, scales),
            ]
        groups = columns // self.group_size if self.scheme == "int4" else 1
        tensors: list[TensorSpec] = [
            (f"{module}.weight_packed", "I32", (rows, -(-columns * self._bits // 32))),
            (f"{module}.weight_scale", wire, (rows, groups)),
            (f"{module}.weight_shape", "I64", (2,)),
        ]
        if self.scheme == "int4":
            tensors.append((f"{module}.weight_zero_point", "I32", (-(-rows // 8), groups)))
        return tensors

    def quantize(self, name: str, matrix: Floats, dtype: str) -> Iterator[tuple[str, Array]]:
        """Yield the tensors of `tensor_specs`, in its order, for the weights `matrix`."""
        if (spec := self._spec_of(name)) is not self:
            yield from spec.quantize(name, matrix, dtype)
            return
        values = np.empty(matrix.shape, np.uint8)
        scales, zero_points = [], []
        divisor = nvfp4.divisor_of(matrix) if self.scheme == "nvfp4" else None
        gptq = None if self.second_moments is None else GptqRounding(self.second_moments(name))
        # GPTQ rounds column by column, which is fastest with all rows at once.
        step = _ROWS_AT_ONCE if gptq is None else len(matrix)
        for start in range(0, len(matrix), step):
            rows = matrix[start : start + step]
            found, scale, zero_point = self._quantize_rows(name, rows, dtype, gptq, divisor)
            values[start : start + step] = found
            scales.append(scale)
            zero_points.append(zero_point)
        parts: list[Array] = [values]
        if self._format == "int-quantized":
            parts = [(values ^ np.uint8(128)).view(np.int8)]
        elif self._format == "pack-quantized":
            parts = [_pack_words(values, self._bits)]
        elif self.scheme in _FOUR_BIT_FLOATS:
            parts = [pack_nibbles(values)]
        parts.append(np.concatenate(scales))
        parts.append(np.array(matrix.shape, np.int64) if divisor is None else divisor)
        parts.append(_pack_words(np.concatenate(zero_points).T, self._bits).T)
        specs = self.tensor_specs(name, matrix.shape, dtype)
        for (stored, _, _), array in zip(specs, parts[: len(specs)], strict=True):
            yield stored, array

    def _quantize_rows(
        self,
        name: str,
        rows: Floats,
        dtype: str,
        gptq: GptqRounding | None,
        divisor: Floats | None,
    ) -> tuple[Array, Array, Array]:
        """Return values, stored scales and zero points of some rows; `divisor` is NVFP4's."""

        def store_scale(scale: Floats) -> tuple[Array, Floats]:
            """Round to `dtype`; weights are divided by the rounded scale."""
            scale = np.maximum(scale, _MIN_SCALE[dtype])
            array = convert_dtype(f"{name}_scale", scale.shape, dtype, [scale.reshape(-1)])
            return array, as_float32(array, WIRE_NAMES[dtype])

        if self.scheme == "int4":
            return quantize_int4(rows, self.group_size, store_scale, gptq)
        to_nearest: ToNearest
        if self.scheme == "mxfp4":
            array, to_nearest = mxfp4.group_scales(rows), mxfp4.nearest_e2m1
            scale = mxfp4.scales_of_columns(array)
        elif divisor is not None:
            array, to_nearest = nvfp4.group_scales(rows, divisor), mxfp4.nearest_e2m1
            scale = nvfp4.scales_of_columns(array, divisor)
        else:
            to_nearest = _nearest_e4m3 if self._is_float else _nearest_int8
            array, scale = self._float_scales(rows, store_scale)
        no_zero_points = np.empty((0, 1), np.uint8)
        if gptq is None:
            return to_nearest(rows, scale)[0].astype(np.uint8), array, no_zero_points

        def round_column(column: int, weights: Floats) -> tuple[Floats, Floats]:
            values, dequantized = to_nearest(weights, scale[:, column])
            return values.astype(np.float32), dequantized

        values, dequantized = gptq.quantize(rows, round_column)
        gptq.refine(rows, values, dequantized, round_column)
        return values.T.astype(np.uint8), array, no_zero_points

    def _float_scales(self, rows: Floats, store_scale: StoreScale) -> tuple[Array, Floats]:
        """Return the scales of rows or blocks as stored, and that of each element."""
        limit = LARGEST_E4M3 if self._is_float else 127.0
        largest: Floats = np.abs(rows)
        if self.scheme == "fp8-block":
            for axis in (0, 1):
                starts = range(0, rows.shape[axis], FP8_BLOCK)
                largest = np.maximum.reduceat(largest, starts, axis)
        else:
            largest = largest.max(1, keepdims=True)
        array, scale = store_scale(largest / np.float32(limit))
        if self.scheme == "fp8-block":
            scale = np.repeat(scale, FP8_BLOCK, 0)[: len(rows)]
            scale = np.repeat(scale, FP8_BLOCK, 1)[:, : rows.shape[1]]
        return array, np.broadcast_to(scale, rows.shape)


def _nearest_int8(weights: Floats, scale: Floats) -> tuple[Floats, Floats]:
    """Return int8 values plus 128 (1 to 255) and the weights they represent."""
    found = np.clip(np.rint(weights / scale), -127, 127)
    return found + 128, found * scale


def _nearest_e4m3(weights: Floats, scale: Floats) -> tuple[Array, Floats]:
    """Return e4m3 bytes and the weights they represent."""
    values = nearest_e4m3(weights / scale)
    return values, FLOAT8["F8_E4M3"][values] * scale


def _pack_words(values: Array, bits: int) -> Array:
    """Pack values along the last axis into int32 words, low bits first, padded with zeros."""
    spare = -values.shape[-1] % (32 // bits)
    padded = np.pad(values, ((0, 0), (0, spare))) if spare else values
    if bits == 4:
        padded = pack_nibbles(padded)
    words: Array = np.ascontiguousarray(padded).view("<i4")
    return words
