"""Weight files on this machine of which only some bytes have been read from the hub."""

import struct
from collections.abc import Iterator
from pathlib import Path

from swiftchat.errors import DamagedModelFile
from swiftchat.weights.hub.client import Hub, HubUnreachable
from swiftchat.weights.hub.listing import HubFile, Listing

_MAX_HEADER_BYTES = 16 * 1024 * 1024


def write_skeleton(hub: Hub, listing: Listing, file: HubFile, path: Path, end_bytes: int) -> None:
    """Write a safetensors file with its header and `end_bytes` at both ends; the rest is a hole.

    The bytes are not verified. `path` appears when the file is complete.
    """
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as out:
        out.truncate(file.size_bytes)
        for part in _header_and_start(hub, listing, file, end_bytes):
            out.write(part)
        start = max(out.tell(), file.size_bytes - end_bytes)
        out.seek(start)
        for part in _bytes_of(hub, listing, file, start, file.size_bytes):
            out.write(part)
    new.replace(path)


def fill_skeleton(
    hub: Hub, listing: Listing, file: HubFile, path: Path, start: int, end: int
) -> None:
    """Write the bytes from `start` to `end` of the file into its skeleton."""
    with path.open("r+b") as out:
        out.seek(start)
        for part in _bytes_of(hub, listing, file, start, end):
            out.write(part)


def _header_and_start(
    hub: Hub, listing: Listing, file: HubFile, start_bytes: int
) -> Iterator[bytes]:
    found, wanted_bytes = bytearray(), max(8, min(start_bytes, file.size_bytes))
    for part in _bytes_of(hub, listing, file, 0, file.size_bytes):
        found += part
        if len(found) >= 8:
            (length,) = struct.unpack("<Q", found[:8])
            if length > min(_MAX_HEADER_BYTES, file.size_bytes - 8):
                raise DamagedModelFile(f"{file.name} of {listing.repo} is no safetensors file")
            wanted_bytes = max(wanted_bytes, 8 + length)
        if len(found) >= wanted_bytes:
            break
    yield bytes(found[:wanted_bytes])


def _bytes_of(hub: Hub, listing: Listing, file: HubFile, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a file from `start` to `end`; reconnects while bytes come.

    Raises `HubUnreachable`. A server that does not send ranges sends what precedes them too.
    """
    done = start
    while done < end:
        before = done
        try:
            with hub.open(listing, file, done) as (position, parts):
                for part in parts:
                    inner = part[max(0, done - position) : max(0, end - position)]
                    position += len(part)
                    done += len(inner)
                    if inner:
                        yield inner
                    if done >= end:
                        return
        except HubUnreachable:
            if done == before:
                raise
        if done == before:
            raise HubUnreachable(
                f"the hub sent {file.name} only in part", "run the same command again"
            )
