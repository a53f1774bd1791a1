"""The files of an adapter directory: its configuration and its tensors."""

import math
from pathlib import Path
from typing import Any

from swiftchat.errors import BadModelFile, ModelNotFound
from swiftchat.weights.files.reading import read_json
from swiftchat.weights.model.tensor_file import TensorFile

CONFIG_FILE = "adapter_config.json"
OTHER_BASE = "the adapter belongs to another base model; its model card names which"
_WEIGHT_FILES = ("adapter_model.safetensors", "adapter_model.bin", "adapters.safetensors")


def find_adapter(path: Path) -> Path:
    """Return the adapter's GGUF file or directory: `path`, or its only subfolder with an adapter.

    Raises `ModelNotFound` if there is none, `BadModelFile` if there are several.
    """
    if path.is_file():
        if path.suffix != ".gguf":
            raise BadModelFile(
                f"{path} is not an adapter", "name its directory, or a GGUF file of a LoRA adapter"
            )
        return path
    if not path.is_dir():
        raise ModelNotFound(f"no adapter at {path}", "name a directory or a .gguf file")
    if (path / CONFIG_FILE).is_file():
        return path
    inside = sorted(file.parent.name for file in path.glob(f"*/{CONFIG_FILE}"))
    if len(inside) == 1:
        return path / inside[0]
    if inside:
        raise BadModelFile(
            f"{path} has {len(inside)} adapters: {', '.join(inside[:8])}",
            f"name one of them: {path / inside[0]}",
        )
    raise BadModelFile(
        f"{path} is not an adapter: {CONFIG_FILE} is missing",
        "an adapter has adapter_config.json and adapter_model.safetensors",
    )


def adapter_directory(path: Path) -> bool:
    """Return whether `path` is the directory of an adapter, rather than of a model."""
    return (path / CONFIG_FILE).is_file() and not (path / "config.json").is_file()


def read_config(directory: Path) -> dict[str, Any]:
    """Return `adapter_config.json`. Raises `BadModelFile` if it is no JSON object."""
    return read_json(directory / CONFIG_FILE)


class AdapterFiles(TensorFile):
    """The weight file of an adapter directory.

    Raises `BadModelFile` for a missing file, and for a tensor without floats or elements.
    """

    def __init__(self, directory: Path) -> None:
        found = [directory / name for name in _WEIGHT_FILES if (directory / name).is_file()]
        if not found:
            raise BadModelFile(f"{directory} has none of {', '.join(_WEIGHT_FILES)}")
        super().__init__(found[0], "the adapter")
        for name, info in self.tensors.items():
            self.require_floats(name)
            if not math.prod(info.shape):
                raise self.bad(name, "at least one element", str(list(info.shape)))
