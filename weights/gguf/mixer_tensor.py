"""A small tensor, usually of a token mixer, that a GGUF file stores in another form."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swiftchat.weights.formats.ggml_dequantize import dequantize
from swiftchat.weights.formats.gguf_header import GgufTensor

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class MixerTensor:
    """One tensor with other dimensions in the file: it becomes `shape`.

    With `is_decay` the file has −exp(x) or exp(x) of its elements x. `order` are the places in the
    file of what the first axis has; None: they keep their order.
    """

    tensors: tuple[GgufTensor]
    shape: tuple[int, ...]
    is_decay: bool
    order: npt.NDArray[np.intp] | None = None

    def part(self, stored: Sequence[Bytes], start: int, stop: int) -> Floats:
        """Return a range of the first axis; `stored` are the bytes, uint8 [rows, row bytes]."""
        found = dequantize(stored[0], self.tensors[0].type_name).reshape(self.shape)
        found = found[start:stop] if self.order is None else found[self.order[start:stop]]
        return np.log(np.abs(found)) if self.is_decay else found

    def chunks(self, rows: Callable[[GgufTensor], Bytes]) -> Iterator[Floats]:
        """Yield the elements flat; `rows` returns a tensor's bytes."""
        stored = rows(self.tensors[0]).reshape(1, -1)
        yield self.part([stored], 0, self.shape[0]).reshape(-1)
