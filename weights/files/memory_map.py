"""The memory of mapped files."""

import mmap

__all__ = ["give_back"]


def give_back(mapped: mmap.mmap) -> None:
    """Let the system take back the unwritten memory of a mapping, where it knows how."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)
