"""The weight files of a model directory: tensor table, checks, memory-mapped reads."""

import difflib
import mmap
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile, DamagedModelFile, FileSystemError
from swiftchat.errors.regular_file import open_regular
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import (
    constant_tensors,
    expected_tensors,
    tensor_name,
)
from swiftchat.weights.files.reading import prefetch, read_small_file, release_pages
from swiftchat.weights.formats.safetensors import read_header
from swiftchat.weights.formats.tensor_info import TensorInfo
from swiftchat.weights.formats.torch_checkpoint import read_torch_checkpoint
from swiftchat.weights.formats.weight_files import (
    SAFETENSORS_FILE,
    SAFETENSORS_INDEX,
    TORCH_FILE,
    TORCH_INDEX,
    parse_weight_map,
)
from swiftchat.weights.model.tensor_prefix import with_standard_names
from swiftchat.weights.model.unread import unread_input_scales, unread_tensors
from swiftchat.weights.parallel.rank_files import (
    rank_file_name,
    read_rank_file,
    stored_tp_size,
    wrong_tp_size,
)
from swiftchat.weights.parallel.tensor_parallel import Shard, shard_of
from swiftchat.weights.quantization.methods import model_tensors, select_expected
from swiftchat.weights.quantization.stored_tensor import CheckedTensors, StoredTensor

# File names of older GPTQ tools, by bits and group size.
_GPTQ_FILES = "*-[2348]bit*.safetensors"

# numpy has no bfloat16 and 8-bit floats: they are read as the integers of their bits.
_NUMPY_DTYPES: Mapping[str, str] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "F8_E8M0": "u1",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
}
_FLOATS = ("BF16", "F16", "F32")
_ROUNDED = "F64"  # read as float32
_COMPARED_BYTES = 1 << 22


class Checkpoint:
    """The tensor table of a directory's safetensors or torch.save files.

    `open` reads only headers; `map` and `read` access the data. If the files store the shard of
    one rank, `shard` is that shard. `check` sets `unused`, the tensors that are not the model's,
    and both checks set `unread`, those of them that belong to its layers. `check_quantized` sets
    `quantized`, the model's tensors that must be dequantized or stay quantized, whose parts are in
    `tensors`, and `unread_input_scales`, the number of scales of activations that are not used.
    """

    def __init__(
        self, path: Path, tensors: Mapping[str, TensorInfo], shard: Shard | None = None
    ) -> None:
        self.path = path
        self.tensors = MappingProxyType(dict(tensors))
        self.shard = shard
        self.quantized: Mapping[str, StoredTensor] = {}
        self.unused: list[str] = []
        self.unread: list[str] = []
        self.unread_input_scales = 0
        self._maps: dict[Path, mmap.mmap] = {}

    @property
    def is_quantized(self) -> bool:
        """Whether a tensor of the model is stored with fewer bits than a float dtype."""
        floats = (*_FLOATS, _ROUNDED)
        return any(tensor.format not in floats for tensor in self.quantized.values())

    @classmethod
    def open(cls, path: Path, shard: Shard | None = None) -> Self:
        """Read the headers in the directory `path`; of files per rank, that of `shard`.

        Raises `BadModelFile` for a file or tensor that is missing, damaged, outside the directory
        or contradicts the index, `UsageError` if the files are for another number of ranks.
        """
        directory = Path(path).resolve()
        try:
            size = stored_tp_size(directory)
            if size is None:
                return cls(path, _read_headers(directory))
            if shard is None or shard.size != size:
                raise wrong_tp_size(path, size, shard)
            file = _file_in(directory, rank_file_name(shard.rank, size))
            # The file has the layers of all pipeline stages.
            stored = shard_of(shard.config, size, shard.rank)
            return cls(path, read_rank_file(file, shard), stored)
        except OSError as error:
            raise FileSystemError.reading(path, error) from error

    def map(self, file: Path) -> mmap.mmap:
        """Map a whole file, copy-on-write: writes stay private to this process.

        Each file is mapped once, until the checkpoint and all arrays over the mapping are freed.
        """
        if file not in self._maps:
            try:
                with open_regular(file) as opened:
                    self._maps[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
            except OSError as error:
                raise FileSystemError(f"cannot map {file}: {error.strerror}") from error
        return self._maps[file]

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return a view of a tensor in its own dtype (BF16 as uint16); KeyError if unknown."""
        info = self.tensors[name]
        dtype = np.dtype(_NUMPY_DTYPES[info.dtype])
        if not info.nbytes:
            return np.empty(info.shape, dtype)
        count = info.nbytes // dtype.itemsize
        flat = np.frombuffer(self.map(info.file), dtype, count, info.offset)
        return flat.reshape(info.shape)

    def prefetch(self, name: str, ahead_bytes: int) -> None:
        """Start to read a tensor of the model, and that many bytes after it, in the background."""
        quantized = self.quantized.get(name)
        for part in [name] if quantized is None else quantized.parts.values():
            info = self.tensors[part]
            prefetch(self.map(info.file), info.offset, info.nbytes + ahead_bytes)

    def release_pages(self) -> None:
        """Free the memory of the pages read so far; arrays stay valid, writes are lost."""
        for mapped in self._maps.values():
            release_pages(mapped)

    def use_standard_names(self, config: ModelConfig) -> None:
        """Rename the tensors as `with_standard_names` does."""
        if not self.shard:
            self.tensors = MappingProxyType(with_standard_names(config, self.tensors))

    def check(self, config: ModelConfig) -> None:
        """Check that every tensor of `config` has the right shape and a float dtype.

        Raises `BadModelFile` with the tensor, the expected and the found value. A tied `lm_head`
        may be missing. Sets `unused`.
        """
        self.use_standard_names(config)
        expected = self.shard.shapes() if self.shard else expected_tensors(config)
        allowed = dict(expected)
        if config.head.tied:
            allowed[tensor_name(config, "lm_head")] = expected[tensor_name(config, "embed")]
        for name, shape in allowed.items():
            info = self.tensors.get(name)
            if info is not None:
                self._check_tensor(info, shape)
            elif name in expected:
                raise self._missing(name, shape)
        self.unused = [name for name in self.tensors if name not in allowed]
        self.unread = unread_tensors(self.unused, _others_read(config), expected)
        self.quantized = self._rounded(allowed)

    def check_quantized(self, config: ModelConfig, settings: Mapping[str, Any]) -> None:
        """Check the tensors of a model quantized as `settings` say; sets `quantized`.

        Raises `BadModelFile` as `model_tensors` and `select_expected` do.
        """
        self.use_standard_names(config)
        stored = model_tensors(settings, self.tensors, self.read)
        tensors = select_expected(stored, expected_tensors(config))
        for name, tensor in tensors.items():
            if tensor.format == "plain":
                self._check_tensor(self.tensors[name], tensor.shape)
        rest = unread_tensors(stored, tensors.keys() | _others_read(config), tensors)
        self.unread = [name for name in rest if not _is_zero_bias(name, stored[name])]
        kept = {n: tensor for n, tensor in tensors.items() if tensor.format != "plain"}
        self.quantized = kept | self._rounded(tensors.keys() - kept.keys())
        read = {name for tensor in kept.values() for name in tensor.parts.values()}
        self.unread_input_scales = unread_input_scales(self.tensors, read)

    def _rounded(self, names: Iterable[str]) -> dict[str, StoredTensor]:
        """Return those of the tensors that are rounded to float32 when they are read."""
        source = CheckedTensors(self.tensors, self.read)
        wide = [n for n in names if n in self.tensors and self.tensors[n].dtype == _ROUNDED]
        return {name: replace(source.plain(name), format=_ROUNDED) for name in wide}

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise `BadModelFile` if there is no such tensor of floats with this shape."""
        if name not in self.tensors:
            raise self._missing(name, shape)
        self._check_tensor(self.tensors[name], shape)

    def nbytes(self, name: str) -> int:
        """Return the stored bytes of a tensor of the model, with all parts of a quantized one."""
        quantized = self.quantized.get(name)
        parts = [name] if quantized is None else quantized.parts.values()
        return sum(self.tensors[part].nbytes for part in parts)

    def _check_tensor(self, info: TensorInfo, shape: tuple[int, ...]) -> None:
        if info.shape != shape:
            raise BadModelFile(
                f"{info.file}: tensor {info.name}: expected {list(shape)}, found {list(info.shape)}"
            )
        floats = (*_FLOATS, _ROUNDED)
        if info.dtype not in floats:
            raise BadModelFile(
                f"{info.file}: tensor {info.name}: expected one of {', '.join(floats)}, "
                f"found {info.dtype}"
            )

    def _missing(self, name: str, shape: tuple[int, ...]) -> BadModelFile:
        near = difflib.get_close_matches(name, self.tensors, n=1)
        found = f"found at most {near[0]}" if near else f"found {len(self.tensors)} other tensors"
        return BadModelFile(f"{self.path}: no tensor {name}: expected {list(shape)}, {found}")


def _others_read(config: ModelConfig) -> set[str]:
    """Return the names of tensors that are read in another way, or that repeat another tensor."""
    tied = {tensor_name(config, "lm_head")} if config.head.tied else set()
    # Transformers saves matrices of experts that return their input.
    count, identity = (
        (config.moe.num_experts, config.moe.identity_experts) if config.moe else (0, 0)
    )
    unused = range(count, count + identity)
    first = [name for name in expected_tensors(config) if unused and ".experts.0." in name]
    repeated = {name.replace(".experts.0.", f".experts.{i}.") for name in first for i in unused}
    return tied | repeated | constant_tensors(config).keys()


def _is_zero_bias(name: str, tensor: StoredTensor) -> bool:
    """Return whether a tensor is a bias that adds nothing, as some tools write."""
    return name.endswith(".bias") and not tensor.to_float32().any()


def _read_headers(directory: Path) -> dict[str, TensorInfo]:
    if not directory.is_dir():
        raise BadModelFile(f"{directory} is not a model directory")
    for single, index in ((SAFETENSORS_FILE, SAFETENSORS_INDEX), (TORCH_FILE, TORCH_INDEX)):
        if (directory / single).exists():
            return _single(directory, single)
        if (directory / index).exists():
            return _sharded(directory, index)
    for pattern, read in ((f"{_GPTQ_FILES}.index.json", _sharded), (_GPTQ_FILES, _single)):
        names = sorted(path.name for path in directory.glob(pattern))
        if len(names) > 1:
            raise BadModelFile(f"{directory}: expected one model, found {names[0]} and {names[1]}")
        if names:
            return read(directory, names[0])
    raise BadModelFile(
        f"{directory} has none of {SAFETENSORS_FILE}, {SAFETENSORS_INDEX}, "
        f"{TORCH_FILE}, {TORCH_INDEX}"
    )


def _single(directory: Path, name: str) -> dict[str, TensorInfo]:
    return _read_header(_file_in(directory, name))


def _read_header(file: Path) -> dict[str, TensorInfo]:
    return read_torch_checkpoint(file) if file.suffix == ".bin" else read_header(file)[0]


def _sharded(directory: Path, index: str) -> dict[str, TensorInfo]:
    """Return the tensors of all files that an index names, whatever it says of each tensor.

    A tensor may be in several files, as after some merges of models, if they agree on it.
    """
    path = _file_in(directory, index)
    weight_map = parse_weight_map(read_small_file(path), index, str(path))
    tensors: dict[str, TensorInfo] = {}
    for shard in sorted(set(weight_map.values())):
        for name, info in _read_header(_file_in(directory, shard)).items():
            if name in tensors and not _equal(tensors[name], info):
                raise BadModelFile(
                    f"tensor {name} of {tensors[name].file.name} is another one in {shard}"
                )
            tensors.setdefault(name, info)
    return tensors


def _equal(one: TensorInfo, other: TensorInfo) -> bool:
    """Return whether two tensors have the same elements; reads them a part at a time."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    with open_regular(one.file) as first, open_regular(other.file) as second:
        first.seek(one.offset)
        second.seek(other.offset)
        parts = range(0, one.nbytes, _COMPARED_BYTES)
        sizes = (min(_COMPARED_BYTES, one.nbytes - start) for start in parts)
        return all(first.read(size) == second.read(size) for size in sizes)


def _file_in(directory: Path, name: str) -> Path:
    """Return the path of a file, which may be a link; `BadModelFile` if there is none."""
    path = directory / name
    if not path.is_file():
        raise DamagedModelFile(f"{path} is missing")
    return path
