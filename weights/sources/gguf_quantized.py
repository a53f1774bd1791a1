"""Matrices of a GGUF file kept as its blocks in a model directory of Hugging Face's layout.

`….weight` becomes `….weight.TYPE`, uint8 [rows, bytes of a row], the rows in Hugging Face's
order: a row's blocks follow each other as in the GGUF file. `config.json` says
`"quantization_config": {"quant_method": "gguf"}`. Only this program reads such a directory.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.tensors import canonical_tensors, expected_tensors, tensor_name
from swiftchat.weights.formats.ggml_dequantize import BLOCK_TYPES
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.gguf import tensors
from swiftchat.weights.quantization import gguf_blocks
from swiftchat.weights.quantization.gguf_blocks import PACKABLE_TYPES
from swiftchat.weights.quantization.quantize import QUANTIZABLE
from swiftchat.weights.sources.plan import RawTensor

__all__ = ["SETTINGS", "as_they_are"]

SETTINGS: Mapping[str, Any] = {"quant_method": "gguf"}
_PACKED = QUANTIZABLE | {"embed", "lm_head"}


def as_they_are(
    file: GgufFile, config: ModelConfig, sources: Mapping[str, tensors.TensorSource]
) -> dict[str, RawTensor]:
    """The matrices, by name, that a directory keeps in the blocks that `file` has them in.

    Reading one raises `BadModelFile` naming the tensor when a factor of it is not finite.
    """
    canonical = {tensor_name(config, *place): place[0] for place in canonical_tensors(config)}
    shapes = expected_tensors(config)

    def kept(name: str, source: tensors.TensorSource) -> RawTensor:
        type_name = source.tensor.type_name
        kind = BLOCK_TYPES[type_name]
        rows, columns = shapes[name]
        row_bytes = columns // kind.block_elements * kind.block_bytes

        def read() -> tensors.Bytes:
            blocks = tensors.quantized_rows(file, source)
            if not gguf_blocks.has_finite_scales(blocks, type_name):
                raise BadModelFile(f"tensor {name} holds numbers that are not finite")
            return blocks

        return RawTensor((f"{name}.{type_name}", "U8", (rows, row_bytes)), read)

    return {
        name: kept(name, source)
        for name, source in sources.items()
        if canonical[name] in _PACKED
        and source.tensor.type_name in PACKABLE_TYPES
        and not source.transposed
    }
