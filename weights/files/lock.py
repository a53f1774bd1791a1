"""One process at a time for work on one path."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["exclusive_lock"]


@contextmanager
def exclusive_lock(path: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock that belongs to `path`, a hidden file beside it, without a time limit.

    `waiting` is called once when another process holds it. The lock's file is removed at the
    end: who waits for it notices that and takes a new one (filelock from 3.24 on).
    """
    # Here, not at the top: every start of the program would wait for it.
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
        # Where a system keeps an open file from being removed it stays behind, empty.
        with contextlib.suppress(OSError):
            lock_path.unlink()
        lock.release()
