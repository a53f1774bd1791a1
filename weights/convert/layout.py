"""The weight files of a conversion and the tensors in each."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from swiftchat.errors import UsageError
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.tensors import canonical_tensors, tensor_name
from swiftchat.weights.files.reading import encode_json
from swiftchat.weights.formats.arrays import Array
from swiftchat.weights.formats.safetensors import TensorSpec, spec_bytes
from swiftchat.weights.formats.weight_files import SAFETENSORS_FILE
from swiftchat.weights.parallel.division import TensorSlice
from swiftchat.weights.parallel.rank_files import rank_file_name, rank_metadata
from swiftchat.weights.parallel.tensor_parallel import shard_of
from swiftchat.weights.quantization.rounding import WIRE_NAMES
from swiftchat.weights.sources.plan import Plan


@dataclass(frozen=True)
class Layout:
    """The weight files of a conversion: the tensors of each, in order, by file name.

    `metadata` are additional header fields of each file. `slices` lists, for each tensor, the
    files that store it and the slice in each; None: the whole tensor. `index` is the content of
    the index file, if there is one, `tp` the number of ranks that the files are for.
    """

    files: Mapping[str, Sequence[TensorSpec]]
    metadata: Mapping[str, Mapping[str, str]]
    slices: Mapping[str, Sequence[tuple[str, TensorSlice | None]]]
    index: bytes | None = None
    tp: int = 1

    @property
    def tensors_bytes(self) -> int:
        """Bytes of all tensors of all files, without headers."""
        return sum(spec_bytes(tensor) for tensors in self.files.values() for tensor in tensors)

    def split(self, name: str, array: Array) -> Iterator[tuple[str, Array]]:
        """Yield each file that stores the tensor `name`, and its slice of `array`."""
        for file, part in self.slices[name]:
            yield file, array if part is None else _take(array, part)


def sharded_layout(plan: Plan, max_bytes: float) -> Layout:
    """Return one file, or several of at most `max_bytes` with an index, as in transformers."""
    shards = plan.split(max_bytes)
    names = [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
    names_in = dict(zip(names if len(shards) > 1 else [SAFETENSORS_FILE], shards, strict=True))
    files = {
        file: [s for name in names for s in plan.specs(name)] for file, names in names_in.items()
    }
    file_of = {name: file for file, tensors in files.items() for name, _, _ in tensors}
    index = {"metadata": {"total_size": plan.tensors_bytes}, "weight_map": file_of}
    return Layout(
        files,
        {file: {} for file in files},
        {name: [(file, None)] for name, file in file_of.items()},
        encode_json(index) if len(files) > 1 else None,
    )


def rank_layout(plan: Plan, size: int) -> Layout:
    """Return one file per rank; `UsageError` if the model cannot be sharded over `size` ranks."""
    if plan.quantization is not None:
        raise UsageError("--quantize does not work with --tp yet", "leave out --tp")
    config = read_model_config(json.loads(plan.files["config.json"]))
    places = {tensor_name(config, *names): names[:2] for names in canonical_tensors(config)}
    files, metadata = {}, {}
    slices: dict[str, list[tuple[str, TensorSlice | None]]] = {name: [] for name in plan.shapes}
    for rank in range(size):
        shard, file = shard_of(config, size, rank), rank_file_name(rank, size)
        specs, own = [], shard.shapes()
        for name, shape in plan.shapes.items():
            part = shard.slice_of(*places[name]) if name in places else None
            if part is not None and name in own:
                slices[name].append((file, part))
                specs.append((name, WIRE_NAMES[plan.dtype], part.shape(shape)))
        files[file], metadata[file] = specs, rank_metadata(rank, size)
    return Layout(files, metadata, slices, tp=size)


def _take(array: Array, part: TensorSlice) -> Array:
    spans = [array[(slice(None),) * part.axis + (slice(*span),)] for span in part.spans]
    return spans[0] if len(spans) == 1 else np.concatenate(spans, part.axis)
