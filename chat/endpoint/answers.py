"""Answers on the event loop: started and iterated on threads, canceled with their request."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.reasoning import ReasoningText

_MAX_ANSWERS = 64  # running or waiting for the engine


@dataclass(frozen=True)
class Piece:
    """A piece of an answer, and the number of the answer's tokens up to its end."""

    text: str
    is_reasoning: bool
    num_tokens: int


class Answers:
    """Starts answers, a limited number at a time."""

    def __init__(self) -> None:
        self._num_open = 0
        # Rendering and encoding share caches of the tokenizer.
        self._encoding = threading.Lock()

    @contextlib.asynccontextmanager
    async def open(self, start: Callable[[], Answer]) -> AsyncGenerator[Answer]:
        """Call `start` on a thread and yield its answer; cancel it at the end.

        Raises `ApiError` if too many answers are open, and what `start` raises.
        """
        if self._num_open >= _MAX_ANSWERS:
            raise ApiError(503, f"{_MAX_ANSWERS} requests are already being answered", "busy")
        self._num_open += 1
        try:
            answer = await asyncio.to_thread(self._started, start)
            try:
                yield answer
            finally:
                answer.cancel()
        finally:
            self._num_open -= 1

    def _started(self, start: Callable[[], Answer]) -> Answer:
        with self._encoding:
            return start()


async def pieces(answer: Answer) -> AsyncGenerator[Piece]:
    """Iterate over an answer on a thread; yields its pieces, raises its error."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()

    def post(item: Piece | Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def iterate() -> None:
        try:
            for piece in answer:
                is_reasoning = isinstance(piece, ReasoningText)
                post(Piece(str(piece), is_reasoning, answer.num_tokens))
            post(None)
        except Exception as error:  # noqa: BLE001  (raised again on the event loop)
            post(error)

    threading.Thread(target=iterate, name="answer", daemon=True).start()
    while (item := await queue.get()) is not None:
        if isinstance(item, Exception):
            raise item
        yield item
