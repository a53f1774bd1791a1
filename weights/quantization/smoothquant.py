"""SmoothQuant: scale the channels of a norm's output so that weights and inputs quantize well.

Xiao et al., 2022 (arXiv:2211.10438): some channels of a norm's output are a hundred times larger
than the others and would determine a vector's 8-bit scale. Each channel is divided by
s = √(input maximum / weight maximum of its column), in the weight of the norm, and the column of
every matrix that reads the norm is multiplied by s. o and down do not follow a norm and are not
changed.
"""

from collections.abc import Callable, Collection, Iterator

import numpy as np

from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import canonical_tensors, tensor_name
from swiftchat.weights.formats.arrays import Floats

Chunks = Callable[[str], Iterator[Floats]]

# The matrices that read each norm of a layer; nothing else reads it.
_READERS = {"attn_norm": ("qkv", "q", "k", "v"), "mlp_norm": ("gate_up", "gate", "up")}
_MIN_SCALE = 1e-5


def apply_smoothquant(
    config: ModelConfig,
    chunks: Chunks,
    quantized: Collection[str],
    abs_maxima: Callable[[str], Floats],
) -> Chunks:
    """Return `chunks` with smoothed norms and matrices; other tensors are unchanged.

    `chunks(name)` yields a tensor's elements flat; `abs_maxima(name)` returns the absolute
    maximum of each input of a matrix, [columns]. A norm is only smoothed if all its readers are
    `quantized`, and none where attention and MLP of a layer read the same norm.
    """
    readers_of: dict[str, list[str]] = {}  # matrix -> all matrices that read the same norm
    norms: dict[str, tuple[list[str], float]] = {}  # norm -> its readers, offset of its weight
    layers: dict[int, dict[str, str]] = {}
    for canonical, layer, part in canonical_tensors(config):
        if layer is not None and part is None:
            layers.setdefault(layer, {})[canonical] = tensor_name(config, canonical, layer)
    applies = all(
        layer.norm_order in ("pre", "sandwich") and not layer.is_parallel for layer in config.layers
    )
    for names in layers.values() if applies else ():
        for norm, canonical_readers in _READERS.items():
            readers = [names[name] for name in canonical_readers if name in names]
            if norm in names and readers and set(readers) <= set(quantized):
                readers_of |= dict.fromkeys(readers, readers)
                norms[names[norm]] = readers, float(config.norm.unit_offset)
                if f"{norm}_bias" in names:
                    norms[names[f"{norm}_bias"]] = readers, 0.0
    cached: dict[str, Floats] = {}

    def scales(readers: list[str]) -> Floats:
        first = readers[0]
        if first not in cached:
            inputs = np.maximum(abs_maxima(first), 0)
            cached.clear()  # tensors are written layer by layer
            weights = (chunk for name in readers for chunk in chunks(name))
            cached[first] = _column_scales(inputs, weights)
        return cached[first]

    def smoothed(name: str) -> Iterator[Floats]:
        if name in norms:
            readers, offset = norms[name]
            for scale, chunk in _with_scales(chunks(name), scales(readers)):
                yield (chunk + np.float32(offset)) / scale - np.float32(offset)
        elif name in readers_of:
            for scale, chunk in _with_scales(chunks(name), scales(readers_of[name])):
                yield chunk * scale
        else:
            yield from chunks(name)

    return smoothed


def _column_scales(inputs: Floats, chunks: Iterator[Floats]) -> Floats:
    """Return s of each column, [columns]; chunks are flat and of any size."""
    columns = len(inputs)
    weights = np.zeros(columns, np.float32)
    at = 0
    for chunk in chunks:
        column = at % columns
        padded = np.pad(np.abs(chunk), (column, -(column + len(chunk)) % columns))
        weights = np.maximum(weights, padded.reshape(-1, columns).max(0))
        at += len(chunk)
    nonzero = (inputs > 0) & (weights > 0)
    ratio = np.sqrt(np.where(nonzero, inputs, 1) / np.where(nonzero, weights, 1))
    return np.maximum(np.where(nonzero, ratio, 1), _MIN_SCALE).astype(np.float32)


def _with_scales(chunks: Iterator[Floats], scales: Floats) -> Iterator[tuple[Floats, Floats]]:
    """Yield, for each chunk of a flat matrix, the scale of each element and the chunk."""
    at, columns = 0, len(scales)
    for chunk in chunks:
        yield scales[np.arange(at, at + len(chunk)) % columns], chunk
        at += len(chunk)
