"""One answer as an HTTP response: as a whole, or as a stream of events."""

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from swiftchat.chat.endpoint.answers import Answers, Piece, pieces
from swiftchat.chat.endpoint.errors import ApiError, api_error
from swiftchat.chat.model.answer import Answer
from swiftchat.errors import SwiftchatError


class Format(ABC):
    """The JSON objects of an answer to one request, in the format of one kind of completion."""

    @abstractmethod
    def response(self, answer: Answer) -> dict[str, Any]:
        """Return the object of the whole answer."""

    @abstractmethod
    def first_chunk(self) -> dict[str, Any] | None:
        """Return the first object of a stream, None without one."""

    @abstractmethod
    def chunk(self, answer: Answer, piece: Piece) -> dict[str, Any]:
        """Return the object of a piece; called once for each, in order."""

    @abstractmethod
    def last_chunk(self, answer: Answer) -> dict[str, Any]:
        """Return the object with the reason of the end and the remaining logprobs."""

    @abstractmethod
    def usage_chunk(self, answer: Answer) -> dict[str, Any] | None:
        """Return the object with the numbers of tokens, None if it was not requested."""


def usage(answer: Answer) -> dict[str, Any]:
    """Return the numbers of tokens of an answer that has ended."""
    cached = answer.result.cached_tokens if answer.result else 0
    return {
        "prompt_tokens": answer.num_prompt_tokens,
        "completion_tokens": answer.num_tokens,
        "total_tokens": answer.num_prompt_tokens + answer.num_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": answer.num_reasoning_tokens},
    }


async def respond(
    request: Request,
    answers: Answers,
    start: Callable[[], Answer],
    form: Format,
    is_stream: bool,
) -> Response:
    """Answer a request; the generation is canceled when the client disconnects.

    Raises `ApiError` and `SwiftchatError` before the first byte.
    """
    stack = contextlib.AsyncExitStack()
    answer = await stack.enter_async_context(answers.open(start))
    if is_stream:
        return _EventStream(_events(answer, form), stack)
    async with stack:
        if not await _complete(request.receive, _all_pieces(answer)):
            raise ApiError(499, "the client has disconnected")
        return JSONResponse(form.response(answer))


class _EventStream(StreamingResponse):
    """A stream of server-sent events; `stack` is closed after it, or when the client disconnects.

    Starlette's own class may notice that only at the next event, after a long prefill.
    """

    def __init__(self, events: AsyncGenerator[str], stack: contextlib.AsyncExitStack) -> None:
        super().__init__(
            events, media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await _complete(receive, self.stream_response(send))


async def _all_pieces(answer: Answer) -> None:
    async for _ in pieces(answer):
        pass


async def _complete(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Complete the work and return True; cancel it if the client disconnects."""

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.create_task(work), asyncio.create_task(wait_for_disconnect())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        is_complete = tasks[0].done()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if is_complete:
        tasks[0].result()  # raises its error
    return is_complete


async def _events(answer: Answer, form: Format) -> AsyncGenerator[str]:
    """Yield the server-sent events of a stream; an error after the first byte is an event too."""
    try:
        if first := form.first_chunk():
            yield _event(first)
        async for piece in pieces(answer):
            if piece.text:
                yield _event(form.chunk(answer, piece))
        yield _event(form.last_chunk(answer))
        if last := form.usage_chunk(answer):
            yield _event(last)
    except SwiftchatError as error:
        yield _event(api_error(error).body)
    yield "data: [DONE]\n\n"


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
