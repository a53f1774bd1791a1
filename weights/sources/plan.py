"""What a conversion will write, known before the first byte is."""

import dataclasses
import fnmatch
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from swiftchat.errors import UsageError
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.tensors import tensor_name
from swiftchat.weights.formats.safetensors import TensorSpec, spec_bytes
from swiftchat.weights.quantization.quantize import QuantizationSpec
from swiftchat.weights.quantization.rounding import WIRE_NAMES, Floats, convert_dtype
from swiftchat.weights.quantization.smoothquant import apply_smoothquant

__all__ = ["GENERATION", "WIRE_NAMES", "Floats", "Plan", "RawTensor", "json_bytes"]

GENERATION = "generation_config.json"


@dataclass(frozen=True)
class RawTensor:
    """A tensor that is written as the source has it packed: what files announce, and its bytes."""

    announced: TensorSpec
    read: Callable[[], npt.NDArray[Any]]


@dataclass(frozen=True)
class Plan:
    """What the destination will hold: small files as bytes, tensors in the order of writing.

    `shapes` is by Hugging Face name; `values(name)` yields the tensor's numbers, flat.
    `sources` are the files it is made from, and `release_pages` gives back the memory of what was
    read of them so far. The tensors `quantized` are written in the form `quantization`, those of
    `packed` as they are in the source.
    """

    files: Mapping[str, bytes]
    shapes: Mapping[str, tuple[int, ...]]
    dtype: str
    values: Callable[[str], Iterator[Floats]]
    sources: Sequence[Path]
    release_pages: Callable[[], None]
    quantization: QuantizationSpec | None = None
    quantized: frozenset[str] = frozenset()
    packed: Mapping[str, RawTensor] = field(default_factory=dict)

    def tensor_bytes(self, name: str) -> int:
        """Bytes of one tensor as it will be written."""
        return sum(map(spec_bytes, self.stored(name)))

    def stored(self, name: str) -> list[TensorSpec]:
        """Name, dtype and shape of what the weight files have of the tensor `name`."""
        shape = self.shapes[name]
        if name in self.packed:
            return [self.packed[name].announced]
        if self.quantization is not None and name in self.quantized:
            return self.quantization.tensor_specs(name, shape, self.dtype)
        return [(name, WIRE_NAMES[self.dtype], shape)]

    def arrays(self, name: str) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """What `stored` announces, with its numbers; see `rounded` for what is refused."""
        shape = self.shapes[name]
        if name in self.packed:
            yield self.packed[name].announced[0], self.packed[name].read()
        elif self.quantization is not None and name in self.quantized:
            matrix = convert_dtype(name, shape, "float32", self.values(name))
            yield from self.quantization.quantize(name, matrix, self.dtype)
        else:
            yield name, convert_dtype(name, shape, self.dtype, self.values(name))

    @property
    def tensors_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(map(self.tensor_bytes, self.shapes))

    @property
    def total_bytes(self) -> int:
        """Bytes of tensors and small files, without the headers of the weight files."""
        return self.tensors_bytes + sum(map(len, self.files.values()))

    def announced(self, names: Sequence[str]) -> list[TensorSpec]:
        """Name, dtype and shape of each as the header of a weight file says them."""
        return [tensor for name in names for tensor in self.stored(name)]

    def shards(self, most_bytes: float) -> list[list[str]]:
        """The names in order, cut into files of at most `most_bytes`, or of one larger tensor."""
        shards: list[list[str]] = [[]]
        filled = 0
        for name in self.shapes:
            nbytes = self.tensor_bytes(name)
            if shards[-1] and filled + nbytes > most_bytes:
                shards.append([])
                filled = 0
            shards[-1].append(name)
            filled += nbytes
        return shards

    def selected(self, only: Sequence[str], skip: Sequence[str]) -> "Plan":
        """The plan with those tensors alone that match a pattern of `only` and none of `skip`.

        Patterns are as in a shell; no `only` means all. `UsageError` for a pattern that matches
        no tensor, and when none is left.
        """
        for pattern in (*only, *skip):
            if not fnmatch.filter(self.shapes, pattern):
                raise UsageError(
                    f"no tensor matches {pattern!r}", f"tensors: {', '.join([*self.shapes][:3])} …"
                )

        def chosen(name: str) -> bool:
            wanted = not only or any(fnmatch.fnmatchcase(name, pattern) for pattern in only)
            return wanted and not any(fnmatch.fnmatchcase(name, pattern) for pattern in skip)

        shapes = {name: shape for name, shape in self.shapes.items() if chosen(name)}
        if not shapes:
            raise UsageError("--only and --skip leave no tensor")
        return dataclasses.replace(self, shapes=shapes)

    def quantized_as(self, quantization: QuantizationSpec) -> "Plan":
        """The plan with the matrices of the layers in that form; raises what `chosen` does."""
        config_json = json.loads(self.files["config.json"])
        config = ModelConfig.from_hf(config_json)
        names = quantization.select_matrices(config, self.shapes)
        plain = [
            name.removesuffix(".weight")
            for name, shape in self.shapes.items()
            if name not in names and name.endswith(".weight") and len(shape) == 2
        ]
        head = tensor_name(config, "lm_head")
        if head not in names:
            plain = list(dict.fromkeys([*plain, head.removesuffix(".weight")]))
        config_json["quantization_config"] = quantization.quantization_config(plain, names)
        files = {**self.files, "config.json": json_bytes(config_json)}
        values = self.values
        if quantization.abs_maxima is not None:
            values = apply_smoothquant(config, values, names, quantization.abs_maxima)
        return dataclasses.replace(
            self, files=files, values=values, quantization=quantization, quantized=frozenset(names)
        )

    def with_generation_defaults(self, defaults: Mapping[str, Any]) -> "Plan":
        """The plan with these in `generation_config.json` where it has none of its own."""
        own = json.loads(self.files.get(GENERATION, b"{}"))
        files = {**self.files, GENERATION: json_bytes({**defaults, **own})}
        return dataclasses.replace(self, files=files)


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """The text of a JSON file."""
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
