"""The files of an adapter directory: its configuration and its tensors."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from swiftchat.errors import BadModelFile, FileSystemError, ModelNotFound
from swiftchat.weights.adapters.adapter import Floats, Read
from swiftchat.weights.files.reading import read_json
from swiftchat.weights.formats.safetensors import read_header
from swiftchat.weights.formats.torch_checkpoint import read_torch_checkpoint
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.quantization.stored_tensor import as_float32

__all__ = [
    "CONFIG_FILE",
    "OTHER_BASE",
    "AdapterFiles",
    "adapter_directory",
    "find_adapter",
    "read_config",
]

CONFIG_FILE = "adapter_config.json"
OTHER_BASE = "the adapter belongs to another base model; its model card names which"
_WEIGHT_FILES = ("adapter_model.safetensors", "adapter_model.bin", "adapters.safetensors")
_FLOATS = ("F32", "F16", "BF16", "F64")


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


class AdapterFiles:
    """The weight file of an adapter directory; every access to a tensor is checked.

    Raises `BadModelFile` for a missing or damaged file.
    """

    def __init__(self, directory: Path) -> None:
        found = [directory / name for name in _WEIGHT_FILES if (directory / name).is_file()]
        if not found:
            raise BadModelFile(f"{directory} has none of {', '.join(_WEIGHT_FILES)}")
        self.file = found[0]
        try:
            if self.file.suffix == ".bin":
                tensors = read_torch_checkpoint(self.file)
            else:
                tensors, _ = read_header(self.file)
        except OSError as error:
            raise FileSystemError(f"cannot read {self.file}: {error.strerror}") from error
        self.tensors = tensors
        self._checkpoint = Checkpoint(directory, tensors)
        for name, info in tensors.items():
            if info.dtype not in _FLOATS:
                raise self.bad(name, f"one of {', '.join(_FLOATS)}", info.dtype)
            if not math.prod(info.shape):
                raise self.bad(name, "at least one element", str(list(info.shape)))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape; `BadModelFile` if it is missing."""
        if name not in self.tensors:
            raise BadModelFile(f"{self.file}: no tensor {name}", "the adapter is incomplete")
        return self.tensors[name].shape

    def require(self, name: str, shape: tuple[int, ...], hint: str = OTHER_BASE) -> None:
        """Raise `BadModelFile` with both shapes if a tensor has another shape."""
        if self.shape(name) != shape:
            raise self.bad(name, str(list(shape)), str(list(self.shape(name))), hint)

    def reader(self, name: str, change: Callable[[Floats], Floats] = lambda values: values) -> Read:
        """Return a function that reads a tensor in float32 and applies `change`.

        It raises `BadModelFile` if an element is not finite.
        """

        def read() -> Floats:
            values = as_float32(self._checkpoint.read(name), self.tensors[name].dtype)
            if not np.isfinite(values).all():
                raise self.bad(name, "finite numbers", "NaN or infinity")
            return change(values)

        return read

    def bad(self, name: str, expected: str, found: str, hint: str = "") -> BadModelFile:
        return BadModelFile(f"{self.file}: tensor {name}: expected {expected}, found {found}", hint)
