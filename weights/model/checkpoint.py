"""The tensors of a model directory: found, checked against lies, mapped and read."""

import difflib
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile, FileSystemError
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import expected_tensors, tensor_name
from swiftchat.weights.files.reading import read_small_file, release_pages
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
from swiftchat.weights.parallel.rank_files import (
    rank_file_name,
    read_rank_file,
    stored_tp_size,
    wrong_tp_size,
)
from swiftchat.weights.parallel.tensor_parallel import Shard, shard_of
from swiftchat.weights.quantization.checkpoint import model_tensors, select_expected
from swiftchat.weights.quantization.stored_tensor import StoredTensor

__all__ = ["Checkpoint", "TensorInfo"]

# How older tools of GPTQ named their files, by bits and size of groups.
_GPTQ = "*-[2348]bit*.safetensors"

# bfloat16 and the 8-bit floats have no numpy type; they come as the integers of their bits.
_NUMPY: Mapping[str, str] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
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


class Checkpoint:
    """A directory's safetensors or files of torch.save, one or many, as one table of tensors.

    Only headers are read by `open`; `map` and `read` touch the data. `unused` lists the tensors
    that `check` found beyond the model's own. `sliced`: the files hold one rank's parts already.
    `packed`: the model's tensors that are quantized, which are in `tensors` in parts.
    """

    def __init__(
        self, path: Path, tensors: Mapping[str, TensorInfo], sliced: Shard | None = None
    ) -> None:
        self.path = path
        self.tensors = MappingProxyType(dict(tensors))
        self.sliced = sliced
        self.quantized: Mapping[str, StoredTensor] = {}
        self.unused: list[str] = []
        self._maps: dict[Path, mmap.mmap] = {}

    @classmethod
    def open(cls, path: Path, share: Shard | None = None) -> Self:
        """Read the headers below the directory `path`; of files cut by rank those of `share`.

        `BadModelFile` names the file (and tensor) that is missing, damaged, outside the
        directory or contradicts the index; `UsageError` that files are cut for other ranks.
        """
        directory = Path(path).resolve()
        try:
            size = stored_tp_size(directory)
            if size is None:
                return cls(path, _all_tensors(directory))
            if share is None or share.size != size:
                raise wrong_tp_size(path, size, share)
            file = _inside(directory, rank_file_name(share.rank, size))
            # It has the layers of all stages, whichever this is.
            return cls(path, read_rank_file(file, share), shard_of(share.config, size, share.rank))
        except OSError as error:
            raise FileSystemError(f"cannot read {path}: {error.strerror or error}") from error

    def map(self, file: Path) -> mmap.mmap:
        """The whole `file` as memory, private to this process and writable without harm.

        Mapped once and kept until the checkpoint and every array over the mapping are gone.
        """
        if file not in self._maps:
            try:
                with file.open("rb") as opened:
                    self._maps[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
            except OSError as error:
                raise FileSystemError(f"cannot map {file}: {error.strerror}") from error
        return self._maps[file]

    def read(self, name: str) -> npt.NDArray[Any]:
        """A view of one tensor in its own dtype (BF16 as uint16); an unknown name: KeyError."""
        info = self.tensors[name]
        dtype = np.dtype(_NUMPY[info.dtype])
        if not info.nbytes:
            return np.empty(info.shape, dtype)
        count = info.nbytes // dtype.itemsize
        flat = np.frombuffer(self.map(info.file), dtype, count, info.offset)
        return flat.reshape(info.shape)

    def release_pages(self) -> None:
        """Give back the memory of what was read; the arrays stay valid.

        Only where nobody has written to a mapping: what was written is lost.
        """
        for mapped in self._maps.values():
            release_pages(mapped)

    def check(self, config: ModelConfig) -> None:
        """Every tensor of `config` must be here, in its shape and a float dtype.

        Raises `BadModelFile` naming the tensor, what was expected and what was found. A tied
        `lm_head` may be absent. What is left over is listed in `unused`. Names without the
        prefix that all names of the family have get it here, as the oldest files lack it.
        """
        prefix = ARCHITECTURES[config.architecture].prefix
        if prefix and not any(name.startswith(prefix) for name in self.tensors):
            bare = {name.removeprefix(prefix): name for name in expected_tensors(config)}
            self.tensors = MappingProxyType(
                {bare.get(name, name): info for name, info in self.tensors.items()}
            )
        expected = self.sliced.shapes() if self.sliced else expected_tensors(config)
        allowed = dict(expected)
        if config.tied_embeddings:
            allowed[tensor_name(config, "lm_head")] = expected[tensor_name(config, "embed")]
        for name, shape in allowed.items():
            info = self.tensors.get(name)
            if info is not None:
                self._check_one(info, shape)
            elif name in expected:
                raise self._missing(name, shape)
        self.unused = [name for name in self.tensors if name not in allowed]

    def check_quantized(self, config: ModelConfig, settings: Mapping[str, Any]) -> None:
        """`check` for files whose matrices are quantized as `settings` say; fills `packed`.

        Raises `BadModelFile` as `model_tensors` and `select_expected` do.
        """
        tensors = model_tensors(settings, self.tensors, self.read)
        chosen = select_expected(tensors, expected_tensors(config))
        for name, tensor in chosen.items():
            if tensor.format == "plain":
                self._check_one(self.tensors[name], tensor.shape)
        self.quantized = {n: tensor for n, tensor in chosen.items() if tensor.format != "plain"}

    def nbytes(self, name: str) -> int:
        """Bytes in the files of a tensor of the model, all its parts if it is packed."""
        packed = self.quantized.get(name)
        parts = [name] if packed is None else packed.parts.values()
        return sum(self.tensors[part].nbytes for part in parts)

    def _check_one(self, info: TensorInfo, shape: tuple[int, ...]) -> None:
        if info.shape != shape:
            raise BadModelFile(
                f"{info.file}: tensor {info.name}: expected {list(shape)}, found {list(info.shape)}"
            )
        if info.dtype not in _FLOATS:
            raise BadModelFile(
                f"{info.file}: tensor {info.name}: expected one of {', '.join(_FLOATS)}, "
                f"found {info.dtype}"
            )

    def _missing(self, name: str, shape: tuple[int, ...]) -> BadModelFile:
        near = difflib.get_close_matches(name, self.tensors, n=1)
        found = f"found at most {near[0]}" if near else f"found {len(self.tensors)} other tensors"
        return BadModelFile(f"{self.path}: no tensor {name}: expected {list(shape)}, {found}")


def _all_tensors(directory: Path) -> dict[str, TensorInfo]:
    if not directory.is_dir():
        raise BadModelFile(f"{directory} is not a model directory")
    for single, index in ((SAFETENSORS_FILE, SAFETENSORS_INDEX), (TORCH_FILE, TORCH_INDEX)):
        if (directory / single).exists():
            return _single(directory, single)
        if (directory / index).exists():
            return _sharded(directory, index)
    for pattern, read in ((f"{_GPTQ}.index.json", _sharded), (_GPTQ, _single)):
        names = sorted(path.name for path in directory.glob(pattern))
        if len(names) > 1:
            raise BadModelFile(f"{directory}: {names[0]} or {names[1]}? One model is expected")
        if names:
            return read(directory, names[0])
    raise BadModelFile(
        f"{directory} holds none of {SAFETENSORS_FILE}, {SAFETENSORS_INDEX}, "
        f"{TORCH_FILE}, {TORCH_INDEX}"
    )


def _single(directory: Path, name: str) -> dict[str, TensorInfo]:
    return _tensors_in(_inside(directory, name))


def _tensors_in(file: Path) -> dict[str, TensorInfo]:
    return read_torch_checkpoint(file) if file.suffix == ".bin" else read_header(file)[0]


def _sharded(directory: Path, index: str) -> dict[str, TensorInfo]:
    path = _inside(directory, index)
    weight_map = parse_weight_map(read_small_file(path), index, str(path))
    tensors: dict[str, TensorInfo] = {}
    for shard in sorted(set(weight_map.values())):
        for name, info in _tensors_in(_inside(directory, shard)).items():
            if name in tensors:
                raise BadModelFile(
                    f"tensor {name} is in both {tensors[name].file.name} and {shard}"
                )
            tensors[name] = info
    for name, shard in weight_map.items():
        found = tensors[name].file.name if name in tensors else "no shard"
        if name not in tensors or tensors[name].file != _inside(directory, shard):
            raise BadModelFile(
                f"{directory / index}: tensor {name}: expected in {shard}, found in {found}"
            )
    return tensors


def _inside(directory: Path, name: str) -> Path:
    """The file's path, refused when a symbolic link leads out of the model's own folders."""
    path = directory / name
    real = Path(os.path.realpath(path))
    # The hub's cache keeps its files in `blobs` beside `snapshots` and links to them.
    blobs = [p.parent / "blobs" for p in directory.parents if p.name == "snapshots"]
    if not any(map(real.is_relative_to, (directory, *blobs))):
        raise BadModelFile(f"{path} is a link to a place outside the model's directory")
    if not real.is_file():
        raise BadModelFile(f"{path} is missing")
    return path
