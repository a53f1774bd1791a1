"""Checkpoints of `torch.save` (.bin, .pth, .pt), read without executing anything in them.

The pickle is interpreted as data (`safe_pickle`) and gives each tensor's place in the file, so
that tensors can be mapped.
"""

import dataclasses
import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.safe_pickle import GlobalName, PickledObject, load
from swiftchat.weights.formats.tensor_info import ITEM_BYTES, TensorInfo, reject_overlaps
from swiftchat.weights.formats.torch_container import FileSpan, read_container

_MAX_DIMENSIONS = 8
_MAX_DEPTH = 16
_MAX_NAME = 500
_STORAGES: Mapping[str, str] = {
    "torch.FloatStorage": "F32",
    "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16",
    "torch.DoubleStorage": "F64",
    "torch.LongStorage": "I64",
    "torch.IntStorage": "I32",
    "torch.ShortStorage": "I16",
    "torch.CharStorage": "I8",
    "torch.ByteStorage": "U8",
    "torch.BoolStorage": "BOOL",
}
_DENSE = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor")
_PARAMETER = "torch._utils._rebuild_parameter"
_OTHER_TENSORS = (
    "torch._utils._rebuild_",
    "torch._tensor._rebuild_",
    "torch.serialization._get_layout",
)
# Other objects in the checkpoints of trainers. They are never created, only skipped.
_SKIPPED = frozenset(
    {
        "argparse.Namespace",
        "types.SimpleNamespace",
        "torch.Size",
        "torch.device",
        "_codecs.encode",
        "numpy.ndarray",
        "numpy.dtype",
        "numpy.core.multiarray._reconstruct",
        "numpy.core.multiarray.scalar",
        "numpy._core.multiarray._reconstruct",
        "numpy._core.multiarray.scalar",
        "pathlib.PosixPath",
        "_io.BytesIO",
    }
)
_DTYPES = frozenset(
    f"torch.{name}"
    for name in ("float32", "float16", "bfloat16", "float64", "int64", "int32", "uint8", "bool")
)
_ORDERED = "collections.OrderedDict"


def read_torch_checkpoint(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors in `path` by name.

    Raises `BadModelFile` with the file (and tensor) for a tensor that is not dense or has
    unusual strides, for tensors that overlap without being the same, for a compressed archive,
    and for a pickle that refers to anything unknown. `FileSystemError` if the file cannot be
    read.
    """
    tensors = tensors_of(path, read_content(path))
    if not tensors:
        raise BadModelFile(f"{path} holds no tensors")
    reject_overlaps(path, tensors.values(), allow_same=True)
    return tensors


def read_content(path: Path) -> Any:
    """Return the saved object: dicts, lists, numbers, strings, `TensorInfo`, `PickledObject`.

    The `TensorInfo` have no name. Raises as `read_torch_checkpoint`.
    """
    item_bytes = {kind: ITEM_BYTES[dtype] for kind, dtype in _STORAGES.items()}
    pickled, storages = read_container(path, _is_known, item_bytes)
    reader = _Reader(path, storages)
    return load(io.BytesIO(pickled), str(path), _is_known, reader.call, reader.storage)


def tensors_of(path: Path, content: Any) -> dict[str, TensorInfo]:
    """Return all tensors in `content`; a name is the keys that lead to the tensor, with dots."""
    found: dict[str, TensorInfo] = {}
    for name, info in _walk(path, content, "", 0, set()):
        if name in found:
            raise BadModelFile(f"{path}: tensor {name} is stored twice")
        found[name] = dataclasses.replace(info, name=name)
    return found


def _walk(
    path: Path, content: Any, prefix: str, depth: int, seen: set[int]
) -> Iterator[tuple[str, TensorInfo]]:
    if isinstance(content, TensorInfo):
        if len(prefix) > _MAX_NAME:
            raise BadModelFile(f"{path}: a tensor's name of {len(prefix)} characters")
        yield prefix, content
    elif isinstance(content, dict):
        # Dicts that contain themselves never end, shared ones can take exponential time.
        if id(content) in seen or depth > _MAX_DEPTH:
            raise BadModelFile(f"{path}: nested or shared dictionaries at {prefix[:80]}")
        if len(prefix) > _MAX_NAME:
            raise BadModelFile(f"{path}: a key longer than {_MAX_NAME} characters")
        seen.add(id(content))
        for key, value in content.items():
            if isinstance(key, str):
                yield from _walk(path, value, f"{prefix}.{key}" if prefix else key, depth + 1, seen)


def _is_known(name: str) -> bool:
    return (
        name in _STORAGES
        or name in _DENSE
        or name in _SKIPPED
        or name in _DTYPES
        or name in (_ORDERED, _PARAMETER)
        # `_Reader.call` rejects these with the reason.
        or name.startswith(_OTHER_TENSORS)
        # Settings and enumerations in the `args` of Megatron checkpoints.
        or name.startswith("megatron.")
    )


@dataclasses.dataclass(frozen=True)
class _Storage:
    dtype: str
    offset: int
    nbytes: int


class _Reader:
    """Finds the storages in the file and turns the calls in the pickle into tensors."""

    def __init__(self, path: Path, storages: Mapping[str, FileSpan]) -> None:
        self._path = path
        self._storages = storages

    def storage(self, identity: Any) -> _Storage:
        tag, kind, key, _, count, *view = identity
        # Messages show plain values only: nested tuples can take exponential time to print.
        if tag != "storage" or not isinstance(kind, GlobalName) or kind.name not in _STORAGES:
            raise BadModelFile(f"{self._path}: a storage of an unknown kind")
        if not isinstance(key, str) or not _is_count(count):
            raise BadModelFile(f"{self._path}: a storage without a name or size")
        dtype = _STORAGES[kind.name]
        span = self._storages.get(key)
        if span is None:
            raise BadModelFile(f"{self._path}: storage {key[:40]} is not in the file")
        if view not in ([], [None]):
            raise BadModelFile(f"{self._path}: storage {key[:40]} is part of another")
        if count * ITEM_BYTES[dtype] != span.nbytes:
            raise BadModelFile(
                f"{self._path}: storage {key}: expected {count} elements of {dtype}, "
                f"found {span.nbytes} bytes"
            )
        return _Storage(dtype, span.offset, span.nbytes)

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name in _DENSE:
            return self._tensor(*arguments[:4])
        if name == _PARAMETER:
            return arguments[0]
        if name == _ORDERED:
            return self._table(*arguments)
        if name.startswith(_OTHER_TENSORS):
            raise BadModelFile(
                f"{self._path}: a tensor of {name}: only dense tensors with ordinary strides "
                "are supported"
            )
        return PickledObject(name, arguments)

    def _table(self, pairs: Any = ()) -> dict[str, Any]:
        """Return the dict of an OrderedDict, which Python 2 wrote as a list of keys and values."""
        if not all(isinstance(pair, list) and isinstance(pair[0], str) for pair in pairs):
            raise BadModelFile(f"{self._path}: an OrderedDict written in an unknown way")
        return dict(pairs)

    def _tensor(self, storage: Any, first: Any, shape: Any, strides: Any) -> TensorInfo:
        counts = (first, *shape, *strides)
        if not isinstance(storage, _Storage) or not all(map(_is_count, counts)):
            raise BadModelFile(f"{self._path}: a tensor without a storage or with odd sizes")
        if len(shape) > _MAX_DIMENSIONS or len(shape) != len(strides):
            raise BadModelFile(f"{self._path}: a tensor with {len(shape)} dimensions")
        expected = [math.prod(shape[at + 1 :]) for at in range(len(shape))]
        sizes = zip(shape, strides, expected, strict=True)
        if math.prod(shape) and any(
            n > 1 and stride != contiguous for n, stride, contiguous in sizes
        ):
            raise BadModelFile(
                f"{self._path}: a tensor {list(shape)}: expected strides {expected}, "
                f"found {list(strides)}",
                "save it again from contiguous tensors",
            )
        size = ITEM_BYTES[storage.dtype]
        nbytes = math.prod(shape) * size
        if first * size + nbytes > storage.nbytes:
            raise BadModelFile(
                f"{self._path}: a tensor {list(shape)} from element {first} needs "
                f"{first * size + nbytes} bytes, its storage has {storage.nbytes}"
            )
        offset = storage.offset + first * size
        return TensorInfo("", self._path, storage.dtype, tuple(shape), offset, nbytes)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63
