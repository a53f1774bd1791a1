"""A number of a layer that a GGUF file has in its metadata, as a tensor."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats.gguf_header import GgufTensor

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class MetadataNumber:
    """A tensor of one element, which no tensor of the file has."""

    value: float
    tensors: tuple[GgufTensor, ...] = ()

    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        """Return the element if the range has it; `stored` is empty."""
        return np.full(1, self.value, np.float32)[start:stop]

    def chunks(self, rows: Callable[[GgufTensor], Bytes]) -> Iterator[Floats]:
        """Yield the element."""
        yield np.full(1, self.value, np.float32)
