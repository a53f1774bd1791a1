"""Downloads into a model's folder in huggingface_hub's cache.

The layout is that of huggingface_hub, so both programs find each other's files: `blobs/DIGEST` are
the contents, `snapshots/COMMIT/NAME` links to them, and `refs/REVISION` has the commit of a branch.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from swiftchat.errors import BadModelFile, FileSystemError
from swiftchat.weights.files.disk import Progress, disk_full, require_space
from swiftchat.weights.files.lock import exclusive_lock
from swiftchat.weights.hub.client import Hub, HubUnreachable
from swiftchat.weights.hub.listing import HubFile, Listing

_PART = ".swiftchat-part"  # not `.incomplete`, which belongs to huggingface_hub
_DAMAGED = ".damaged"
_MAX_RECONNECTS = 20
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class HubCache:
    """The folder of the model `repo` in the cache folder `root`."""

    def __init__(self, root: Path, repo: str) -> None:
        self._locks = root / ".locks"
        self.folder = root / f"models--{repo.replace('/', '--')}"
        self._blobs = self.folder / "blobs"

    def missing_bytes(self, files: Sequence[HubFile]) -> int:
        """Return the bytes of `files` that are not stored yet."""
        return sum(file.size_bytes - self._stored_bytes(file) for file in files)

    def download(
        self, hub: Hub, listing: Listing, files: Sequence[HubFile], progress: Progress | None
    ) -> Path:
        """Download and verify `files`; returns their directory.

        Resumes an interrupted download. The directory gets its files when all are verified. Waits
        for another process that downloads the same model.
        """

        def report_waiting() -> None:
            if progress:
                progress(f"waiting for another process that downloads {listing.repo}", 0, 0)

        missing_bytes = 0
        try:
            self._locks.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(self._locks / self.folder.name, report_waiting):
                self._blobs.mkdir(parents=True, exist_ok=True)
                self._remove_stale_parts(files)
                missing_bytes = self.missing_bytes(files)
                require_space(self._blobs / "new", missing_bytes)
                self._download_all(hub, listing, files, progress)
                return self._link(listing, files)
        except OSError as error:
            if error.errno in _DISK_FULL and self.folder.is_dir():
                still_bytes = self.missing_bytes(files)
                free_bytes = shutil.disk_usage(self.folder).free
                raise disk_full(self.folder, still_bytes, free_bytes) from error
            raise FileSystemError(f"cannot store {listing.repo}: {error.strerror}") from error

    def _remove_stale_parts(self, files: Sequence[HubFile]) -> None:
        """Remove partial files that are not in `files` or too long."""
        wanted = {self._part(file): file.size_bytes for file in files}
        for part in self._blobs.glob(f"*{_PART}"):
            if part.stat().st_size > wanted.get(part, -1):
                part.unlink()

    def _download_all(
        self, hub: Hub, listing: Listing, files: Sequence[HubFile], progress: Progress | None
    ) -> None:
        total_bytes = sum(file.size_bytes for file in files)
        done_bytes = 0

        def report(label: str, file_bytes: int) -> None:
            if progress:
                progress(f"{label} {listing.repo}", done_bytes + file_bytes, total_bytes)

        # Small files first: they reveal most problems of a model.
        for file in sorted(files, key=lambda file: file.size_bytes):
            blob = self._blobs / file.digest
            if not blob.exists():
                self._download_part(hub, listing, file, report)
                self._verify(file, self._part(file), report)
                self._part(file).replace(blob)
                (self._blobs / f"{file.digest}{_DAMAGED}").unlink(missing_ok=True)
            else:
                self._verify(file, blob, report)
            done_bytes += file.size_bytes
        report("downloading", 0)

    def _download_part(
        self, hub: Hub, listing: Listing, file: HubFile, report: Callable[[str, int], None]
    ) -> None:
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

    def _append(
        self, hub: Hub, listing: Listing, file: HubFile, report: Callable[[str, int], None]
    ) -> None:
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

    def _verify(self, file: HubFile, path: Path, report: Callable[[str, int], None]) -> None:
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

    def _link(self, listing: Listing, files: Sequence[HubFile]) -> Path:
        snapshot = self.folder / "snapshots" / listing.commit
        # config.json last: it makes the directory a model.
        for file in sorted(files, key=lambda file: file.name == "config.json"):
            link = snapshot / file.name
            link.parent.mkdir(parents=True, exist_ok=True)
            target = os.path.relpath(self._blobs / file.digest, link.parent)
            if not (link.is_symlink() and str(link.readlink()) == target):
                link.unlink(missing_ok=True)
                _symlink(link, target)
        if listing.revision != listing.commit:
            ref = self.folder / "refs" / listing.revision
            ref.parent.mkdir(parents=True, exist_ok=True)
            new = ref.with_name(f"{ref.name}.new")
            new.write_text(listing.commit)
            new.replace(ref)
        return snapshot

    def _part(self, file: HubFile) -> Path:
        return self._blobs / f"{file.digest}{_PART}"

    def _stored_bytes(self, file: HubFile) -> int:
        if (self._blobs / file.digest).exists():
            return file.size_bytes
        with contextlib.suppress(FileNotFoundError):
            return min(self._part(file).stat().st_size, file.size_bytes)
        return 0


def _symlink(link: Path, target: str) -> None:
    try:
        link.symlink_to(target)
    except OSError:
        # Without symbolic links huggingface_hub copies too.
        shutil.copyfile(link.parent / target, link)
