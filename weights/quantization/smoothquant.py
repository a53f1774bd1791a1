"""Factors moved from what a matrix reads into the matrix, so that both are rounded with less loss.

SmoothQuant, Xiao et al., 2022 (arXiv:2211.10438): single channels of what norms give are a hundred
times as large as the others, and a vector's 8 bits go to them. Each channel is divided by
s = √(largest input / largest weight of its column), in the norm's own weight, and its column of all
matrices that read the norm multiplied by s. No norm precedes o and down: they stay as they are.
"""

from collections.abc import Callable, Collection, Iterator

import numpy as np

from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.tensors import canonical_tensors, tensor_name
from swiftchat.weights.quantization.rounding import Floats

__all__ = ["smoothed"]

Values = Callable[[str], Iterator[Floats]]

# By the norm of a layer, what reads it and nothing else does.
_READERS = {"attn_norm": ("qkv", "q", "k", "v"), "mlp_norm": ("gate_up", "gate", "up")}
_SMALLEST = 1e-5  # a factor


def smoothed(
    config: ModelConfig,
    values: Values,
    quantized: Collection[str],
    largest: Callable[[str], Floats],
) -> Values:
    """`values` of norms and matrices that are moved so far apart; the rest as it is.

    `values(name)` gives a tensor's numbers flat, in pieces; `largest(name)` the largest size of
    each input of a matrix, [columns]. A norm stays as it is unless all that read it are
    `quantized`, and so does every norm where a layer's branches read the same one.
    """
    matrices: dict[str, list[str]] = {}  # all that read the same norm, by the name of each
    norms: dict[str, tuple[list[str], float]] = {}
    names: dict[int, dict[str, str]] = {}
    for canonical, layer, part in canonical_tensors(config):
        if layer is not None and part is None:
            names.setdefault(layer, {})[canonical] = tensor_name(config, canonical, layer)
    moved = config.norm_order in ("pre", "sandwich") and not config.parallel_residual
    for of_layer in names.values() if moved else ():
        for norm, canonical_readers in _READERS.items():
            readers = [of_layer[name] for name in canonical_readers if name in of_layer]
            if norm in of_layer and readers and set(readers) <= set(quantized):
                matrices |= dict.fromkeys(readers, readers)
                norms[of_layer[norm]] = readers, float(config.norm_unit_offset)
                if f"{norm}_bias" in of_layer:
                    norms[of_layer[f"{norm}_bias"]] = readers, 0.0
    known: dict[str, Floats] = {}

    def factors(readers: list[str]) -> Floats:
        first = readers[0]
        if first not in known:
            inputs = np.maximum(largest(first), 0)
            known.clear()  # tensors come layer by layer
            known[first] = _factors(inputs, (piece for name in readers for piece in values(name)))
        return known[first]

    def changed(name: str) -> Iterator[Floats]:
        if name in norms:
            readers, offset = norms[name]
            for part, piece in _with_columns(values(name), factors(readers)):
                yield (piece + np.float32(offset)) / part - np.float32(offset)
        elif name in matrices:
            for part, piece in _with_columns(values(name), factors(matrices[name])):
                yield piece * part
        else:
            yield from values(name)

    return changed


def _factors(inputs: Floats, pieces: Iterator[Floats]) -> Floats:
    """What each column is multiplied by, for matrices that come flat, in pieces of any size."""
    columns = len(inputs)
    weights = np.zeros(columns, np.float32)
    at = 0
    for piece in pieces:
        column = at % columns
        padded = np.pad(np.abs(piece), (column, -(column + len(piece)) % columns))
        weights = np.maximum(weights, padded.reshape(-1, columns).max(0))
        at += len(piece)
    seen = (inputs > 0) & (weights > 0)
    ratio = np.sqrt(np.where(seen, inputs, 1) / np.where(seen, weights, 1))
    return np.maximum(np.where(seen, ratio, 1), _SMALLEST).astype(np.float32)


def _with_columns(pieces: Iterator[Floats], factors: Floats) -> Iterator[tuple[Floats, Floats]]:
    """Each piece of a flat matrix behind the factor of each of its numbers."""
    at, columns = 0, len(factors)
    for piece in pieces:
        yield factors[np.arange(at, at + len(piece)) % columns], piece
        at += len(piece)
