"""Locks between processes."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusive_lock(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of `path`, a hidden file beside it; wait for it without a time limit.

    `waiting` is called once if another process holds the lock. The lock file is removed at the
    end; filelock (from version 3.24) detects that in a waiting process and creates a new one.
    """
    # Imported here to keep the start of the program fast.
    from filelock import FileLock, Timeout

    lock_path = path.with_name(f".{path.name}.lock")
    lock = FileLock(lock_path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if waiting:
            waiting()
        lock.acquire()
    try:
        yield
    finally:
        # Systems that do not remove open files leave an empty file behind.
        with contextlib.suppress(OSError):
            lock_path.unlink()
        lock.release()
