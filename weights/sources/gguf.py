"""GGUF files as sources of a conversion.

Blocks may be kept: `….weight` then becomes `….weight.TYPE`, uint8 [rows, row bytes], the rows in
Hugging Face's order and the blocks of a row as in the GGUF file; `config.json` has
`"quantization_config": {"quant_method": "gguf"}`. Only this program reads such a directory.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.tensors import canonical_tensors, expected_tensors, tensor_name
from swiftchat.weights.formats.ggml_dequantize import BLOCK_TYPES
from swiftchat.weights.formats.gguf import GgufFile, open_gguf
from swiftchat.weights.gguf import architectures, tensors
from swiftchat.weights.gguf import config as gguf_config
from swiftchat.weights.gguf.tokenizer import tokenizer_files
from swiftchat.weights.quantization.gguf_blocks import KEPT_TYPES, has_finite_scales
from swiftchat.weights.quantization.quantize import QUANTIZABLE
from swiftchat.weights.sources.plan import (
    GENERATION_CONFIG,
    Floats,
    Plan,
    RawTensor,
    encode_json,
)

__all__ = ["plan"]

_FLOAT_DTYPES = {"F16": "float16", "F32": "float32"}
_QUANTIZABLE = QUANTIZABLE | {"embed", "lm_head"}


def plan(source: Path, dtype: str | None, keep_blocks: bool) -> Plan:
    """Plan the conversion of a GGUF file.

    With `keep_blocks` the matrices that the engine can compute with as they are stay quantized.
    """
    file = open_gguf(source)
    types = {tensor.type_name for tensor in file.tensors.values() if len(tensor.shape) > 1}
    if dtype is None:
        dtype = _FLOAT_DTYPES.get(types.pop(), "bfloat16") if len(types) == 1 else "bfloat16"
    config_json = gguf_config.model_config_json(file, dtype)
    config = ModelConfig.from_hf(config_json)
    sources = tensors.tensor_sources(file, architectures.gguf_architecture(file)[0], config)
    raw = _block_tensors(file, config, sources) if keep_blocks else {}
    if raw:
        config_json["quantization_config"] = {"quant_method": "gguf"}
    vocabulary = tokenizer_files(file.metadata)
    num_tokens = len(file.metadata["tokenizer.ggml.tokens"])
    if num_tokens > config.vocab_size:
        raise BadModelFile(f"{source}: {num_tokens} tokens, but {config.vocab_size} embeddings")
    files = {
        "config.json": encode_json(config_json),
        GENERATION_CONFIG: encode_json(gguf_config.generation_config_json(file)),
        "tokenizer_config.json": encode_json(gguf_config.tokenizer_config_json(file)),
        **vocabulary,
    }
    card = gguf_config.model_card(file)
    if card:
        files["README.md"] = card.encode()

    def chunks(name: str) -> Iterator[Floats]:
        return tensors.dequantized_chunks(file, sources[name])

    shapes = expected_tensors(config)
    return Plan(files, shapes, dtype, chunks, file.paths, file.release_pages, raw=raw)


def _block_tensors(
    file: GgufFile, config: ModelConfig, sources: Mapping[str, tensors.TensorSource]
) -> dict[str, RawTensor]:
    """Return the matrices that keep their blocks, by name.

    Reading one raises `BadModelFile` with the tensor's name if a scale is not finite.
    """
    canonical = {tensor_name(config, *place): place[0] for place in canonical_tensors(config)}
    shapes = expected_tensors(config)

    def block_tensor(name: str, source: tensors.TensorSource) -> RawTensor:
        type_name = source.tensor.type_name
        kind = BLOCK_TYPES[type_name]
        rows, columns = shapes[name]
        row_bytes = columns // kind.block_elements * kind.block_bytes

        def read() -> tensors.Bytes:
            blocks = tensors.quantized_rows(file, source)
            if not has_finite_scales(blocks, type_name):
                raise BadModelFile(f"tensor {name} has elements that are not finite")
            return blocks

        return RawTensor((f"{name}.{type_name}", "U8", (rows, row_bytes)), read)

    return {
        name: block_tensor(name, source)
        for name, source in sources.items()
        if canonical[name] in _QUANTIZABLE
        and source.tensor.type_name in KEPT_TYPES
        and not source.transposed
    }
