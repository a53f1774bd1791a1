"""The answers to a request as an HTTP response: as a whole, or as a stream of events."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.responses import Response as HttpResponse
from starlette.types import Receive, Scope, Send

from swiftchat.chat.endpoint.answers import Answers, Post, posted
from swiftchat.chat.endpoint.choice import Choice, Response
from swiftchat.chat.endpoint.errors import ApiError, api_error
from swiftchat.chat.endpoint.requests import GenerationRequest
from swiftchat.chat.model.answer_group import AnswerGroup

HEARTBEAT_S = 10.0  # without an event, after which a heartbeat shows that the stream lives

T = TypeVar("T")


async def respond(
    request: Request,
    answers: Answers,
    start: Callable[[], AnswerGroup],
    response: Response,
    body: GenerationRequest,
) -> HttpResponse:
    """Answer a request; the generation is canceled when the client disconnects.

    Raises before the first byte whatever makes the answers fail until then.
    """
    stack = contextlib.AsyncExitStack()
    group = await stack.enter_async_context(answers.open(start, body.num_answers))
    if body.stream:
        return _EventStream(_events(group, response, request.url.path), stack)
    async with stack:
        choices: list[Choice] = []
        await complete(request, _complete_all(group, response, choices))
        return JSONResponse(response.whole(choices))


async def complete(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Complete the work and return its result.

    Cancel it and raise `ApiError` if the client disconnects.
    """
    results: list[T] = []

    async def keep() -> None:
        results.append(await work)

    if not await _complete(request.receive, keep()):
        raise ApiError(499, "the client has disconnected")
    return results[0]


class _EventStream(StreamingResponse):
    """A stream of server-sent events; `stack` is closed after it, or when the client disconnects.

    Starlette's own class may notice that only at the next event, after a long prefill.
    """

    def __init__(self, events: AsyncGenerator[bytes], stack: contextlib.AsyncExitStack) -> None:
        super().__init__(
            events, media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await _complete(receive, self.stream_response(send))


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


async def _complete_all(group: AnswerGroup, response: Response, choices: list[Choice]) -> None:
    """Complete the answers of a group and append them to `choices`."""
    while new := _next_choices(group, response, choices):
        async for _ in posted([partial(_complete_one, choice) for choice in new]):
            pass


def _complete_one(choice: Choice, post: Post[None]) -> None:
    choice.answer.complete()


async def _events(group: AnswerGroup, response: Response, path: str) -> AsyncGenerator[bytes]:
    """Yield the server-sent events of a stream; any error after the first byte is an event too."""
    choices: list[Choice] = []
    try:
        while new := _next_choices(group, response, choices):
            streams = [partial(_stream, choice, response) for choice in new]
            async for event in posted(streams, HEARTBEAT_S):
                yield event or response.heartbeat
        for event in response.last_events(choices):
            yield event
    except Exception as error:  # noqa: BLE001  (no error cuts the stream)
        yield response.failed(api_error(error, path))
    if response.done:
        yield response.done


def _next_choices(group: AnswerGroup, response: Response, choices: list[Choice]) -> list[Choice]:
    """Append the next answers that can be iterated to `choices`, and return them.

    First those that were started, then the further beams of a search that has ended.
    """
    found = list(group)[len(choices) :] if choices else group.started
    new = [response.choice(len(choices) + i, answer) for i, answer in enumerate(found)]
    choices += new
    return new


def _stream(choice: Choice, response: Response, post: Post[bytes]) -> None:
    """Post the events of an answer as it comes."""

    def send(found: Iterator[dict[str, Any]]) -> None:
        for value in found:
            post(response.event(value))

    send(choice.begin())
    for piece in choice.answer:
        send(choice.push(piece))
    send(choice.end())
