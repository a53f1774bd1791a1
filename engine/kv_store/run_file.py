"""A file with a run of consecutive full blocks, in the safetensors format.

`tokens` are int32 [blocks, block_size]; `kv0`, and `kv1` for the scales of a quantized cache, hold
[blocks, num_layers, ...]; `checksums` are the CRC-32 of each block's bytes. The metadata has the
digest of all content before the run. The name consists of this digest and that of the last block,
so files of the same name have the same content, and the tokens are verified by it.
"""

import contextlib
import fcntl
import os
import secrets
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np

from swiftchat.engine.api.kv_folder import FILE_SUFFIX, TEMPORARY_SUFFIX
from swiftchat.engine.schedule.content import Digest, content_digest
from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.safetensors import (
    TensorSpec,
    header_bytes,
    read_header,
    spec_bytes,
)

_NAME_DIGITS = 24  # of each of the two digests
_MAX_BUFFERS = 512  # of one system call
Views = Sequence[Sequence[memoryview]]
"""The bytes of one block: for each tensor of the cache a view for each layer."""


class BadRunFile(Exception):
    """A file that is damaged or was not written for this model and these options."""


@dataclass(frozen=True)
class RunLayout:
    """Name, dtype and shape of the tensors of one block, and its number of tokens."""

    block_size: int
    tensors: tuple[TensorSpec, ...]

    def specs(self, num_blocks: int) -> list[TensorSpec]:
        tensors = [(name, dtype, (num_blocks, *shape)) for name, dtype, shape in self.tensors]
        tokens: TensorSpec = ("tokens", "I32", (num_blocks, self.block_size))
        return [tokens, *tensors, ("checksums", "U32", (num_blocks,))]


class RunWriter:
    """Writes a run block by block to a temporary file, which `finish` renames.

    The file is not flushed to the disk: after a loss of power its checksums may not match. Until
    it is finished or abandoned, the process locks the temporary file.
    """

    def __init__(
        self,
        folder: Path,
        layout: RunLayout,
        parent: Digest,
        blocks: Sequence[Sequence[int]],
        about: Mapping[str, str],
    ) -> None:
        digest = parent
        for tokens in blocks:
            digest = content_digest(digest, tokens)
        self._path = folder / f"{_name(parent, digest)}{FILE_SUFFIX}"
        self._temporary = folder / f"{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"
        self._checksums: list[int] = []
        specs = layout.specs(len(blocks))
        metadata = {
            **about,
            "parent": parent.hex(),
            "num_tokens": str(len(blocks) * layout.block_size),
        }
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file: int | None = (file := os.open(self._temporary, flags, 0o600))
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.fchmod(file, 0o600)  # whatever the umask is
            header = header_bytes(specs, metadata)
            self._offsets = _offsets(specs, len(header))
            _write(file, [memoryview(header)], 0)
            ids = np.array(blocks, dtype=np.int32)
            _write(file, [ids.reshape(-1).view(np.uint8).data], self._offsets[0])
        except BaseException:
            self.abandon()
            raise

    def write(self, block: Views) -> None:
        """Append the next block. Raises OSError."""
        assert self._file is not None
        index = len(self._checksums)
        for views, offset in zip(block, self._offsets[1:], strict=False):
            _write(self._file, views, offset + index * sum(map(len, views)))
        self._checksums.append(_checksum(block))

    def finish(self) -> Path:
        """Write the checksums, give the file its name and return that. Raises OSError."""
        assert self._file is not None
        checksums = np.array(self._checksums, dtype=np.uint32)
        _write(self._file, [checksums.view(np.uint8).data], self._offsets[-1])
        self._temporary.rename(self._path)
        self._close()
        return self._path

    def abandon(self) -> None:
        """Remove the temporary file; do nothing if the file is finished."""
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


@dataclass(frozen=True)
class RunFile:
    """A file that was opened and checked but for its blocks."""

    path: Path
    layout: RunLayout
    parent: Digest
    blocks: Sequence[tuple[int, ...]]
    metadata: Mapping[str, str]
    offsets: Sequence[int]
    checksums: Sequence[int]

    @classmethod
    def open(cls, path: Path, layout: RunLayout, about: Mapping[str, str]) -> Self:
        """Read header, tokens and checksums.

        `about` is metadata that it must have. Raises `BadRunFile`, `FileNotFoundError`, OSError.
        """
        try:
            tensors, metadata = read_header(path)
            num_blocks = tensors["tokens"].shape[0]
            parent = bytes.fromhex(metadata["parent"])
        except (BadModelFile, KeyError, IndexError, ValueError) as error:
            raise BadRunFile("it is damaged or truncated") from error
        if any(metadata.get(name) != value for name, value in about.items()):
            raise BadRunFile("it is of another model or version")
        specs = layout.specs(num_blocks)
        if [(one.name, one.dtype, one.shape) for one in tensors.values()] != specs or not specs:
            raise BadRunFile("its tensors are not those of this model's cache")
        end = tensors["checksums"].offset + tensors["checksums"].nbytes
        if path.stat().st_size != end:
            raise BadRunFile("it has another size than its header says")
        with path.open("rb") as file:
            file.seek(tensors["tokens"].offset)
            ids = np.fromfile(file, np.int32, num_blocks * layout.block_size)
            file.seek(tensors["checksums"].offset)
            checksums = np.fromfile(file, np.uint32, num_blocks).tolist()
        blocks = [tuple(row) for row in ids.reshape(num_blocks, layout.block_size).tolist()]
        offsets = [tensors[name].offset for name, _, _ in layout.tensors]
        run = cls(path, layout, parent, blocks, metadata, offsets, checksums)
        if path.name != f"{_name(parent, run.digests[-1])}{FILE_SUFFIX}":
            raise BadRunFile("its name is not that of its tokens")
        return run

    @cached_property
    def digests(self) -> list[Digest]:
        """The digest before each block, and that of the last one."""
        digests = [self.parent]
        for tokens in self.blocks:
            digests.append(content_digest(digests[-1], tokens))
        return digests

    def read(self, index: int, block: Views) -> None:
        """Read a block into the views. Raises `BadRunFile`, whose views then hold anything.

        Also raises `FileNotFoundError` for a file that was removed meanwhile, and OSError.
        """
        file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for views, offset in zip(block, self.offsets, strict=True):
                _read(file, views, offset + index * sum(map(len, views)))
        finally:
            os.close(file)
        if _checksum(block) != self.checksums[index]:
            raise BadRunFile("a checksum differs")


def _name(first: Digest, last: Digest) -> str:
    return f"{first.hex()[:_NAME_DIGITS]}-{last.hex()[:_NAME_DIGITS]}"


def _offsets(specs: Sequence[TensorSpec], start: int) -> list[int]:
    """Return where each tensor begins in the file."""
    offsets = []
    for spec in specs:
        offsets.append(start)
        start += spec_bytes(spec)
    return offsets


def _checksum(block: Views) -> int:
    checksum = 0
    for views in block:
        for view in views:
            checksum = zlib.crc32(view, checksum)
    return checksum


def _write(file: int, views: Sequence[memoryview], offset: int) -> None:
    for first in range(0, len(views), _MAX_BUFFERS):
        some = views[first : first + _MAX_BUFFERS]
        size = sum(map(len, some))
        if (written := os.pwritev(file, some, offset)) != size:
            # The rest would not fit either; writing it names the reason.
            rest = b"".join(some)[written:]
            while rest:
                written += (more := os.pwrite(file, rest, offset + written))
                rest = rest[more:]
        offset += size


def _read(file: int, views: Sequence[memoryview], offset: int) -> None:
    for first in range(0, len(views), _MAX_BUFFERS):
        some = views[first : first + _MAX_BUFFERS]
        size = sum(map(len, some))
        if os.preadv(file, some, offset) != size:
            raise BadRunFile("it was truncated")
        offset += size
