"""GGUF files written byte by byte, and invalid ones with the error that each must raise."""

import struct

U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10


def string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def tensor(
    name: str = "t", shape: tuple[int, ...] = (32, 2), type_id: int = 0, offset: int = 0
) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return string(name) + dims + struct.pack("<IQ", type_id, offset)


def build(
    pairs: list[bytes] = [],  # noqa: B006 - never changed
    tensors: list[bytes] = [],  # noqa: B006
    data: bytes = b"\0" * 256,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    num_tensors, num_pairs = counts or (len(tensors), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_pairs)
    head += b"".join(pairs) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + data


HUGE = struct.pack("<Q", 2**62)
INVALID: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a GGUF"),
    "magic only": (b"GGUF", "not a GGUF"),
    "other magic": (b"GGML" + bytes(60), "not a GGUF"),
    "web page": (b"<!DOCTYPE html><html></html>          ", "web page"),
    "git-lfs": (b"version https://git-lfs.example/spec/v1\noid", "git-lfs"),
    "version 1": (build(version=1), "version 1"),
    "big endian": (build(version=3 << 24), "big-endian"),
    "2^62 tensors": (build(counts=(2**62, 0)), "tensors, more than"),
    "2^62 pairs": (build(counts=(0, 2**62)), "pairs, more than"),
    "more pairs than bytes": (build(counts=(0, 60_000)), "fit into the file"),
    "more tensors than there are": (build(tensors=[tensor()], counts=(9, 0)), "fit|dimensions"),
    "49 bytes of array": (
        build(counts=(0, 1))[:24] + string("k") + struct.pack("<II", ARRAY, U8) + HUGE,
        "elements of k",
    ),
    "string array of 2^62": (
        build([pair("k", ARRAY, struct.pack("<I", STRING) + HUGE)]),
        "elements",
    ),
    "string of 2^62": (build([pair("k", STRING, HUGE)]), "k has"),
    "string beyond the end": (build([pair("k", STRING, struct.pack("<Q", 5000))]), "truncated"),
    "key of 2^62": (build([HUGE]), "metadata key"),
    "key of 2^64 - 1": (build([b"\xff" * 16]), "metadata key"),
    "arrays in arrays": (
        build([pair("k", ARRAY, struct.pack("<IQ", ARRAY, 1) * 9)]),
        "array of arrays",
    ),
    "unknown type": (build([pair("k", 77, bytes(8))]), "unknown type 77"),
    "unknown element type": (
        build([pair("k", ARRAY, struct.pack("<IQ", 77, 1) + bytes(8))]),
        "unknown type 77",
    ),
    "twice the same key": (build([pair("k", U8, b"\1"), pair("k", U8, b"\2")]), "k occurs twice"),
    "key that is not text": (build([pair(b"\xff\xfe", U8, b"\1")]), "not UTF-8"),
    "value that is not text": (build([pair("k", STRING, string(b"\xff\xfe"))]), "k is not UTF-8"),
    "item that is not text": (
        build([pair("k", ARRAY, struct.pack("<IQ", STRING, 1) + string(b"\xff"))]),
        "not UTF-8",
    ),
    "alignment 0": (build([pair("general.alignment", U32, bytes(4))]), "alignment"),
    "alignment 3": (build([pair("general.alignment", U32, b"\3\0\0\0")]), "alignment"),
    "alignment 2^31": (build([pair("general.alignment", U32, b"\0\0\0\x80")]), "alignment"),
    "alignment as text": (build([pair("general.alignment", STRING, string("32"))]), "alignment"),
    "no dimensions": (build(tensors=[tensor(shape=())]), "0 dimensions"),
    "2^32 - 1 dimensions": (
        build(tensors=[string("t") + b"\xff" * 4 + bytes(64)]),
        "4294967295 dimensions",
    ),
    "dimension of 2^62": (build(tensors=[tensor(shape=(2**62, 4))]), "truncated"),
    "product beyond 2^64": (build(tensors=[tensor(shape=(2**63, 2**63, 2, 2))]), "truncated"),
    "dimension of 0": (build(tensors=[tensor(shape=(32, 0))]), "no elements"),
    "part of a block": (build(tensors=[tensor(shape=(33, 1), type_id=8)]), "not a multiple of 32"),
    "offset beyond the end": (build(tensors=[tensor(offset=2**40)]), "truncated"),
    "offset of 2^64 - 32": (build(tensors=[tensor(offset=2**64 - 32)]), "truncated"),
    "odd offset": (build(tensors=[tensor(offset=7)]), "not a multiple"),
    "overlap": (build(tensors=[tensor(), tensor("u", offset=32)], data=bytes(999)), "overlap"),
    "twice the same tensor": (
        build(tensors=[tensor(), tensor(offset=256)], data=bytes(999)),
        "t occurs twice",
    ),
    "data cut short": (build(tensors=[tensor()], data=bytes(255)), "truncated"),
}
