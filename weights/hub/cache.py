"""Downloads into a model's folder in huggingface_hub's cache.

The layout is that of huggingface_hub, so both programs find each other's files: `blobs/DIGEST` are
the contents, `snapshots/COMMIT/NAME` links to them, and `refs/REVISION` has the commit of a branch.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from swiftchat.errors import FileSystemError
from swiftchat.weights.files.disk import Progress, disk_full, is_disk_full, require_space
from swiftchat.weights.files.lock import exclusive_lock
from swiftchat.weights.hub.blobs import Blobs
from swiftchat.weights.hub.client import Hub
from swiftchat.weights.hub.listing import HubFile, Listing


class HubCache:
    """The folder of the model `repo` in the cache folder `root`."""

    def __init__(self, root: Path, repo: str) -> None:
        self._locks = root / ".locks"
        self.folder = root / f"models--{repo.replace('/', '--')}"
        self.blobs = Blobs(self.folder / "blobs")

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

        try:
            self._locks.mkdir(parents=True, exist_ok=True)
            with exclusive_lock(self._locks / self.folder.name, report_waiting):
                (self.folder / "blobs").mkdir(parents=True, exist_ok=True)
                self.blobs.remove_stale_parts(files)
                missing_bytes = self.blobs.missing_bytes(files)
                require_space(self.folder / "new", missing_bytes)
                self._download_all(hub, listing, files, progress)
                return self._link(listing, files)
        except OSError as error:
            if is_disk_full(error) and self.folder.is_dir():
                still_bytes = self.blobs.missing_bytes(files)
                free_bytes = shutil.disk_usage(self.folder).free
                raise disk_full(self.folder, still_bytes, free_bytes) from error
            raise FileSystemError(f"cannot store {listing.repo}: {error.strerror}") from error

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
            self.blobs.fetch(hub, listing, file, report)
            done_bytes += file.size_bytes
        report("downloading", 0)

    def _link(self, listing: Listing, files: Sequence[HubFile]) -> Path:
        snapshot = self.folder / "snapshots" / listing.commit
        # config.json last: it makes the directory a model.
        for file in sorted(files, key=lambda file: file.name == "config.json"):
            link = snapshot / file.name
            link.parent.mkdir(parents=True, exist_ok=True)
            target = os.path.relpath(self.blobs.path(file), link.parent)
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


def _symlink(link: Path, target: str) -> None:
    try:
        link.symlink_to(target)
    except OSError:
        # Without symbolic links huggingface_hub copies too.
        shutil.copyfile(link.parent / target, link)
