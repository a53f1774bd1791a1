"""Which file of a conversion gets what of each tensor."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.errors import UsageError
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.tensors import canonical_tensors, tensor_name
from swiftchat.weights.formats.safetensors import TensorSpec, spec_bytes
from swiftchat.weights.formats.weight_files import SAFETENSORS_FILE
from swiftchat.weights.parallel.rank_files import rank_file_name, rank_metadata
from swiftchat.weights.parallel.tensor_parallel import TensorSlice, shard_of
from swiftchat.weights.sources.plan import WIRE_NAMES, Plan, json_bytes

__all__ = ["Layout", "by_rank", "in_shards"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """The weight files of a conversion, by name, with the tensors of each in order.

    `metadata` is what the header of each says of its own, `parts` where a tensor goes: the file
    and the part of it, None the whole. `index` is the index of the files, if there is one, `tp`
    the number of ranks they are for.
    """

    files: Mapping[str, Sequence[TensorSpec]]
    metadata: Mapping[str, Mapping[str, str]]
    parts: Mapping[str, Sequence[tuple[str, TensorSlice | None]]]
    index: bytes | None = None
    tp: int = 1

    @property
    def tensors_bytes(self) -> int:
        """Bytes of all tensors of all files, without headers."""
        return sum(spec_bytes(tensor) for tensors in self.files.values() for tensor in tensors)

    def pieces(self, name: str, tensor: Array) -> Iterator[tuple[str, Array]]:
        """The files that get something of the tensor `name`, and what."""
        for file, part in self.parts[name]:
            yield file, tensor if part is None else _cut(tensor, part)


def in_shards(plan: Plan, most_bytes: float) -> Layout:
    """One file, or several of at most `most_bytes` with an index, as transformers reads them."""
    shards = plan.shards(most_bytes)
    names = [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
    files = dict(zip(names if len(shards) > 1 else [SAFETENSORS_FILE], shards, strict=True))
    announced = {file: plan.announced(names) for file, names in files.items()}
    file_of = {name: file for file, tensors in announced.items() for name, _, _ in tensors}
    content = {"metadata": {"total_size": plan.tensors_bytes}, "weight_map": file_of}
    return Layout(
        announced,
        {file: {} for file in files},
        {name: [(file, None)] for name, file in file_of.items()},
        json_bytes(content) if len(files) > 1 else None,
    )


def by_rank(plan: Plan, size: int) -> Layout:
    """A file for each of `size` ranks; `UsageError` when the model cannot be divided so."""
    if plan.quantization is not None:
        raise UsageError("quantized weights are not cut for ranks yet", "leave out --tp")
    config = ModelConfig.from_hf(json.loads(plan.files["config.json"]))
    canonical = {tensor_name(config, *names): names[0] for names in canonical_tensors(config)}
    files, metadata = {}, {}
    parts: dict[str, list[tuple[str, TensorSlice | None]]] = {name: [] for name in plan.shapes}
    for rank in range(size):
        share, file = shard_of(config, size, rank), rank_file_name(rank, size)
        announced, own = [], share.shapes()
        for name, shape in plan.shapes.items():
            part = share.slices[canonical[name]]
            if part is not None and name in own:
                parts[name].append((file, part))
                announced.append((name, WIRE_NAMES[plan.dtype], part.shape(shape)))
        files[file], metadata[file] = announced, rank_metadata(rank, size)
    return Layout(files, metadata, parts, tp=size)


def _cut(tensor: Array, part: TensorSlice) -> Array:
    cut = [tensor[(slice(None),) * part.axis + (slice(*span),)] for span in part.spans]
    return cut[0] if len(cut) == 1 else np.concatenate(cut, part.axis)
