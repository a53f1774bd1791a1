"""Matrices rounded to fewer bits for `convert`, as the package compressed-tensors keeps them.

int8: a factor for each row, numbers from −127 to 127. int4: a factor and a zero for each group of
columns. fp8: e4m3 numbers, a factor for each row. w8a8-int8 and w8a8-fp8: the same numbers as
int8's and fp8's, a byte each, and inputs are to be rounded too. `compressed_tensors` says how the
parts lie.
"""

import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile, UsageError
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import canonical_tensors, tensor_name
from swiftchat.weights.formats.safetensors import TensorSpec
from swiftchat.weights.quantization.fp8 import FLOAT8
from swiftchat.weights.quantization.gptq_rounding import GptqRounding, gained
from swiftchat.weights.quantization.quantized_tensor import as_float32
from swiftchat.weights.quantization.rounding import WIRE_NAMES, Floats, rounded

__all__ = ["FORMS", "GROUP_SIZES", "MATRICES", "W8A8", "Quantization"]

FORMS = ("int8", "int4", "fp8")
# Forms whose inputs are rounded too, and what their matrices are rounded to.
W8A8: Mapping[str, Literal["int8", "fp8"]] = MappingProxyType(
    {"w8a8-int8": "int8", "w8a8-fp8": "fp8"}
)
GROUP_SIZES = (32, 64, 128)

Array = npt.NDArray[Any]

# Matrices of the layers by canonical name; embeddings, head, routers and norms stay as they are.
MATRICES = frozenset(
    (
        "q",
        "k",
        "v",
        "qkv",
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
    )
)
_ROWS = 512  # at a time, so that what comes between is small
_LARGEST_E4M3 = 448.0
# Of a group's range, those that calibration tries.
_SHARES = (1.0, 1.15, 1.1, 1.05, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
# Above zero in each dtype of factors: rows of zeros have one too.
_SMALLEST = {"bfloat16": 2.0**-126, "float16": 2.0**-24, "float32": 2.0**-126}


@dataclass(frozen=True)
class Quantization:
    """What is done to the matrices of the layers: a form, and the width of int4's groups.

    Tensors that match a pattern of `keep` stay as they are; those of `int8`, among which may be the
    head, are rounded to the nearest int8 instead. `moments(name)` gives what the inputs
    of a matrix are like (`GptqRounding`); None: each number is rounded to the nearest.
    `largest(name)` gives how large each input of a matrix becomes, for W8A8 (`smoothed`). Raises
    `UsageError` for an unknown form or size of groups, and for what another form is calibrated by.
    """

    form: str
    group_size: int = 32
    keep: Sequence[str] = ()
    moments: Callable[[str], Floats] | None = None
    largest: Callable[[str], Floats] | None = None
    int8: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.form not in (*FORMS, *W8A8):
            known = ", ".join((*FORMS, *W8A8))
            raise UsageError(f"unknown form {self.form!r}", f"one of {known}")
        if self.group_size not in GROUP_SIZES:
            sizes = ", ".join(map(str, GROUP_SIZES))
            raise UsageError(f"groups of {self.group_size} are not known", f"one of {sizes}")
        if self.int8 and self._format != "pack-quantized":
            raise UsageError(f"--int8 does not go with {self.form}", "with int4 and int8 only")
        if self.moments is not None and self.form in W8A8:
            raise UsageError(f"{self.form} is not calibrated so", "it is smoothed")
        if self.largest is not None and self.form not in W8A8:
            raise UsageError(f"{self.form} is not smoothed", f"only {' and '.join(W8A8)} are")

    def chosen(self, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        """The names, among those of `shapes`, that are to be quantized.

        `BadModelFile` names a matrix that groups do not divide, `UsageError` a pattern that
        matches none, and that there is nothing to quantize.
        """
        apart = ARCHITECTURES[config.architecture].transposed
        names = [
            name
            for canonical, layer, part in canonical_tensors(config)
            if canonical in (MATRICES | {"lm_head"}) - apart
            and (name := tensor_name(config, canonical, layer, part)) in shapes
            and (canonical != "lm_head" or self._of(name) is not self)
        ]
        for pattern in self.int8:
            if not fnmatch.filter(names, pattern):
                raise UsageError(
                    f"--int8 {pattern!r} matches no matrix",
                    "the head has none of its own where embeddings serve as one",
                )
        for pattern in self.keep:
            if not fnmatch.filter(shapes, pattern):
                raise UsageError(f"--keep {pattern!r} matches no tensor")
        kept = {name for name in names for pattern in self.keep if fnmatch.fnmatch(name, pattern)}
        chosen = [name for name in names if name not in kept]
        if not chosen:
            raise UsageError(f"no matrix of a {config.architecture} is left to be quantized")
        for name in chosen:
            if self._of(name).form == "int4" and shapes[name][1] % self.group_size:
                raise BadModelFile(
                    f"tensor {name}: expected columns in groups of {self.group_size}, "
                    f"found {shapes[name][1]}",
                    "choose another --group-size, or --keep the tensor",
                )
        return chosen

    def settings(self, plain: Sequence[str], chosen: Sequence[str]) -> dict[str, Any]:
        """The `quantization_config` that tells others; `plain` names the matrices left alone."""
        groups = {"group_0": self._group(["Linear"])}
        eight = [name for name in chosen if self._of(name) is not self]
        if eight:
            modules = [name.removesuffix(".weight") for name in eight]
            groups["group_1"] = self._of(eight[0])._group(modules)
        return {
            "quant_method": "compressed-tensors",
            "format": self._format,
            "quantization_status": "compressed",
            "config_groups": groups,
            "ignore": list(plain),
        }

    def _group(self, targets: Sequence[str]) -> dict[str, Any]:
        weights: dict[str, Any] = {
            "num_bits": 4 if self.form == "int4" else 8,
            "type": "float" if self._is_float else "int",
            "symmetric": self.form != "int4",
            "strategy": "group" if self.form == "int4" else "channel",
            "dynamic": False,
        }
        if self.form == "int4":
            weights["group_size"] = self.group_size
        inputs = None
        if self.form in W8A8:
            inputs = {**weights, "strategy": "token", "dynamic": True}
        return {
            "targets": list(targets),
            "weights": weights,
            "input_activations": inputs,
            "output_activations": None,
        }

    def _of(self, name: str) -> "Quantization":
        """What is done to this tensor: `self`, or rounding to int8."""
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self.int8):
            return replace(self, form="int8", moments=None, int8=())
        return self

    @property
    def _is_float(self) -> bool:
        return W8A8.get(self.form, self.form) == "fp8"

    @property
    def _format(self) -> str:
        if self._is_float:
            return "float-quantized"
        return "int-quantized" if self.form in W8A8 else "pack-quantized"

    def announced(self, name: str, shape: tuple[int, ...], dtype: str) -> list[TensorSpec]:
        """The tensors of the file for the matrix `name`, whose factors have `dtype`."""
        if (of := self._of(name)) is not self:
            return of.announced(name, shape, dtype)
        module, (rows, columns) = name.removesuffix(".weight"), shape
        wire = WIRE_NAMES[dtype]
        if self._format != "pack-quantized":
            return [
                (name, "F8_E4M3" if self._is_float else "I8", shape),
                (f"{module}.weight_scale", wire, (rows, 1)),
            ]
        bits = 4 if self.form == "int4" else 8
        groups = columns // self.group_size if self.form == "int4" else 1
        tensors: list[TensorSpec] = [
            (f"{module}.weight_packed", "I32", (rows, -(-columns * bits // 32))),
            (f"{module}.weight_scale", wire, (rows, groups)),
            (f"{module}.weight_shape", "I64", (2,)),
        ]
        if self.form == "int4":
            tensors.append((f"{module}.weight_zero_point", "I32", (-(-rows // 8), groups)))
        return tensors

    def arrays(self, name: str, matrix: Floats, dtype: str) -> Iterator[tuple[str, Array]]:
        """The tensors that `announced` names, in its order, for the numbers of `matrix`."""
        if (of := self._of(name)) is not self:
            yield from of.arrays(name, matrix, dtype)
            return
        codes = np.empty(matrix.shape, np.uint8)
        scales, zeros = [], []
        compensation = None if self.moments is None else GptqRounding(self.moments(name))
        # What is compensated goes column by column: the more rows at a time the better.
        step = _ROWS if compensation is None else len(matrix)
        for start in range(0, len(matrix), step):
            rows = matrix[start : start + step]
            found, scale, zero = self._rounded(name, rows, dtype, compensation)
            codes[start : start + step] = found
            scales.append(scale)
            zeros.append(zero)
        bits = 4 if self.form == "int4" else 8
        parts: list[Array] = [codes]
        if self._format == "int-quantized":
            parts = [(codes ^ np.uint8(128)).view(np.int8)]
        elif self._format == "pack-quantized":
            parts = [_words(codes, bits)]
        parts.append(np.concatenate(scales))
        parts.append(np.array(matrix.shape, np.int64))
        parts.append(_words(np.concatenate(zeros).T, bits).T)
        names = self.announced(name, matrix.shape, dtype)
        for (stored, _, _), array in zip(names, parts[: len(names)], strict=True):
            yield stored, array

    def _rounded(
        self, name: str, rows: Floats, dtype: str, compensation: GptqRounding | None
    ) -> tuple[Array, Array, Array]:
        """Codes, factors and zeros of some rows; divided is by factors that are rounded already."""

        def stored(scale: Floats) -> tuple[Array, Floats]:
            scale = np.maximum(scale, _SMALLEST[dtype])
            array = rounded(f"{name}_scale", scale.shape, dtype, [scale.reshape(-1)])
            return array, as_float32(array, WIRE_NAMES[dtype])

        if self.form == "int4":
            return _int4_codes(rows, self.group_size, stored, compensation)
        most, nearest = (_LARGEST_E4M3, _nearest_e4m3) if self._is_float else (127.0, _nearest_int8)
        array, scale = stored(np.abs(rows).max(1, keepdims=True) / np.float32(most))
        nothing = np.empty((0, 1), np.uint8)
        if compensation is None:
            return nearest(rows, scale)[0].astype(np.uint8), array, nothing

        def round_column(_: int, numbers: Floats) -> tuple[Floats, Floats]:
            return nearest(numbers, scale[:, 0])

        codes, meant = compensation.codes(rows, round_column)
        compensation.refine(rows, codes, meant, round_column)
        return codes.T.astype(np.uint8), array, nothing


def _int4_codes(
    rows: Floats,
    group_size: int,
    stored: Callable[[Floats], tuple[Array, Floats]],
    compensation: GptqRounding | None,
) -> tuple[Array, Array, Array]:
    """Codes from 0 to 15 of [rows, columns], so that zero is among what they can mean."""
    groups = rows.reshape(len(rows), -1, group_size)
    if compensation is None:
        array, scale, zero = _ranges(groups, stored)
        codes = np.clip(np.rint(groups / scale[..., None]) + zero[..., None], 0, 15)
        return codes.reshape(rows.shape).astype(np.uint8), array, zero.astype(np.uint8)
    array, scale, zero = _best_ranges(groups, stored, compensation.sizes.reshape(-1, group_size))
    # Groups as rows, so that one of them lies together.
    scale, zero = np.ascontiguousarray(scale.T), np.ascontiguousarray(zero.T)

    def round_column(column: int, numbers: Floats) -> tuple[Floats, Floats]:
        s, z = scale[column // group_size], zero[column // group_size]
        codes = np.clip(np.rint(numbers / s) + z, 0, 15)
        return codes, (codes - z) * s

    def refit(group: int, codes: Floats, left: Floats, within: Floats) -> Floats:
        before, steps = scale[group], codes - zero[group]
        found = before + gained(steps, left, within)
        # A group whose codes hardly differ from its zero may ask for anything.
        _, scale[group] = stored(np.clip(found, before / 2, before * 2))
        meant: Floats = steps * scale[group]
        return meant

    codes, meant = compensation.codes(rows, round_column)
    compensation.refine(rows, codes, meant, round_column, group_size, refit)
    array, _ = stored(np.ascontiguousarray(scale.T))
    return codes.T.astype(np.uint8), array, zero.T.astype(np.uint8)


def _ranges(
    groups: Floats, stored: Callable[[Floats], tuple[Array, Floats]]
) -> tuple[Array, Floats, Floats]:
    """Factors, as they are stored and as numbers, and zeros of [rows, groups, size].

    They span all numbers of a group, and zero.
    """
    low, high = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
    array, scale = stored((high - low) * np.float32(1 / 15))
    return array, scale, np.clip(np.rint(-low / scale), 0, 15)


def _best_ranges(
    groups: Floats, stored: Callable[[Floats], tuple[Array, Floats]], sizes: Floats
) -> tuple[Array, Floats, Floats]:
    """The same, but of some wider and narrower ranges those of the least loss.

    Narrower: what the largest lose may weigh less than what the others win. Wider: numbers are
    still to make up for the errors of others. `sizes` [groups, size] are those of `GptqRounding`.
    """
    low, high = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
    best: list[Array] = []
    least = np.full(low.shape, np.inf, np.float32)
    for share in _SHARES:
        array, scale = stored((high - low) * np.float32(share / 15))
        middle = np.floor(7.5 - (low + high) / (2 * scale))
        for zero in (np.clip(middle, 0, 15), np.clip(middle + 1, 0, 15)):
            loss = _loss(groups, scale, zero, sizes)
            found, less = [array, scale, zero], loss < least
            best = [np.where(less, new, old) for new, old in zip(found, best or found, strict=True)]
            least = np.minimum(loss, least)
    return best[0], best[1], best[2]


def _loss(groups: Floats, scale: Floats, zero: Floats, sizes: Floats) -> Floats:
    """What rounding to the nearest moves the numbers by, squared, each times its size."""
    scale, zero = scale[..., None], zero[..., None]
    moved = (np.clip(np.rint(groups / scale) + zero, 0, 15) - zero) * scale - groups
    loss: Floats = np.einsum("rgc,rgc,gc->rg", moved, moved, sizes)
    return loss


def _nearest_int8(numbers: Floats, scale: Floats) -> tuple[Floats, Floats]:
    """Codes from 1 to 255, and what they mean."""
    found = np.clip(np.rint(numbers / scale), -127, 127)
    return found + 128, found * scale


def _nearest_e4m3(numbers: Floats, scale: Floats) -> tuple[Array, Floats]:
    """The same of e4m3: codes are the bytes."""
    codes = _e4m3_codes(numbers / scale)
    return codes, FLOAT8["F8_E4M3"][codes] * scale


def _e4m3_codes(numbers: Floats) -> Array:
    """The bytes of the nearest e4m3 numbers, ties to even; beyond the largest: the largest.

    Numbers from 2^e to 2^(e + 1) lie 2^(e − 3) apart, those below 2^−6 as far as those above:
    counted in such units, a number has 8 to 15 of them, or fewer where it is that small.
    """
    size = np.minimum(np.abs(numbers), np.float32(_LARGEST_E4M3))
    exponent = np.maximum(np.frexp(size)[1] - 1, -6)
    units = np.rint(np.ldexp(size, 3 - exponent)).astype(np.int32)
    # Sixteen units are the first number of the next power, as they should be.
    codes = np.where(size == 0, 0, ((exponent + 7) << 3) + units - 8)
    signed: Array = (codes | np.signbit(numbers) * 128).astype(np.uint8)
    return signed


def _words(codes: Array, bits: int) -> Array:
    """int32 words of codes along the last axis, low bits first, zeros up to a whole word."""
    spare = -codes.shape[-1] % (32 // bits)
    padded = np.pad(codes, ((0, 0), (0, spare))) if spare else codes
    if bits == 4:
        padded = padded[:, 0::2] | padded[:, 1::2] << np.uint8(4)
    words: Array = np.ascontiguousarray(padded).view("<i4")
    return words
