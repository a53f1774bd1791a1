"""The fields of a protobuf message, no more of the format than `tokenizer.model` uses."""

from collections.abc import Iterator

from swiftchat.errors import BadModelFile

__all__ = ["fields"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field, in the order of the file.

    A value is an int (varint) or bytes (length-delimited, or 4 or 8 bytes of fixed width).
    Every length is checked against what is there. Raises `BadModelFile` where it lies.
    """
    at = 0
    while at < len(data):
        # Almost all keys and lengths are of one byte.
        key, at = (data[at], at + 1) if data[at] < 0x80 else _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == _BYTES:
            short = at < len(data) and data[at] < 0x80
            size, at = (data[at], at + 1) if short else _varint(data, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise BadModelFile(f"tokenizer.model: wire type {wire} at byte {at} is none")
        if size > len(data) - at:
            raise BadModelFile(f"tokenizer.model: field {number} at byte {at} passes the end")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + place + 1
    raise BadModelFile(f"tokenizer.model: the number at byte {at} does not end")
