"""Writes the blocks of conversations to the disk, one block at a time."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from swiftchat.engine.kv_store.disk import Disk
from swiftchat.engine.kv_store.run_file import RunWriter
from swiftchat.engine.kv_store.speeds import Speeds
from swiftchat.engine.schedule.blocks import BlockAllocator
from swiftchat.engine.schedule.content import Digest, content_digest
from swiftchat.errors import FileSystemError

_MAX_RUN_BLOCKS = 16


@dataclass
class _Queued:
    """Tokens whose full blocks are to be written; the first `num_written` are in finished files."""

    root: Digest
    tokens: Sequence[int]
    num_written: int = 0


@dataclass
class _Run:
    """A file that is being written, and the contents of its blocks that are not.

    Its blocks hold the tokens up to `end`.
    """

    writer: RunWriter
    contents: deque[tuple[Digest, Sequence[int]]]
    end: int


class RunSaver:
    """Writes full blocks that the disk does not have, in files of at most 16 blocks.

    Blocks that the device evicts before they are written are left out. After an error nothing
    more is written.
    """

    def __init__(self, allocator: BlockAllocator, disk: Disk, speeds: Speeds) -> None:
        self._allocator, self._disk, self._speeds = allocator, disk, speeds
        self._waiting: deque[_Queued] = deque()
        self._run: _Run | None = None
        self._failed = False

    @property
    def has_work(self) -> bool:
        return bool(self._run or self._waiting)

    def add(self, root: Digest, tokens: Sequence[int]) -> None:
        """Queue the full blocks of these tokens."""
        if not self._failed and len(tokens) >= self._allocator.block_size:
            self._waiting.append(_Queued(root, tuple(tokens)))

    def write_next(self) -> None:
        """Begin a file, write one block of it, or finish it."""
        try:
            if self._run is None:
                self._begin(self._waiting.popleft())
            else:
                self._continue(self._run)
        except (FileSystemError, OSError) as error:
            self._abandon()
            if isinstance(error, FileNotFoundError):  # `swiftchat cache clear` removed the folder
                return
            self._failed = True
            self._waiting.clear()
            reason = error.strerror if isinstance(error, OSError) else error.message
            self._disk.warnings.append(f"the KV cache is not written to the disk: {reason}")

    def _begin(self, queued: _Queued) -> None:
        """Create the file of the first blocks that are not on disk; queue the rest again."""
        self._disk.refresh()
        tokens, size = queued.tokens, self._allocator.block_size
        parent, known = queued.root, []
        run: list[tuple[Digest, Sequence[int]]] = []
        for start in range(0, len(tokens) - size + 1, size):
            block_tokens = tokens[start : start + size]
            on_disk = self._disk.find(parent, block_tokens)
            if on_disk is not None and on_disk.num_matching == size:
                if run:
                    break
                known.append(on_disk)
            elif (
                start < queued.num_written  # evicted already: the folder has no room for all
                or len(run) == _MAX_RUN_BLOCKS
                or self._allocator.find(parent, block_tokens) is None
            ):
                break
            else:
                run.append((parent, block_tokens))
            parent = content_digest(parent, block_tokens)
        self._disk.touch(known)
        if run:
            self._waiting.appendleft(queued)
            blocks = [block_tokens for _, block_tokens in run]
            writer = self._disk.begin_run(run[0][0], blocks, self._speeds.prefill)
            end = (len(known) + len(run)) * size
            self._run = _Run(writer, deque(run), end)

    def _continue(self, run: _Run) -> None:
        if not run.contents:
            self._waiting[0].num_written = run.end
            self._disk.finish_run(run.writer)
            self._run = None
            return
        block = self._allocator.find(*run.contents.popleft())
        if block is None:  # evicted meanwhile
            self._abandon()
            self._waiting.popleft()
        else:
            self._disk.write(run.writer, block)

    def _abandon(self) -> None:
        if self._run is not None:
            self._run.writer.abandon()
            self._run = None
