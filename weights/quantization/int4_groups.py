"""Rounding of weights to int4, with a scale and a zero point per group of columns."""

from collections.abc import Callable

import numpy as np

from swiftchat.weights.formats.arrays import Array, Floats
from swiftchat.weights.quantization.gptq_rounding import GptqRounding, scale_update

StoreScale = Callable[[Floats], tuple[Array, Floats]]
# Fractions of a group's range tried with calibration.
_RANGE_FRACTIONS = (1.0, 1.15, 1.1, 1.05, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)


def quantize_int4(
    rows: Floats, group_size: int, store_scale: StoreScale, gptq: GptqRounding | None
) -> tuple[Array, Array, Array]:
    """Quantize [rows, columns] to values from 0 to 15; weight 0 is always representable.

    Returns values [rows, columns] uint8, the scales as `store_scale` stored them and zero points
    uint8, both [rows, groups]. `store_scale` rounds scales to the dtype of the file and returns
    them as stored and as float32. Without `gptq` each value is rounded to nearest.
    """
    groups = rows.reshape(len(rows), -1, group_size)
    if gptq is None:
        array, scale, zero_point = _full_ranges(groups, store_scale)
        values = np.clip(np.rint(groups / scale[..., None]) + zero_point[..., None], 0, 15)
        return values.reshape(rows.shape).astype(np.uint8), array, zero_point.astype(np.uint8)
    error_weights = gptq.error_weights.reshape(-1, group_size)
    array, scale, zero_point = _best_ranges(groups, store_scale, error_weights)
    # [groups, rows]: the scales of one group are contiguous.
    scale, zero_point = np.ascontiguousarray(scale.T), np.ascontiguousarray(zero_point.T)

    def round_column(column: int, weights: Floats) -> tuple[Floats, Floats]:
        s, z = scale[column // group_size], zero_point[column // group_size]
        values = np.clip(np.rint(weights / s) + z, 0, 15)
        return values, (values - z) * s

    def refit(group: int, values: Floats, gradient: Floats, moments: Floats) -> Floats:
        before, steps = scale[group], values - zero_point[group]
        refitted = before + scale_update(steps, gradient, moments)
        # The fit is ill-conditioned when all values of a group are close to its zero point.
        _, scale[group] = store_scale(np.clip(refitted, before / 2, before * 2))
        dequantized: Floats = steps * scale[group]
        return dequantized

    values, dequantized = gptq.quantize(rows, round_column)
    gptq.refine(rows, values, dequantized, round_column, group_size, refit)
    array, _ = store_scale(np.ascontiguousarray(scale.T))
    return values.T.astype(np.uint8), array, zero_point.T.astype(np.uint8)


def _full_ranges(groups: Floats, store_scale: StoreScale) -> tuple[Array, Floats, Floats]:
    """Return scales (as stored and as float32) and zero points of [rows, groups, group size].

    They cover all weights of a group, and zero.
    """
    low, high = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
    array, scale = store_scale((high - low) * np.float32(1 / 15))
    return array, scale, np.clip(np.rint(-low / scale), 0, 15)


def _best_ranges(
    groups: Floats, store_scale: StoreScale, error_weights: Floats
) -> tuple[Array, Floats, Floats]:
    """Return the scales and zero points of least error among narrower and wider ranges.

    A narrower range can help all but the largest weights; a wider one leaves room for GPTQ's
    corrections. `error_weights` [groups, group size] are those of `GptqRounding`.
    """
    low, high = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
    best: list[Array] = []
    least = np.full(low.shape, np.inf, np.float32)
    for fraction in _RANGE_FRACTIONS:
        array, scale = store_scale((high - low) * np.float32(fraction / 15))
        middle = np.floor(7.5 - (low + high) / (2 * scale))
        for zero_point in (np.clip(middle, 0, 15), np.clip(middle + 1, 0, 15)):
            error = _rounding_error(groups, scale, zero_point, error_weights)
            found, less = [array, scale, zero_point], error < least
            best = [np.where(less, new, old) for new, old in zip(found, best or found, strict=True)]
            least = np.minimum(error, least)
    return best[0], best[1], best[2]


def _rounding_error(
    groups: Floats, scale: Floats, zero_point: Floats, error_weights: Floats
) -> Floats:
    """Return the weighted squared error of rounding to nearest, [rows, groups]."""
    scale, zero_point = scale[..., None], zero_point[..., None]
    error = (np.clip(np.rint(groups / scale) + zero_point, 0, 15) - zero_point) * scale - groups
    total: Floats = np.einsum("rgc,rgc,gc->rg", error, error, error_weights)
    return total
