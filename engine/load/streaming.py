"""Byte ranges of files, copied to tensors on a device through pinned buffers."""

import contextlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch import Tensor

from swiftchat.errors import BadModelFile, FileSystemError
from swiftchat.errors.regular_file import open_regular

T = TypeVar("T")

# Pinning memory takes longer than copying it, so buffers are few and small; a copy of 16 MiB to
# the GPU still takes about thirty times as long as its call.
STAGING_BYTES = 16 * 2**20
_BUFFERS_PER_READER = 2  # one is filled while the other is uploaded
_MAX_READERS = 8  # a thread reads 4 to 8 GB/s from the page cache; PCIe 5 moves about 50


@dataclass(frozen=True)
class Copy:
    """A byte range of a file for a flat tensor on the device; `dtype` is the file's.

    With `columns` (first, end) the bytes are rows of which only these columns are copied, and
    `target` [rows, columns] may be strided.
    """

    file: Path
    offset: int
    nbytes: int
    dtype: torch.dtype
    target: Tensor
    columns: tuple[int, int] | None = None

    @property
    def target_bytes(self) -> int:
        """Bytes of the file that end up in the target."""
        return self.target.numel() * self.dtype.itemsize


def stream_in(
    copies: Sequence[Copy],
    device: torch.device,
    on_progress: Callable[[int], None],
    num_readers: int | None = None,
    staging_bytes: int = STAGING_BYTES,
) -> None:
    """Carry out the copies: threads read files into staging buffers while others are uploaded.

    Files are read rather than mapped: reads cause no page faults, whose locks threads contend for,
    and a failed read is an error instead of a SIGBUS. `on_progress` gets the bytes done so far, in
    the calling thread. When this returns or raises, all threads have ended and the device is idle.
    `staging_bytes` must be a multiple of 4. Raises `BadModelFile` for a read that fails.
    """
    readers = num_readers or default_readers()
    free: SimpleQueue[_StagingBuffer] = SimpleQueue()
    with contextlib.ExitStack() as stack:
        opened = {file: stack.enter_context(_open(file)) for file in {c.file for c in copies}}
        num_buffers = readers * _BUFFERS_PER_READER
        for buffer in [_StagingBuffer(device, staging_bytes) for _ in range(num_buffers)]:
            stack.callback(buffer.wait)
            free.put(buffer)

        def carry_out(copy: Copy) -> int:
            buffer = free.get()
            try:
                buffer.wait()
                _read(copy, opened[copy.file], buffer.host)
                buffer.upload(copy)
            finally:
                free.put(buffer)
            return copy.target_bytes

        pool = ThreadPoolExecutor(readers, "reader")
        stack.callback(pool.shutdown, cancel_futures=True)
        done_bytes = 0
        for job in [pool.submit(carry_out, chunk) for chunk in _chunks(copies, staging_bytes)]:
            done_bytes += job.result()
            on_progress(done_bytes)


def default_readers() -> int:
    """Return the number of threads that read weights."""
    return min(_MAX_READERS, os.cpu_count() or 1)


def run_ahead(
    jobs: Iterable[Callable[[], T]], num_threads: int, device: torch.device
) -> Generator[T, None, None]:
    """Yield the results of the jobs in order; `num_threads` threads compute that many ahead.

    An exception of a job is raised in its turn. Closing the generator ends the threads.
    """
    # A thread's current device is the first GPU; some of torch's kernels run on the current one.
    begin = partial(torch.cuda.set_device, device) if device.type == "cuda" else None
    pool, pending = ThreadPoolExecutor(num_threads, "reader", begin), deque[Future[T]]()
    try:
        for job in jobs:
            pending.append(pool.submit(job))
            if len(pending) > num_threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class _StagingBuffer:
    """A buffer in host memory and, for a GPU, the stream that uploads it."""

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            # Earlier uses of the targets' memory must have ended.
            self._stream.wait_stream(torch.cuda.current_stream(device))
        with self._on_stream():
            is_pinned = self._stream is not None
            self.host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=is_pinned)

    def wait(self) -> None:
        """Wait until the last upload has ended and the buffer may be filled again."""
        if self._stream is not None:
            self._stream.synchronize()

    def upload(self, copy: Copy) -> None:
        """Start copying the buffer to the copy's target, in the target's dtype."""
        with self._on_stream():
            source = self.host[: copy.nbytes].view(copy.dtype)
            # The GPU converts and slices; on the host torch would block.
            if copy.dtype != copy.target.dtype or copy.columns:
                source = source.to(self._device, non_blocking=True)
            if copy.columns:
                source = source.view(len(copy.target), -1)[:, slice(*copy.columns)]
            copy.target.copy_(source, non_blocking=True)

    def _on_stream(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _chunks(copies: Iterable[Copy], max_bytes: int) -> Iterator[Copy]:
    """Split the copies into copies of at most `max_bytes`."""
    for copy in copies:
        if copy.columns:
            yield from _row_chunks(copy, max_bytes)
            continue
        size = copy.dtype.itemsize
        for start in range(0, copy.nbytes, max_bytes):
            nbytes = min(max_bytes, copy.nbytes - start)
            target = copy.target[start // size : (start + nbytes) // size]
            yield Copy(copy.file, copy.offset + start, nbytes, copy.dtype, target)


def _row_chunks(copy: Copy, max_bytes: int) -> Iterator[Copy]:
    """Split by whole rows: to read only the columns would take one call per row."""
    assert copy.columns is not None
    row_bytes = copy.nbytes // len(copy.target)
    num_rows = max_bytes // row_bytes
    if num_rows:
        for row in range(0, len(copy.target), num_rows):
            target = copy.target[row : row + num_rows]
            yield Copy(
                copy.file,
                copy.offset + row * row_bytes,
                len(target) * row_bytes,
                copy.dtype,
                target,
                copy.columns,
            )
        return
    first, end = (column * copy.dtype.itemsize for column in copy.columns)
    for row, target in enumerate(copy.target):
        begin = copy.offset + row * row_bytes + first
        yield from _chunks([Copy(copy.file, begin, end - first, copy.dtype, target)], max_bytes)


@contextlib.contextmanager
def _open(file: Path) -> Iterator[int]:
    try:
        opened = open_regular(file)
    except OSError as error:
        raise FileSystemError.reading(file, error) from error
    with opened:
        yield opened.fileno()


def _read(copy: Copy, descriptor: int, buffer: Tensor) -> None:
    """Read the bytes of `copy` into the buffer, without holding the GIL."""
    rest = buffer.numpy().data[: copy.nbytes]
    offset = copy.offset
    while rest:
        try:
            count = os.preadv(descriptor, [rest], offset)
        except OSError as error:
            raise BadModelFile(f"cannot read {copy.file}: {error.strerror}") from error
        if not count:
            raise BadModelFile(f"{copy.file} ends at byte {offset}, before its tensors do")
        rest, offset = rest[count:], offset + count
