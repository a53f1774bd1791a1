"""The small files of a Hugging Face directory, made from the header of a GGUF file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.files.reading import encode_json
from swiftchat.weights.formats.gguf import GgufFile, open_gguf
from swiftchat.weights.gguf import config as gguf_config
from swiftchat.weights.gguf.architectures import gguf_architecture
from swiftchat.weights.gguf.source import SOURCE_FILE, GgufSource
from swiftchat.weights.gguf.tensors import block_matrices, has_other_parts, tensor_sources
from swiftchat.weights.gguf.tokenizer import tokenizer_files, vocabulary_notes

_FLOAT_DTYPES = {"F16": "float16", "F32": "float32"}


def default_dtype(file: GgufFile) -> str:
    """Return the dtype of the matrices if they have one, else bfloat16."""
    types = {tensor.type_name for tensor in file.tensors.values() if len(tensor.shape) > 1}
    return _FLOAT_DTYPES.get(types.pop(), "bfloat16") if len(types) == 1 else "bfloat16"


def model_files(
    file: GgufFile,
    config_json: Mapping[str, Any],
    generation_defaults: Mapping[str, Any] | None = None,
) -> dict[str, bytes]:
    """Return config, tokenizer, generation config and model card, by file name.

    `generation_defaults` fill absent fields of `generation_config.json`. Raises `BadModelFile` if
    the metadata describe no tokenizer that fits the model.
    """
    config = read_model_config(config_json)
    vocabulary = tokenizer_files(file.metadata)
    num_tokens = len(file.metadata["tokenizer.ggml.tokens"])
    if num_tokens > config.vocab_size:
        raise BadModelFile(f"{file.path}: {num_tokens} tokens, but {config.vocab_size} embeddings")
    generation = {**(generation_defaults or {}), **gguf_config.generation_config_json(file)}
    files = {
        "config.json": encode_json(config_json),
        "generation_config.json": encode_json(generation),
        "tokenizer_config.json": encode_json(gguf_config.tokenizer_config_json(file)),
        **vocabulary,
    }
    card = gguf_config.model_card(file)
    if card:
        files["README.md"] = card.encode()
    return files


def notes(file: GgufFile) -> list[str]:
    """Return what a user should know about a model that `model_files` accepts."""
    found = vocabulary_notes(file.metadata)
    if has_other_parts(file):
        found.append(
            "only the language model is supported: its vision and audio tensors are skipped"
        )
    return found


def write_model_files(
    path: Path,
    directory: Path,
    generation_defaults: Mapping[str, Any] | None = None,
) -> None:
    """Write the small files of a model whose weights stay in the GGUF file `path`.

    Raises `BadModelFile` if the file is damaged or the model is not supported.
    """
    file = open_gguf(path)
    config_json = gguf_config.model_config_json(file, default_dtype(file))
    config = read_model_config(config_json)
    sources = tensor_sources(file, gguf_architecture(file)[0], config)
    files = model_files(file, config_json, generation_defaults)
    if block_matrices(config, sources):
        settings = {"quantization_config": {"quant_method": "gguf"}}
        files["config.json"] = encode_json({**config_json, **settings})
    files[SOURCE_FILE] = GgufSource.of(file.paths, directory, notes(file)).encode()
    for name, content in files.items():
        (directory / name).write_bytes(content)
