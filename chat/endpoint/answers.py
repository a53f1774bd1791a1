"""Work for requests: a limited number of jobs, on threads, canceled with their request."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from swiftchat.chat.endpoint.errors import ApiError

_MAX_ANSWERS = 64  # running or waiting for the engine


class Job(Protocol):
    """What a request makes the engine compute: an answer, or embeddings."""

    def cancel(self) -> None: ...


OneJob = TypeVar("OneJob", bound=Job)
T = TypeVar("T")
Post = Callable[[T], None]


class Answers:
    """Starts answers and other jobs, a limited number at a time."""

    def __init__(self) -> None:
        self._num_open = 0
        # Rendering and encoding share caches of the tokenizer: one at a time, in order.
        self._encoder = ThreadPoolExecutor(1, "encoder")

    @contextlib.asynccontextmanager
    async def open(
        self, start: Callable[[], OneJob], num_answers: int = 1
    ) -> AsyncGenerator[OneJob]:
        """Call `start` as `encoded` does and yield its job, of `num_answers`; cancel it at the end.

        Raises `ApiError` if too many answers are open, and what `start` raises.
        """
        if self._num_open + num_answers > _MAX_ANSWERS:
            message = f"{self._num_open} of at most {_MAX_ANSWERS} answers are being generated"
            raise ApiError(503, message, "busy")
        self._num_open += num_answers
        try:
            job = await self.encoded(start)
            try:
                yield job
            finally:
                job.cancel()
        finally:
            self._num_open -= num_answers

    async def encoded(self, encode: Callable[[], T]) -> T:
        """Return what a function returns that renders or encodes text."""
        return await asyncio.get_running_loop().run_in_executor(self._encoder, encode)


async def posted(
    works: Sequence[Callable[[Post[T]], None]], silence_s: float | None = None
) -> AsyncGenerator[T | None]:
    """Do each work on a thread of its own, and yield what they post until all have ended.

    None stands for `silence_s` seconds without anything. Raises the first error of any.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[T] | BaseException | None] = asyncio.Queue()

    def post(item: tuple[T] | BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def run(work: Callable[[Post[T]], None]) -> None:
        end: BaseException | None = None
        try:
            work(lambda item: post((item,)))
        except BaseException as error:  # noqa: BLE001  (raised again on the event loop)
            end = error if isinstance(error, Exception) else RuntimeError(repr(error))
        post(end)

    for work in works:
        threading.Thread(target=run, args=(work,), name="answer", daemon=True).start()
    num_running = len(works)
    while num_running:
        try:
            async with asyncio.timeout(silence_s):
                item = await queue.get()
        except TimeoutError:
            yield None
            continue
        match item:
            case BaseException():
                raise item
            case None:
                num_running -= 1
            case (found,):
                yield found
