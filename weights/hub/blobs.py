"""Files of the hub in a folder, named by their digests; interrupted downloads are continued."""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from swiftchat.errors import BadModelFile
from swiftchat.weights.hub.client import Hub, HubUnreachable
from swiftchat.weights.hub.listing import HubFile, Listing

_PART = ".swiftchat-part"  # not `.incomplete`, which belongs to huggingface_hub
_DAMAGED = ".damaged"
_MAX_RECONNECTS = 20

Report = Callable[[str, int], None]
"""Called with what happens to a file, "downloading" or "verifying", and the bytes done."""


class Blobs:
    """The files in `folder`. A file has its name when it is verified."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, file: HubFile) -> Path:
        """Return the place of a verified file."""
        return self._folder / file.digest

    def missing_bytes(self, files: Sequence[HubFile]) -> int:
        """Return the bytes of `files` that are not stored yet."""
        return sum(file.size_bytes - self._stored_bytes(file) for file in files)

    def remove_stale_parts(self, files: Sequence[HubFile]) -> None:
        """Remove partial files that are not in `files` or too long."""
        wanted = {self._part(file): file.size_bytes for file in files}
        for part in self._folder.glob(f"*{_PART}"):
            if part.stat().st_size > wanted.get(part, -1):
                part.unlink()

    def fetch(self, hub: Hub, listing: Listing, file: HubFile, report: Report) -> Path:
        """Return the path of a file, verified; downloads what is missing of it.

        Raises `HubUnreachable` after several connections without success, `BadModelFile` for a
        file that differs from the hub's list, which is set aside.
        """
        blob = self.path(file)
        if blob.exists():
            self._verify(file, blob, report)
            return blob
        self._download(hub, listing, file, report)
        self._verify(file, self._part(file), report)
        self._part(file).replace(blob)
        (self._folder / f"{file.digest}{_DAMAGED}").unlink(missing_ok=True)
        return blob

    def _download(self, hub: Hub, listing: Listing, file: HubFile, report: Report) -> None:
        """Complete the partial file; reconnects while each connection adds bytes."""
        part = self._part(file)
        part.touch()
        reconnects = 0
        while (before := part.stat().st_size) < file.size_bytes:
            try:
                self._append(hub, listing, file, report)
            except HubUnreachable as error:
                reconnects += 1
                if part.stat().st_size <= before or reconnects > _MAX_RECONNECTS:
                    hint = f"{error.hint}; the partial download is kept"
                    raise HubUnreachable(error.message, hint) from None

    def _append(self, hub: Hub, listing: Listing, file: HubFile, report: Report) -> None:
        with self._part(file).open("r+b") as out:
            offset = out.seek(0, os.SEEK_END)
            with hub.open(listing, file, offset) as (start, chunks):
                out.truncate(start)
                out.seek(start)
                for chunk in chunks:
                    if out.tell() + len(chunk) > file.size_bytes:
                        raise self._set_aside(
                            file, self._part(file), "it is longer than the hub lists"
                        )
                    out.write(chunk)
                    report("downloading", out.tell())
            if out.tell() < file.size_bytes:
                raise HubUnreachable(f"the hub sent {file.name} only in part")

    def _verify(self, file: HubFile, path: Path, report: Report) -> None:
        if not file.matches_file(path, lambda done_bytes: report("verifying", done_bytes)):
            kind = "SHA-256" if len(file.digest) == 64 else "git digest"
            raise self._set_aside(file, path, f"its {kind} is not {file.digest}")

    def _set_aside(self, file: HubFile, path: Path, problem: str) -> BadModelFile:
        """Rename a damaged file so that it is not used; returns the error to raise."""
        aside = path.with_name(f"{file.digest}{_DAMAGED}")
        path.replace(aside)
        return BadModelFile(
            f"{file.name}: {problem}; renamed to {aside}",
            "run the download again: it only downloads this file",
        )

    def _part(self, file: HubFile) -> Path:
        return self._folder / f"{file.digest}{_PART}"

    def _stored_bytes(self, file: HubFile) -> int:
        if self.path(file).exists():
            return file.size_bytes
        with contextlib.suppress(FileNotFoundError):
            return min(self._part(file).stat().st_size, file.size_bytes)
        return 0
