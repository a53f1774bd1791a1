"""Open an adapter of any layout."""

from pathlib import Path

from swiftchat.weights.adapters.adapter import Adapter
from swiftchat.weights.adapters.files import find_adapter, read_config
from swiftchat.weights.adapters.gguf import gguf_adapter
from swiftchat.weights.adapters.mlx import is_mlx, mlx_adapter
from swiftchat.weights.adapters.peft import peft_adapter
from swiftchat.weights.architectures.parts.model import ModelConfig


def open_adapter(path: Path, config: ModelConfig) -> Adapter:
    """Open the adapter at `path` (a directory or a GGUF file) and check it against the model.

    Reads headers only. Raises `ModelNotFound` if there is none, `BadModelFile` if it is damaged,
    is not supported or belongs to another base model, `FileSystemError` if it cannot be read.
    """
    found = find_adapter(path)
    if found.is_file():
        return gguf_adapter(found, config)
    settings = read_config(found)
    if is_mlx(settings):
        return mlx_adapter(found, settings, config)
    return peft_adapter(found, settings, config)
