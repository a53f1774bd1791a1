"""KV blocks on disk: files of runs of blocks, found by content."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from swiftchat.engine.api.kv_folder import FILE_SUFFIX, KVFolder
from swiftchat.engine.kv_store.identity import CacheIdentity
from swiftchat.engine.kv_store.run_file import BadRunFile, RunFile, RunWriter, Views
from swiftchat.engine.kv_store.staging import Staging
from swiftchat.engine.kv_store.tier import StoredBlock
from swiftchat.engine.schedule.content import ContentIndex, Digest

_MAX_READERS = 8
Place = tuple[RunFile, int]


class Disk:
    """A tier of files in a folder that other engines may use at the same time.

    `warnings` has a line for each file that was damaged, foreign or stale and was removed.
    Raises `FileSystemError` if the folder cannot be used.
    """

    name = "disk"

    def __init__(self, folder: KVFolder, identity: CacheIdentity, staging: Staging) -> None:
        self.warnings: list[str] = []
        self.blocks_per_read = staging.num_blocks
        self._folder, self._identity, self._staging = folder, identity, staging
        self._path = folder.path / identity.key
        if self._path.exists():
            folder.create(identity.key)  # checks that it is private
        self._runs: dict[str, RunFile] = {}  # by name
        self._index: ContentIndex[Place] = ContentIndex()
        self._changed_ns = -1
        self._readers: ThreadPoolExecutor | None = None
        folder.remove_temporary()
        if removed := folder.remove_others(identity.model, identity.digest):
            files = f"{removed} file{'s' if removed > 1 else ''}"
            self.warnings.append(
                f"{files} of the KV cache on disk removed: {Path(identity.model).name} has changed"
            )

    @property
    def num_blocks(self) -> int:
        self.refresh()
        return sum(len(run.blocks) for run in self._runs.values())

    def refresh(self) -> None:
        """Find files that were added or removed since the last call."""
        try:
            changed_ns = self._path.stat().st_mtime_ns
        except OSError:  # removed by `swiftchat cache clear`, or no longer readable
            changed_ns = 0
        if changed_ns == self._changed_ns:
            return
        self._changed_ns = changed_ns
        present = {file.name: file for file in self._path.glob(f"*{FILE_SUFFIX}")}
        for name in self._runs.keys() - present.keys():
            self._forget(self._runs[name])
        for name in present.keys() - self._runs.keys():
            self._open(present[name])

    def find(self, parent: Digest, tokens: Sequence[int]) -> StoredBlock | None:
        found = self._index.longest(parent, tokens)
        if found is None:
            return None
        place, length = found
        run, index = place
        return StoredBlock(parent, run.blocks[index], length, place)

    def prefill_tokens_per_s(self, place: Place) -> float | None:
        """Return how fast the engine that wrote a block computed prompts, None if unknown."""
        text = place[0].metadata.get("prefill_tokens_per_s", "")
        return float(text) if text.replace(".", "", 1).isdecimal() else None

    def read(self, stored: Sequence[StoredBlock], blocks: Sequence[int]) -> int:
        """Read blocks from their files, several at a time; remove a damaged file."""
        views = self._staging.to_read(blocks)
        self._readers = self._readers or ThreadPoolExecutor(min(_MAX_READERS, os.cpu_count() or 1))
        places: list[Place] = [one.place for one in stored]
        errors = list(self._readers.map(_read, places, views))
        num_good = next((i for i, error in enumerate(errors) if error), len(errors))
        for (run, _), error in zip(places, errors, strict=True):
            if error is not None and run.path.name in self._runs:
                self._forget(run)
                self._remove(run.path, error)
        self._staging.finish_read(blocks[:num_good])
        self._touch(list(dict.fromkeys(run.path for run, _ in places)))
        return num_good

    def begin_run(
        self, parent: Digest, blocks: Sequence[Sequence[int]], prefill_tokens_per_s: float | None
    ) -> RunWriter:
        """Create the file of a run. Raises `FileSystemError`, OSError."""
        speed = f"{prefill_tokens_per_s:.1f}" if prefill_tokens_per_s else ""
        about = {**self._identity.about, "prefill_tokens_per_s": speed}
        folder = self._folder.create(self._identity.key)
        return RunWriter(folder, self._identity.layout, parent, blocks, about)

    def write(self, writer: RunWriter, block: int) -> None:
        """Append a block of the device to a run. Raises OSError."""
        writer.write(self._staging.to_write(block))

    def finish_run(self, writer: RunWriter) -> None:
        """Give the file its name, and evict others above the bound. Raises OSError."""
        self._open(writer.finish())
        self._folder.evict()

    def touch(self, stored: Sequence[StoredBlock]) -> None:
        """Count the files of these blocks, given in their order, as used now."""
        self._touch(list(dict.fromkeys(one.place[0].path for one in stored)))

    def _touch(self, paths: Sequence[Path]) -> None:
        # In reverse, so that the end of a prefix is evicted before its beginning.
        for path in reversed(paths):
            try:
                os.utime(path)
            except OSError:  # evicted by another engine
                continue

    def _open(self, path: Path) -> None:
        try:
            run = RunFile.open(path, self._identity.layout, {"key": self._identity.key})
        except FileNotFoundError:
            return
        except (BadRunFile, OSError) as error:
            self._remove(path, error)
            return
        self._runs[path.name] = run
        for index, (parent, tokens) in enumerate(zip(run.digests, run.blocks, strict=False)):
            if self._index.get(parent, tokens) is None:
                self._index.add(parent, tokens, (run, index))

    def _forget(self, run: RunFile) -> None:
        """Remove a file's blocks from the index."""
        del self._runs[run.path.name]
        for parent, tokens in zip(run.digests, run.blocks, strict=False):
            place = self._index.get(parent, tokens)
            if place is not None and place[0] is run:
                self._index.remove(parent, tokens)

    def _remove(self, path: Path, error: Exception) -> None:
        """Remove a file that cannot be used, with a warning unless it was removed already."""
        done = "ignored and removed"
        try:
            path.unlink()
        except FileNotFoundError:
            return
        except OSError:
            done = "ignored"
        reason = error.strerror if isinstance(error, OSError) else error
        self.warnings.append(f"a file of the KV cache on disk was {done}: {reason}")


def _read(place: Place, views: Views) -> Exception | None:
    run, index = place
    try:
        run.read(index, views)
    except (BadRunFile, OSError) as error:
        return error
    return None
