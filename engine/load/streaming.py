"""Bytes of files on their way to tensors on a device, through pinned buffers."""

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

T = TypeVar("T")

# Pinning memory takes longer than copying it, so buffers are few and small; at 16 MiB a copy to
# the GPU still takes some thirty times as long as its call.
STAGING_BYTES = 16 * 2**20
_BUFFERS_PER_READER = 2  # one is filled while the other travels
_MAX_READERS = 8  # a thread reads 4 to 8 GB/s out of the page cache; PCIe 5 takes some 50


@dataclass(frozen=True)
class Copy:
    """Bytes of a file for a flat tensor on the device; `dtype` is the file's.

    With `columns` (first, end) the bytes are rows, of which only these columns are wanted, and
    `target` [rows, columns] may be strided.
    """

    file: Path
    offset: int
    nbytes: int
    dtype: torch.dtype
    target: Tensor
    columns: tuple[int, int] | None = None

    @property
    def wanted_bytes(self) -> int:
        return self.target.numel() * self.dtype.itemsize


def stream_in(
    copies: Sequence[Copy],
    device: torch.device,
    on_progress: Callable[[int], None],
    num_readers: int | None = None,
    staging_bytes: int = STAGING_BYTES,
) -> None:
    """Carry out the copies: threads read files into staging buffers that travel meanwhile.

    Files are read rather than mapped: a read takes no page faults, whose locks threads would
    fight for, and one that fails is an error rather than a SIGBUS. `on_progress` gets the bytes
    done so far, in the calling thread. When this returns or raises, no thread is left and the
    device has finished. `staging_bytes` must be a multiple of 4. Raises `BadModelFile` for
    what cannot be read.
    """
    readers = num_readers or default_readers()
    free: SimpleQueue[_Staging] = SimpleQueue()
    with contextlib.ExitStack() as stack:
        opened = {file: stack.enter_context(_open(file)) for file in {c.file for c in copies}}
        buffers = [_Staging(device, staging_bytes) for _ in range(readers * _BUFFERS_PER_READER)]
        for buffer in buffers:
            stack.callback(buffer.wait)
            free.put(buffer)

        def carry(copy: Copy) -> int:
            buffer = free.get()
            try:
                buffer.wait()
                _read(copy, opened[copy.file], buffer.host)
                buffer.send(copy)
            finally:
                free.put(buffer)
            return copy.wanted_bytes

        pool = ThreadPoolExecutor(readers, "reader")
        stack.callback(pool.shutdown, cancel_futures=True)
        done_bytes = 0
        for job in [pool.submit(carry, piece) for piece in _pieces(copies, staging_bytes)]:
            done_bytes += job.result()
            on_progress(done_bytes)


def default_readers() -> int:
    """How many threads bring weights here."""
    return min(_MAX_READERS, os.cpu_count() or 1)


def run_ahead(
    jobs: Iterable[Callable[[], T]], num_threads: int, device: torch.device
) -> Generator[T, None, None]:
    """What the jobs return, in their order; threads do as many as they are in advance.

    What a job raises comes in its turn. Close it to be rid of the threads.
    """
    # A thread begins with the first GPU as its own; some of torch's kernels run on that one.
    begin = partial(torch.cuda.set_device, device) if device.type == "cuda" else None
    pool, waiting = ThreadPoolExecutor(num_threads, "reader", begin), deque[Future[T]]()
    try:
        for job in jobs:
            waiting.append(pool.submit(job))
            if len(waiting) > num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class _Staging:
    """A buffer of this machine's memory and, on a GPU, the stream on which it is emptied."""

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            # What the targets' memory was used for before must be over.
            self._stream.wait_stream(torch.cuda.current_stream(device))
        with self._streaming():
            pinned = self._stream is not None
            self.host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)

    def wait(self) -> None:
        """Until what was sent last has arrived, and the buffer may be filled again."""
        if self._stream is not None:
            self._stream.synchronize()

    def send(self, copy: Copy) -> None:
        """Begin to bring the buffer's content to the copy's target, in the target's dtype."""
        with self._streaming():
            source = self.host[: copy.nbytes].view(copy.dtype)
            # The GPU converts and cuts; torch would do it here, waiting.
            if copy.dtype != copy.target.dtype or copy.columns:
                source = source.to(self._device, non_blocking=True)
            if copy.columns:
                source = source.view(len(copy.target), -1)[:, slice(*copy.columns)]
            copy.target.copy_(source, non_blocking=True)

    def _streaming(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _pieces(copies: Iterable[Copy], most_bytes: int) -> Iterator[Copy]:
    """The copies cut into pieces of at most `most_bytes`."""
    for copy in copies:
        if copy.columns:
            yield from _pieces_of_rows(copy, most_bytes)
            continue
        size = copy.dtype.itemsize
        for start in range(0, copy.nbytes, most_bytes):
            nbytes = min(most_bytes, copy.nbytes - start)
            target = copy.target[start // size : (start + nbytes) // size]
            yield Copy(copy.file, copy.offset + start, nbytes, copy.dtype, target)


def _pieces_of_rows(copy: Copy, most_bytes: int) -> Iterator[Copy]:
    """Whole rows at a time: to read only the columns would take a call for every row."""
    assert copy.columns is not None
    row_bytes = copy.nbytes // len(copy.target)
    num_rows = most_bytes // row_bytes
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
        yield from _pieces([Copy(copy.file, begin, end - first, copy.dtype, target)], most_bytes)


@contextlib.contextmanager
def _open(file: Path) -> Iterator[int]:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise FileSystemError(f"cannot read {file}: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(copy: Copy, descriptor: int, buffer: Tensor) -> None:
    """The bytes of `copy` into the buffer; the GIL is free meanwhile."""
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
