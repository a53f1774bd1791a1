"""One file of tensors that belongs to a model: every access to a tensor is checked."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile, FileSystemError
from swiftchat.weights.formats.arrays import Floats
from swiftchat.weights.formats.safetensors import read_header
from swiftchat.weights.formats.torch_checkpoint import read_torch_checkpoint
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.quantization.stored_tensor import as_float32

Read = Callable[[], Floats]
FLOATS = ("F32", "F16", "BF16", "F64")
_INTEGERS = ("I64", "I32")


class TensorFile:
    """The tensors of one safetensors or torch.save file.

    `what` names its owner in hints: "the adapter". Raises `BadModelFile` for a damaged file,
    `FileSystemError` if it cannot be read.
    """

    def __init__(self, file: Path, what: str) -> None:
        self.file, self._what = file, what
        try:
            if file.suffix == ".safetensors":
                tensors, _ = read_header(file)
            else:
                tensors = read_torch_checkpoint(file)
        except OSError as error:
            raise FileSystemError.reading(file, error) from error
        self.tensors = tensors
        self._checkpoint = Checkpoint(file.parent, tensors)

    @property
    def of_another_model(self) -> str:
        """The hint for a tensor that does not fit the model."""
        return f"{self._what} belongs to another base model; its model card names which"

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape; `BadModelFile` if it is missing."""
        if name not in self.tensors:
            raise BadModelFile(f"{self.file}: no tensor {name}", f"{self._what} is incomplete")
        return self.tensors[name].shape

    def require(self, name: str, shape: tuple[int, ...], hint: str = "") -> None:
        """Raise `BadModelFile` with both shapes if a tensor has another shape."""
        if self.shape(name) != shape:
            hint = hint or self.of_another_model
            raise self.bad(name, str(list(shape)), str(list(self.shape(name))), hint)

    def require_floats(self, name: str) -> None:
        """Raise `BadModelFile` if a tensor has no float dtype."""
        if self.tensors[name].dtype not in FLOATS:
            raise self.bad(name, f"one of {', '.join(FLOATS)}", self.tensors[name].dtype)

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

    def integers(self, name: str) -> npt.NDArray[np.int64]:
        """Read a tensor of integers; `BadModelFile` for another dtype."""
        if self.tensors[name].dtype not in _INTEGERS:
            raise self.bad(name, f"one of {', '.join(_INTEGERS)}", self.tensors[name].dtype)
        return self._checkpoint.read(name).astype(np.int64)

    def bad(self, name: str, expected: str, found: str, hint: str = "") -> BadModelFile:
        return BadModelFile(f"{self.file}: tensor {name}: expected {expected}, found {found}", hint)
