"""The plan of a conversion: files, tensors and dtypes of the destination."""

import dataclasses
import fnmatch
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile, UsageError
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import constant_tensors, tensor_name
from swiftchat.weights.files.reading import encode_json
from swiftchat.weights.formats.arrays import Floats
from swiftchat.weights.formats.safetensors import TensorSpec, spec_bytes
from swiftchat.weights.quantization.quantize import QuantizationSpec
from swiftchat.weights.quantization.rounding import WIRE_NAMES, convert_dtype
from swiftchat.weights.quantization.smoothquant import apply_smoothquant

GENERATION_CONFIG = "generation_config.json"

Arrival = Callable[[Path | None], AbstractContextManager[object]]
"""Brings the content of a weight file for as long as its tensors are read."""


@dataclass(frozen=True)
class Plan:
    """The content of the destination: small files, and tensors in the order of writing.

    `shapes` is by Hugging Face name; `chunks(name)` yields a tensor's elements as float32, flat.
    `source_files` are all files of the source; `release_pages` frees the memory of their pages
    read so far. The tensors in `quantized` are written with `quantization`, all others are
    converted to `dtype`. `fingerprint` tells apart plans that differ in nothing else.
    `file_of(name)` is the weight file that a tensor is read from, None if there are several;
    within `arrival(file)` the tensors of that file can be read.
    """

    files: Mapping[str, bytes]
    shapes: Mapping[str, tuple[int, ...]]
    dtype: str
    chunks: Callable[[str], Iterator[Floats]]
    source_files: Sequence[Path]
    release_pages: Callable[[], None]
    quantization: QuantizationSpec | None = None
    quantized: frozenset[str] = frozenset()
    fingerprint: str = ""
    file_of: Callable[[str], Path | None] = lambda name: None
    arrival: Arrival = nullcontext

    def specs(self, name: str) -> list[TensorSpec]:
        """Return the tensors of the weight files that store the model's tensor `name`."""
        shape = self.shapes[name]
        if self.quantization is not None and name in self.quantized:
            return self.quantization.tensor_specs(name, shape, self.dtype)
        return [(name, WIRE_NAMES[self.dtype], shape)]

    def read(self, name: str) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield the arrays of `specs(name)`, by name; raises the errors of `convert_dtype`."""
        shape = self.shapes[name]
        if self.quantization is not None and name in self.quantized:
            matrix = convert_dtype(name, shape, "float32", self.chunks(name))
            yield from self.quantization.quantize(name, matrix, self.dtype)
        else:
            yield name, convert_dtype(name, shape, self.dtype, self.chunks(name))

    def tensor_bytes(self, name: str) -> int:
        """Return the written bytes of one tensor."""
        return sum(map(spec_bytes, self.specs(name)))

    def by_file(self, names: Iterable[str]) -> dict[Path | None, list[str]]:
        """Return the names of tensors by the weight file that they are read from."""
        found: dict[Path | None, list[str]] = {}
        for name in names:
            found.setdefault(self.file_of(name), []).append(name)
        return found

    @property
    def tensors_bytes(self) -> int:
        """Written bytes of all tensors."""
        return sum(map(self.tensor_bytes, self.shapes))

    def split(self, max_bytes: float) -> list[list[str]]:
        """Split the names, in order, into files of at most `max_bytes` or one larger tensor."""
        shards: list[list[str]] = [[]]
        filled = 0
        for name in self.shapes:
            nbytes = self.tensor_bytes(name)
            if shards[-1] and filled + nbytes > max_bytes:
                shards.append([])
                filled = 0
            shards[-1].append(name)
            filled += nbytes
        return shards

    def with_constants(self) -> "Plan":
        """Return the plan with the tensors of constants that transformers does not set itself."""
        config, chunks = read_model_config(json.loads(self.files["config.json"])), self.chunks
        constants = constant_tensors(config)
        if not constants:
            return self

        def with_constants(name: str) -> Iterator[Floats]:
            if name in constants:
                yield np.array([constants[name]], np.float32)
            else:
                yield from chunks(name)

        shapes = {**self.shapes, **dict.fromkeys(constants, ())}
        return dataclasses.replace(self, shapes=shapes, chunks=with_constants)

    def select(self, only: Sequence[str], skip: Sequence[str]) -> "Plan":
        """Return the plan for the tensors that match a pattern of `only` and none of `skip`.

        Patterns are shell patterns; an empty `only` means all. Raises `UsageError` for a pattern
        that matches no tensor, and if none is left.
        """
        for pattern in (*only, *skip):
            if not fnmatch.filter(self.shapes, pattern):
                raise UsageError(
                    f"no tensor matches {pattern!r}", f"tensors: {', '.join([*self.shapes][:3])} …"
                )

        def is_selected(name: str) -> bool:
            included = not only or any(fnmatch.fnmatchcase(name, pattern) for pattern in only)
            return included and not any(fnmatch.fnmatchcase(name, pattern) for pattern in skip)

        shapes = {name: shape for name, shape in self.shapes.items() if is_selected(name)}
        if not shapes:
            raise UsageError("--only and --skip leave no tensor")
        return dataclasses.replace(self, shapes=shapes)

    def quantize(self, quantization: QuantizationSpec) -> "Plan":
        """Return the plan with quantized matrices; raises the errors of `select_matrices`."""
        config_json = json.loads(self.files["config.json"])
        config = read_model_config(config_json)
        names = quantization.select_matrices(config, self.shapes)
        ignored = [
            name.removesuffix(".weight")
            for name, shape in self.shapes.items()
            if name not in names and name.endswith(".weight") and len(shape) == 2
        ]
        head = tensor_name(config, "lm_head")
        if head not in names:
            ignored = list(dict.fromkeys([*ignored, head.removesuffix(".weight")]))
        config_json["quantization_config"] = quantization.quantization_config(ignored, names)
        files = {**self.files, "config.json": encode_json(config_json)}
        chunks = self.chunks
        if quantization.abs_maxima is not None:
            chunks = apply_smoothquant(config, chunks, names, quantization.abs_maxima)
        return dataclasses.replace(
            self, files=files, chunks=chunks, quantization=quantization, quantized=frozenset(names)
        )

    def with_generation_defaults(self, defaults: Mapping[str, Any]) -> "Plan":
        """Return the plan with `defaults` for absent fields of `generation_config.json`."""
        own = json.loads(self.files.get(GENERATION_CONFIG, b"{}"))
        files = {**self.files, GENERATION_CONFIG: encode_json({**defaults, **own})}
        return dataclasses.replace(self, files=files)


def parse_config(config_json: Mapping[str, Any], place: str) -> ModelConfig:
    """Parse a `config.json` made from `place`, which the error of an invalid one names."""
    try:
        return read_model_config(config_json)
    except BadModelFile as error:
        raise BadModelFile(f"{place}: invalid model config: {error.message}", error.hint) from error
