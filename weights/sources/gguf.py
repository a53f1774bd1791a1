"""GGUF files as sources of a conversion; quantized tensors are dequantized."""

from collections.abc import Iterator
from pathlib import Path

from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.tensors import expected_tensors
from swiftchat.weights.formats.arrays import Floats
from swiftchat.weights.formats.gguf import open_gguf
from swiftchat.weights.gguf import architectures, tensors
from swiftchat.weights.gguf.config import model_config_json
from swiftchat.weights.gguf.model_files import default_dtype, model_files
from swiftchat.weights.sources.plan import Plan


def plan(source: Path, dtype: str | None) -> Plan:
    """Plan the conversion of a GGUF file."""
    file = open_gguf(source)
    dtype = dtype or default_dtype(file)
    config_json = model_config_json(file, dtype)
    config = read_model_config(config_json)
    sources = tensors.tensor_sources(file, architectures.gguf_architecture(file)[0], config)

    def chunks(name: str) -> Iterator[Floats]:
        return sources[name].chunks(file.rows)

    files = model_files(file, config_json)
    shapes = expected_tensors(config)
    return Plan(files, shapes, dtype, chunks, file.paths, file.release_pages)
