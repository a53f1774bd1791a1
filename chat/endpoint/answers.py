"""Answers on the event loop: started and iterated on threads, canceled with their request."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.reasoning import ReasoningText

_MAX_ANSWERS = 64  # running or waiting for the engine


class Job(Protocol):
    """What a request makes the engine compute: an answer, or embeddings."""

    def cancel(self) -> None: ...


OneJob = TypeVar("OneJob", bound=Job)


@dataclass(frozen=True)
class Piece:
    """A piece of an answer, and the number of the answer's tokens up to its end."""

    text: str
    is_reasoning: bool
    num_tokens: int


class Answers:
    """Starts answers and other jobs, a limited number at a time."""

    def __init__(self) -> None:
        self._num_open = 0
        # Rendering and encoding share caches of the tokenizer.
        self._encoding = threading.Lock()

    @contextlib.asynccontextmanager
    async def open(
        self, start: Callable[[], OneJob], num_answers: int = 1
    ) -> AsyncGenerator[OneJob]:
        """Call `start` on a thread and yield its job, of `num_answers`; cancel it at the end.

        Raises `ApiError` if too many answers are open, and what `start` raises.
        """
        if self._num_open + num_answers > _MAX_ANSWERS:
            message = f"{self._num_open} of at most {_MAX_ANSWERS} answers are being generated"
            raise ApiError(503, message, "busy")
        self._num_open += num_answers
        try:
            job = await asyncio.to_thread(self._started, start)
            try:
                yield job
            finally:
                job.cancel()
        finally:
            self._num_open -= num_answers

    def _started(self, start: Callable[[], OneJob]) -> OneJob:
        with self._encoding:
            return start()


async def pieces(answers: Sequence[Answer]) -> AsyncGenerator[tuple[int, Piece | None]]:
    """Iterate over answers, each on a thread; yields their pieces as they come, with the index.

    None is the end of an answer. Raises the first error of any.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[int, Piece | Exception | None]] = asyncio.Queue()

    def post(index: int, item: Piece | Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(queue.put_nowait, (index, item))

    def iterate(index: int, answer: Answer) -> None:
        try:
            for piece in answer:
                is_reasoning = isinstance(piece, ReasoningText)
                post(index, Piece(str(piece), is_reasoning, answer.num_tokens))
            post(index, None)
        except Exception as error:  # noqa: BLE001  (raised again on the event loop)
            post(index, error)

    for numbered in enumerate(answers):
        threading.Thread(target=iterate, args=numbered, name="answer", daemon=True).start()
    num_running = len(answers)
    while num_running:
        index, item = await queue.get()
        if isinstance(item, Exception):
            raise item
        num_running -= item is None
        yield index, item
