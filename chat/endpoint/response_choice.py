"""`POST /v1/responses`: an answer as output items, whole or as a stream of typed events."""

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

from swiftchat.chat.endpoint.choice import Choice, Response, event_bytes, usage
from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.endpoint.logprobs import ChatLogprobs
from swiftchat.chat.endpoint.parted_choice import Part, PartedChoice
from swiftchat.chat.endpoint.response_items import new_id
from swiftchat.chat.endpoint.response_request import ResponseRequest
from swiftchat.chat.endpoint.response_store import StoredResponse, StoredResponses
from swiftchat.chat.model.answer import Answer
from swiftchat.tokenizer import Tokenizer

_PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}
# The events of a part's text: what is added, and the whole.
_TEXTS = {
    "reasoning": ("response.reasoning_text", "text"),
    "text": ("response.output_text", "text"),
    "call": ("response.function_call_arguments", "arguments"),
}


class ItemsResponse(Response):
    """The response of `/v1/responses`, which is stored when it has ended, unless `store` is false.

    The events of a stream have consecutive numbers.
    """

    def __init__(
        self, model: str, tokenizer: Tokenizer, request: ResponseRequest, stored: StoredResponses
    ) -> None:
        self._tokenizer, self._request, self._stored = tokenizer, request, stored
        self._numbers = itertools.count()
        self._common = _common(model, request)

    def choice(self, index: int, answer: Answer) -> Choice:
        return ItemsChoice(index, answer, self, self._tokenizer)

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        return choices[0].whole()

    def event(self, value: dict[str, Any]) -> bytes:
        return event_bytes({**value, "sequence_number": next(self._numbers)}, value["type"])

    def failed(self, error: ApiError) -> bytes:
        reason = {"code": "server_error", "message": error.message}
        failed = {**self.object("failed"), "error": reason}
        return self.event({"type": "response.failed", "response": failed})

    def object(self, status: str) -> dict[str, Any]:
        """Return the object of a response that has no output yet."""
        return {**self._common, "status": status}

    def ended(self, answer: Answer, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the object of a response whose answer has ended, and store it."""
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        ended = {
            **self.object(status),
            "completed_at": int(time.time()) if status == "completed" else None,
            "incomplete_details": details,
            "output": output,
            "usage": _items_usage(answer),
        }
        if self._request.store is not False:
            self._stored.add(StoredResponse(ended, self._request.input_items))
        return ended


class ItemsChoice(PartedChoice):
    """The answer of a response; each part is an output item."""

    def __init__(
        self, index: int, answer: Answer, response: ItemsResponse, tokenizer: Tokenizer
    ) -> None:
        super().__init__(index, answer)
        self._response = response
        self._logprobs = ChatLogprobs(answer, tokenizer)
        self._text_logprobs: dict[int, list[dict[str, Any]]] = {}  # by the number of a part

    def begin(self) -> Iterator[dict[str, Any]]:
        started = self._response.object("in_progress")
        for name in ("created", "in_progress"):
            yield {"type": f"response.{name}", "response": started}

    def begun(self, part: Part) -> Iterator[dict[str, Any]]:
        item = {**self._item(part), "status": "in_progress"}
        empty = item if part.kind == "call" else {**item, "content": []}
        yield {"type": "response.output_item.added", "output_index": part.number, "item": empty}
        for content in item.get("content", ()):
            yield {"type": "response.content_part.added", **_place(part), "part": content}

    def extended(self, part: Part, piece: str) -> Iterator[dict[str, Any]]:
        name, _ = _TEXTS[part.kind]
        delta = {"type": f"{name}.delta", **_place(part), "delta": piece}
        if part.kind == "text":
            new = self._new_logprobs()
            self._text_logprobs.setdefault(part.number, []).extend(new)
            delta["logprobs"] = [_without_bytes(one) for one in new]
        yield delta

    def ended(self, part: Part) -> Iterator[dict[str, Any]]:
        name, field = _TEXTS[part.kind]
        done = {"type": f"{name}.done", **_place(part), field: part.text}
        if part.kind == "text":
            found = self._text_logprobs.get(part.number, [])
            done["logprobs"] = [_without_bytes(one) for one in found]
        yield done
        item = self._item(part)
        for content in item.get("content", ()):
            yield {"type": "response.content_part.done", **_place(part), "part": content}
        yield {"type": "response.output_item.done", "output_index": part.number, "item": item}

    def finished(self) -> Iterator[dict[str, Any]]:
        ended = self._object()
        yield {"type": f"response.{ended['status']}", "response": ended}

    def whole(self) -> dict[str, Any]:
        self.read_whole()
        return self._object()

    def _object(self) -> dict[str, Any]:
        status = "completed" if self.finish_reason == "stop" else "incomplete"
        return self._response.ended(self.answer, status, list(map(self._item, self.parts)))

    def _item(self, part: Part) -> dict[str, Any]:
        common = {
            "id": f"{_PREFIXES[part.kind]}_{part.id}",
            "status": "completed" if part.is_complete else "incomplete",
        }
        if part.kind == "call":
            call = {"call_id": part.call_id, "name": part.name, "arguments": part.text}
            return {"type": "function_call", **common, **call}
        if part.kind == "reasoning":
            content = {"type": "reasoning_text", "text": part.text}
            return {"type": "reasoning", **common, "summary": [], "content": [content]}
        logprobs = self._text_logprobs.get(part.number, [])
        text = {"type": "output_text", "text": part.text, "annotations": [], "logprobs": logprobs}
        return {"type": "message", **common, "role": "assistant", "content": [text]}

    def _new_logprobs(self) -> list[dict[str, Any]]:
        """Return those of the tokens since the last call, without those of the reasoning."""
        num_before = self._logprobs.num_reported
        found = self._logprobs.next()
        num_reasoning = max(0, self.answer.num_reasoning_tokens - num_before)
        return found["content"][num_reasoning:] if found else []


def _place(part: Part) -> dict[str, Any]:
    """Return what tells where a part's text is; that of a call is not in its content."""
    item = {"item_id": f"{_PREFIXES[part.kind]}_{part.id}", "output_index": part.number}
    return item if part.kind == "call" else {**item, "content_index": 0}


def _without_bytes(logprob: dict[str, Any]) -> dict[str, Any]:
    """Return a log probability as events have it."""
    names = ("token", "logprob")
    tops = [{name: one[name] for name in names} for one in logprob["top_logprobs"]]
    return {**{name: logprob[name] for name in names}, "top_logprobs": tops}


def _common(model: str, request: ResponseRequest) -> dict[str, Any]:
    """Return what is known of a response when it is requested."""
    reasoning = request.reasoning
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": reasoning and reasoning.effort, "summary": None},
        "temperature": request.temperature,
        "text": {"format": (request.text and request.text.format) or {"type": "text"}},
        "tool_choice": request.tool_choice or "auto",
        "tools": [{"parameters": None, "strict": None, **tool} for tool in request.tools or ()],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": request.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user,
    }


def _items_usage(answer: Answer) -> dict[str, Any]:
    numbers = usage([answer])
    cached = numbers["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": numbers["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": numbers["completion_tokens"],
        "output_tokens_details": numbers["completion_tokens_details"],
        "total_tokens": numbers["total_tokens"],
    }
