"""The answers to a request as an HTTP response: as a whole, or as a stream of events."""

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from swiftchat.chat.endpoint.answers import Answers, Piece, pieces
from swiftchat.chat.endpoint.errors import ApiError, api_error
from swiftchat.chat.endpoint.requests import GenerationRequest
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.answer_group import AnswerGroup
from swiftchat.errors import SwiftchatError

T = TypeVar("T")


@dataclass
class Choice:
    """One of the answers of a response.

    `num_reported` of its tokens have been sent with their logprobs, whose text has `num_chars`.
    """

    index: int
    answer: Answer
    num_reported: int = 0
    num_chars: int = 0


class Format(ABC):
    """The JSON objects of the answers to one request, in the format of one kind of completion."""

    @abstractmethod
    def response(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Return the object of all answers, which have ended."""

    @abstractmethod
    def first_chunk(self, choice: Choice) -> dict[str, Any] | None:
        """Return the first object of an answer in a stream, None without one."""

    @abstractmethod
    def chunk(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        """Return the object of a piece; called once for each, in order."""

    @abstractmethod
    def last_chunk(self, choice: Choice) -> dict[str, Any]:
        """Return the object with the reason of the end and the remaining logprobs."""

    @abstractmethod
    def usage_chunk(self, choices: Sequence[Choice]) -> dict[str, Any] | None:
        """Return the object with the numbers of tokens, None if it was not requested."""


def usage(choices: Sequence[Choice]) -> dict[str, Any]:
    """Return the numbers of tokens of answers that have ended; their prompt counts once."""
    answers = [choice.answer for choice in choices]
    first = answers[0]
    num_tokens = sum(answer.num_tokens for answer in answers)
    num_reasoning = sum(answer.num_reasoning_tokens for answer in answers)
    cached = first.result.cached_tokens if first.result else 0
    dropped = first.num_left_out + sum(answer.num_slid for answer in answers)
    return {
        "prompt_tokens": first.num_prompt_tokens,
        "completion_tokens": num_tokens,
        "total_tokens": first.num_prompt_tokens + num_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": num_reasoning},
        **({"dropped_tokens": dropped} if dropped else {}),
    }


def finish_reason(answer: Answer) -> str | None:
    """Return the reason in OpenAI's words: an answer that repeated itself was cut off."""
    return "length" if answer.finish_reason == "loop" else answer.finish_reason


async def respond(
    request: Request,
    answers: Answers,
    start: Callable[[], AnswerGroup],
    form: Format,
    body: GenerationRequest,
) -> Response:
    """Answer a request; the generation is canceled when the client disconnects.

    Raises `ApiError` and `SwiftchatError` before the first byte.
    """
    stack = contextlib.AsyncExitStack()
    group = await stack.enter_async_context(answers.open(start, body.num_answers))
    if body.stream:
        return _EventStream(_events(group, form), stack)
    async with stack:
        choices: list[Choice] = []
        await complete(request, _complete_all(group, choices))
        return JSONResponse(form.response(choices))


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

    def __init__(self, events: AsyncGenerator[str], stack: contextlib.AsyncExitStack) -> None:
        super().__init__(
            events, media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await _complete(receive, self.stream_response(send))


async def _complete_all(group: AnswerGroup, choices: list[Choice]) -> None:
    """Complete the answers of a group and append them to `choices`."""
    async for _ in _choice_pieces(group, choices):
        pass


async def _choice_pieces(
    group: AnswerGroup, choices: list[Choice]
) -> AsyncGenerator[tuple[Choice, Literal["begin", "end"] | Piece]]:
    """Yield the pieces of all answers as they come; append each new answer to `choices`."""
    started: Sequence[Answer] = group.started
    while started:
        new = [Choice(len(choices) + i, answer) for i, answer in enumerate(started)]
        choices += new
        for choice in new:
            yield choice, "begin"
        async for index, piece in pieces(started):
            yield new[index], "end" if piece is None else piece
        started = list(group)[len(choices) :]  # further beams, when the search has ended


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


async def _events(group: AnswerGroup, form: Format) -> AsyncGenerator[str]:
    """Yield the server-sent events of a stream; an error after the first byte is an event too."""
    choices: list[Choice] = []
    try:
        async for choice, piece in _choice_pieces(group, choices):
            if chunk := _chunk(form, choice, piece):
                yield _event(chunk)
        if last := form.usage_chunk(choices):
            yield _event(last)
    except SwiftchatError as error:
        yield _event(api_error(error).body)
    yield "data: [DONE]\n\n"


def _chunk(
    form: Format, choice: Choice, piece: Literal["begin", "end"] | Piece
) -> dict[str, Any] | None:
    if piece == "begin":
        return form.first_chunk(choice)
    if piece == "end":
        return form.last_chunk(choice)
    return form.chunk(choice, piece) if piece.text else None


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
