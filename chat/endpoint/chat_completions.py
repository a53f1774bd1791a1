"""`POST /v1/chat/completions`."""

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from swiftchat.chat.endpoint.answers import Piece
from swiftchat.chat.endpoint.generation import Format, usage
from swiftchat.chat.endpoint.logprobs import chat_logprobs
from swiftchat.chat.endpoint.messages import template_messages
from swiftchat.chat.endpoint.requests import ChatCompletionRequest
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.chat_model import ChatModel


def chat_answer(chat_model: ChatModel, body: ChatCompletionRequest) -> Callable[[], Answer]:
    """Check a request and return the function that starts its answer.

    The function raises `UsageError` if there are tools and the chat template does not take any.
    """
    params = replace(chat_model.params_with(body.sampling()), logit_bias=body.bias())
    stops = body.stops()
    messages, output_format = template_messages(body.messages), body.output_format

    def start() -> Answer:
        tools = body.offered_tools
        tool_format = chat_model.require_tools().tool_format if tools else None
        prompt = chat_model.encoder(tools=tools)(messages)
        chat_model.check_fits(prompt)
        return chat_model.start_answer(
            prompt, params, stops, tool_format=tool_format, output_format=output_format
        )

    return start


class ChatFormat(Format):
    """The objects of a chat completion."""

    def __init__(self, chat_model: ChatModel, body: ChatCompletionRequest) -> None:
        self._chat_model, self._body = chat_model, body
        self._common = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": chat_model.name,
        }
        self._num_reported = 0  # tokens with their logprobs

    def response(self, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.text,
            "refusal": None,
        }
        if answer.reasoning is not None:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["content"] = answer.text.strip() or None
            message["tool_calls"] = list(map(_call_object, answer.tool_calls))
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._new_logprobs(answer, answer.num_tokens),
            "finish_reason": _finish_reason(answer),
        }
        return {
            **self._common,
            "object": "chat.completion",
            "choices": [choice],
            "usage": usage(answer),
        }

    def first_chunk(self) -> dict[str, Any]:
        return self._chunk({"role": "assistant", "content": ""})

    def chunk(self, answer: Answer, piece: Piece) -> dict[str, Any]:
        name = "reasoning_content" if piece.is_reasoning else "content"
        return self._chunk({name: piece.text}, self._new_logprobs(answer, piece.num_tokens))

    def last_chunk(self, answer: Answer) -> dict[str, Any]:
        logprobs = self._new_logprobs(answer, answer.num_tokens)
        calls = [
            {"index": index, **_call_object(call)} for index, call in enumerate(answer.tool_calls)
        ]
        delta = {"tool_calls": calls} if calls else {}
        return self._chunk(delta, logprobs, _finish_reason(answer))

    def usage_chunk(self, answer: Answer) -> dict[str, Any] | None:
        if not self._body.includes_usage:
            return None
        return {
            **self._common,
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": usage(answer),
        }

    def _chunk(
        self,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        chunk = {**self._common, "object": "chat.completion.chunk", "choices": [choice]}
        return {**chunk, "usage": None} if self._body.includes_usage else chunk

    def _new_logprobs(self, answer: Answer, num_tokens: int) -> dict[str, Any] | None:
        start, self._num_reported = self._num_reported, num_tokens
        return chat_logprobs(answer, self._chat_model.tokenizer, start, num_tokens)


def _finish_reason(answer: Answer) -> str | None:
    return "tool_calls" if answer.tool_calls else answer.finish_reason


def _call_object(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}
