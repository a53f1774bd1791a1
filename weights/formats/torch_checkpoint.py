"""Files of `torch.save` (.bin, .pth, .pt): nothing in them runs, their tensors are mapped.

Such a file is an uncompressed zip archive: `data.pkl` says what there is, and each
`data/KEY` holds the numbers of one storage. The pickle is read as data. (What torch wrote before
version 1.6 is `torch_row_file`'s.)
"""

import dataclasses
import io
import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from swiftchat.errors import BadModelFile, FileSystemError
from swiftchat.weights.files.reading import reject_other_content
from swiftchat.weights.formats.safe_pickle import MAX_BYTES, Global, Inert, load
from swiftchat.weights.formats.safetensors import ITEM_BYTES, TensorInfo
from swiftchat.weights.formats.torch_legacy import row_entries
from swiftchat.weights.formats.zip_entries import Entry, zip_entries

__all__ = ["read_content", "read_torch_checkpoint", "refuse_overlaps", "tensors_of"]

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
# What stands beside the tensors in checkpoints of trainers: never made, only passed over.
_BYSTANDERS = frozenset(
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
    """The tensors of the table in `path`, by name.

    Raises `BadModelFile` naming the file (and tensor) for anything but dense tensors with
    ordinary strides in an uncompressed archive, for tensors that overlap without being the
    same, and for a pickle that asks for anything else; nothing in it runs.
    """
    tensors = tensors_of(path, read_content(path))
    if not tensors:
        raise BadModelFile(f"{path} holds no tensors")
    refuse_overlaps(path, tensors)
    return tensors


def read_content(path: Path) -> Any:
    """All that was saved: dicts, lists, numbers, strings, `TensorInfo` without a name, `Inert`.

    Raises `BadModelFile` as `read_torch_checkpoint` does, `FileSystemError` when `path`
    cannot be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(512)
            reject_other_content(path, start)
            if start.startswith(b"PK\3\4"):
                pickled, storages = _zipped(path, file)
            elif start.startswith(b"\x80"):
                item_bytes = {kind: ITEM_BYTES[dtype] for kind, dtype in _STORAGES.items()}
                pickled, storages = row_entries(path, file, _knows, item_bytes)
            else:
                raise _other_format(path, start)
    except OSError as error:
        raise FileSystemError(f"cannot read {path}: {error.strerror or error}") from error
    reader = _Reader(path, storages)
    return load(io.BytesIO(pickled), str(path), _knows, reader.call, reader.storage)


def tensors_of(path: Path, content: Any, prefix: str = "") -> dict[str, TensorInfo]:
    """The tensors anywhere below `content`, named by the keys that lead to them, with dots."""
    found: dict[str, TensorInfo] = {}
    for name, info in _walk(path, content, prefix, 0, set()):
        if name in found:
            raise BadModelFile(f"{path}: tensor {name} is there twice")
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
        # A table within itself never ends, and one that is shared can take as long.
        if id(content) in seen or depth > _MAX_DEPTH:
            raise BadModelFile(f"{path}: tables within tables at {prefix[:80]}")
        if len(prefix) > _MAX_NAME:
            raise BadModelFile(f"{path}: a name longer than {_MAX_NAME} characters")
        seen.add(id(content))
        for key, value in content.items():
            if isinstance(key, str):
                yield from _walk(path, value, f"{prefix}.{key}" if prefix else key, depth + 1, seen)


def _other_format(path: Path, start: bytes) -> BadModelFile:
    what = "not a file of torch.save"
    if start[257:262] == b"ustar":
        what = "in the first format of torch.save, an archive of tar, which is not read"
    return BadModelFile(f"{path}: {what}", "use a safetensors or GGUF version of the model")


def _zipped(path: Path, file: BinaryIO) -> tuple[bytes, dict[str, Entry]]:
    """The pickle, and where each storage lies by its key."""
    entries = zip_entries(path)
    prefix = _prefix(path, entries)
    order = entries.get(f"{prefix}byteorder")
    if order is not None and _bytes(file, order, 16).strip() != b"little":
        raise BadModelFile(f"{path}: written on a big-endian machine")
    # One byte beyond what `load` accepts is enough for it to refuse.
    pickled = _bytes(file, entries[f"{prefix}data.pkl"], 1 + MAX_BYTES)
    folder = f"{prefix}data/"
    return pickled, {
        name.removeprefix(folder): entry
        for name, entry in entries.items()
        if name.startswith(folder)
    }


def _prefix(path: Path, entries: Mapping[str, Entry]) -> str:
    """The folder all is in, "archive/" or the like."""
    found = [name for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(found) != 1:
        raise BadModelFile(f"{path}: a zip archive, but not one of torch.save")
    return found[0].removesuffix("data.pkl")


def _bytes(file: BinaryIO, entry: Entry, most: int) -> bytes:
    file.seek(entry.offset)
    return file.read(min(entry.nbytes, most))


def _knows(name: str) -> bool:
    return (
        name in _STORAGES
        or name in _DENSE
        or name in _BYSTANDERS
        or name in _DTYPES
        or name in (_ORDERED, _PARAMETER)
        # To be refused by their own name, with the reason.
        or name.startswith(_OTHER_TENSORS)
        # Settings and enumerations in `args`.
        or name.startswith("megatron.")
    )


@dataclasses.dataclass(frozen=True)
class _Storage:
    dtype: str
    offset: int
    nbytes: int


class _Reader:
    """Finds storages in the file and makes tensors of the calls in the pickle."""

    def __init__(self, path: Path, storages: Mapping[str, Entry]) -> None:
        self._path = path
        self._storages = storages

    def storage(self, identity: Any) -> _Storage:
        tag, kind, key, _, count, *view = identity
        # Anything but plain values is not shown: tuples of tuples take for ever to print.
        if tag != "storage" or not isinstance(kind, Global) or kind.name not in _STORAGES:
            raise BadModelFile(f"{self._path}: a storage of an unknown kind")
        if not isinstance(key, str) or not _is_count(count):
            raise BadModelFile(f"{self._path}: a storage without a name or size")
        dtype = _STORAGES[kind.name]
        entry = self._storages.get(key)
        if entry is None:
            raise BadModelFile(f"{self._path}: storage {key[:40]} is not in the file")
        if view not in ([], [None]):
            raise BadModelFile(f"{self._path}: storage {key[:40]} is part of another")
        if count * ITEM_BYTES[dtype] != entry.nbytes:
            raise BadModelFile(
                f"{self._path}: storage {key}: expected {count} numbers of {dtype}, "
                f"found {entry.nbytes} bytes"
            )
        return _Storage(dtype, entry.offset, entry.nbytes)

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name in _DENSE:
            return self._tensor(*arguments[:4])
        if name == _PARAMETER:
            return arguments[0]
        if name == _ORDERED:
            return self._table(*arguments)
        if name.startswith(_OTHER_TENSORS):
            raise BadModelFile(
                f"{self._path}: a tensor of {name}: only dense ones with ordinary strides are read"
            )
        return Inert(name, arguments)

    def _table(self, pairs: Any = ()) -> dict[str, Any]:
        """An OrderedDict, which Python 2 wrote as a list of keys and values."""
        if not all(isinstance(pair, list) and isinstance(pair[0], str) for pair in pairs):
            raise BadModelFile(f"{self._path}: an OrderedDict written in an unknown way")
        return dict(pairs)

    def _tensor(self, storage: Any, first: Any, shape: Any, strides: Any) -> TensorInfo:
        counts = (first, *shape, *strides)
        if not isinstance(storage, _Storage) or not all(map(_is_count, counts)):
            raise BadModelFile(f"{self._path}: a tensor without a storage or with odd sizes")
        if len(shape) > _MAX_DIMENSIONS or len(shape) != len(strides):
            raise BadModelFile(f"{self._path}: a tensor with {len(shape)} dimensions")
        wanted = [math.prod(shape[at + 1 :]) for at in range(len(shape))]
        sizes = zip(shape, strides, wanted, strict=True)
        if math.prod(shape) and any(n > 1 and stride != due for n, stride, due in sizes):
            raise BadModelFile(
                f"{self._path}: a tensor {list(shape)}: expected strides {wanted}, "
                f"found {list(strides)}",
                "save it again from contiguous tensors",
            )
        size = ITEM_BYTES[storage.dtype]
        nbytes = math.prod(shape) * size
        if first * size + nbytes > storage.nbytes:
            raise BadModelFile(
                f"{self._path}: a tensor {list(shape)} from number {first} needs "
                f"{first * size + nbytes} bytes, its storage has {storage.nbytes}"
            )
        offset = storage.offset + first * size
        return TensorInfo("", self._path, storage.dtype, tuple(shape), offset, nbytes)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def refuse_overlaps(path: Path, tensors: Mapping[str, TensorInfo]) -> None:
    """Raise `BadModelFile` where two tensors of one file share bytes without being the same.

    Two names for one tensor are ordinary (tied embeddings).
    """
    ordered = sorted((t for t in tensors.values() if t.nbytes), key=lambda t: (t.offset, t.nbytes))
    for before, after in itertools.pairwise(ordered):
        same = (before.offset, before.nbytes) == (after.offset, after.nbytes)
        if not same and before.offset + before.nbytes > after.offset:
            raise BadModelFile(f"{path}: tensors {before.name} and {after.name} overlap")
