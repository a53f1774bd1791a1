"""Matrices of a GGUF file kept as its blocks in a model directory of Hugging Face's layout.

`….weight` becomes `….weight.TYPE`, uint8 [rows, bytes of a row], the rows in Hugging Face's
order: a row's blocks follow each other as in the GGUF file. `config.json` says
`"quantization_config": {"quant_method": "gguf"}`. Only this program reads such a directory.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights import gguf_kept, gguf_tensors
from swiftchat.weights.config import ModelConfig
from swiftchat.weights.dequantize import BLOCK_TYPES, dequantize
from swiftchat.weights.families import canonical_tensors, expected_tensors, tensor_name
from swiftchat.weights.gguf import GgufFile
from swiftchat.weights.gguf_kept import KEPT_TYPES
from swiftchat.weights.kept import Int4, Int8Groups, Keeping
from swiftchat.weights.packed import Floats, PackedTensor, Source
from swiftchat.weights.plan import AsItIs
from swiftchat.weights.quantise import MATRICES
from swiftchat.weights.quantised_settings import Settings

__all__ = ["SETTINGS", "as_they_are", "tensors"]

SETTINGS: Mapping[str, Any] = {"quant_method": "gguf"}
_PACKED = MATRICES | {"embed", "lm_head"}


def as_they_are(
    file: GgufFile, config: ModelConfig, sources: Mapping[str, gguf_tensors.Source]
) -> dict[str, AsItIs]:
    """The matrices, by name, that a directory keeps in the blocks that `file` has them in.

    Reading one raises `BadModelFile` naming the tensor when a factor of it is not finite.
    """
    canonical = {tensor_name(config, *place): place[0] for place in canonical_tensors(config)}
    shapes = expected_tensors(config)

    def kept(name: str, source: gguf_tensors.Source) -> AsItIs:
        type_name = source.tensor.type_name
        kind = BLOCK_TYPES[type_name]
        rows, columns = shapes[name]
        row_bytes = columns // kind.block_elements * kind.block_bytes

        def read() -> gguf_tensors.Bytes:
            blocks = gguf_tensors.blocks(file, source)
            if not gguf_kept.finite(blocks, type_name):
                raise BadModelFile(f"tensor {name} holds numbers that are not finite")
            return blocks

        return AsItIs((f"{name}.{type_name}", "U8", (rows, row_bytes)), read)

    return {
        name: kept(name, source)
        for name, source in sources.items()
        if canonical[name] in _PACKED
        and source.tensor.type_name in KEPT_TYPES
        and not source.transposed
    }


def tensors(settings: Settings, source: Source) -> dict[str, PackedTensor]:
    """Every `….TYPE` that is a matrix of such blocks, by its name without the type."""
    settings.refuse_others({"quant_method"})
    return {
        name: _tensor(source, name, type_name)
        for type_name in sorted(KEPT_TYPES)
        for name in source.ending(f".{type_name}")
    }


def _tensor(source: Source, name: str, type_name: str) -> PackedTensor:
    stored, kind = f"{name}.{type_name}", BLOCK_TYPES[type_name]
    count, row_bytes = source.shape(stored, ("U8",), 2)
    if row_bytes % kind.block_bytes:
        raise source.bad(stored, f"rows of blocks of {kind.block_bytes} bytes", f"{row_bytes}")
    columns = row_bytes // kind.block_bytes * kind.block_elements

    def rows(start: int, stop: int) -> Floats:
        numbers = dequantize(source.read(stored)[start:stop], type_name)
        if not np.isfinite(numbers).all():
            raise source.bad(stored, "finite factors", "others")
        return numbers

    def kept() -> Int4 | Int8Groups:
        blocks = source.read(stored)
        if not gguf_kept.finite(blocks, type_name):
            raise source.bad(stored, "finite factors", "others")
        return gguf_kept.kept(blocks, type_name)

    keeping = Keeping(gguf_kept.form_of(type_name), kept, gguf_kept.GROUP)
    return PackedTensor(type_name, (count, columns), {"blocks": stored}, rows, keeping)
