"""LevelDB tables (sorted keys and values in a file), as TensorFlow writes them.

Layout (from LevelDB's description of its tables): blocks of entries, an index block with the last
key and the place of each block, and a footer of 48 bytes with the place of the index. A key omits
the prefix that it shares with the previous key. A trailer of each block has its compression and a
checksum.
"""

import itertools
import struct
from collections.abc import Iterator
from pathlib import Path

from swiftchat.errors import BadModelFile, DamagedModelFile
from swiftchat.weights.files.reading import read_small_file

# A table of a thousand tensors has 100 kB.
_MAX_BYTES = 4 * 1024 * 1024
_MAX_KEY_BYTES = 4096
_FOOTER_BYTES = 48
_MAGIC = bytes.fromhex("57fb808b247547db")
_TRAILER = struct.Struct("<BI")
_COMPRESSIONS = {1: "snappy"}


def read_table(path: Path) -> dict[bytes, bytes]:
    """Return keys and values of the table in `path`, in ascending order of keys.

    Raises `BadModelFile` if the file is not a table, is larger than 4 MiB, truncated, compressed
    or damaged, or if its keys do not ascend.
    """
    content = read_small_file(path, _MAX_BYTES)
    if len(content) < _FOOTER_BYTES or content[-len(_MAGIC) :] != _MAGIC:
        raise DamagedModelFile(f"{path}: not a TensorFlow table, or truncated")
    try:
        return _Reader(path, content).entries()
    except (IndexError, struct.error) as error:
        # A number or key reaches beyond the end of its block.
        raise DamagedModelFile(f"{path}: a block of the table ends early: damaged?") from error


class _Reader:
    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path
        self._content = content

    def entries(self) -> dict[bytes, bytes]:
        footer = len(self._content) - _FOOTER_BYTES
        _, at = varint(self._content, footer)
        _, at = varint(self._content, at)
        index = self._block(*self._place(self._content, at))
        found: dict[bytes, bytes] = {}
        last, end = b"", 0
        for _, where in self._pairs(index):
            begin, nbytes = self._place(where, 0)
            # Ascending blocks cannot overlap, so no more than the file is read.
            if begin < end:
                raise self._bad("blocks overlap")
            end = begin + nbytes
            for key, value in self._pairs(self._block(begin, nbytes)):
                if found and key <= last:
                    raise self._bad(f"key {key[:80]!r} does not come after {last[:80]!r}")
                found[key] = value
                last = key
        return found

    def _bad(self, problem: str) -> BadModelFile:
        return DamagedModelFile(f"{self._path}: {problem}: damaged?")

    def _place(self, content: bytes, at: int) -> tuple[int, int]:
        begin, at = varint(content, at)
        nbytes, _ = varint(content, at)
        return begin, nbytes

    def _block(self, begin: int, nbytes: int) -> bytes:
        end = begin + nbytes
        if end + _TRAILER.size > len(self._content):
            raise self._bad(f"a block ends at byte {end} of {len(self._content)}")
        kind, checksum = _TRAILER.unpack_from(self._content, end)
        if kind:
            name = _COMPRESSIONS.get(kind, f"kind {kind}")
            raise BadModelFile(f"{self._path}: compressed by {name}, which is not supported")
        if checksum != _masked(_crc32c(self._content[begin : end + 1])):
            raise self._bad(f"the checksum of the block at byte {begin} is wrong")
        return self._content[begin:end]

    def _pairs(self, block: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values of a block; skips the restart points for binary search."""
        (restarts,) = struct.unpack_from("<I", block, len(block) - 4)
        end = len(block) - 4 * (1 + restarts)
        if end < 0:
            raise self._bad(f"{restarts} restart points in a block of {len(block)} bytes")
        at, key = 0, b""
        while at < end:
            shared, at = varint(block, at)
            rest, at = varint(block, at)
            nbytes, at = varint(block, at)
            if shared > len(key) or at + rest + nbytes > end:
                raise self._bad("an entry is longer than its block")
            if shared + rest > _MAX_KEY_BYTES:
                raise self._bad(f"a key of {shared + rest} bytes")
            key = key[:shared] + block[at : at + rest]
            at += rest
            yield key, block[at : at + nbytes]
            at += nbytes


def varint(content: bytes, at: int) -> tuple[int, int]:
    """Return the variable-length integer at `at` and its end.

    Each byte has seven bits, lowest first. Raises IndexError if the integer does not end within
    `content` or ten bytes.
    """
    value = 0
    for number, byte in enumerate(content[at : at + 10]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, at + number + 1
    raise IndexError


def _crc32c(content: bytes) -> int:
    """Return the CRC-32C of RFC 3720 (Castagnoli polynomial, reflected)."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _CRC_OF_BYTE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _crc_of_byte(byte: int) -> int:
    for _ in itertools.repeat(None, 8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC_OF_BYTE = [_crc_of_byte(byte) for byte in range(256)]


def _masked(crc: int) -> int:
    """Return the CRC as it is stored: rotated by 15 bits, plus a constant."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
