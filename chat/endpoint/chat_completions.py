"""`POST /v1/chat/completions`."""

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from swiftchat.chat.endpoint.answers import Piece
from swiftchat.chat.endpoint.generation import Choice, Format, finish_reason, usage
from swiftchat.chat.endpoint.logprobs import chat_logprobs
from swiftchat.chat.endpoint.messages import template_messages
from swiftchat.chat.endpoint.requests import ChatCompletionRequest
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.answer_group import AnswerGroup
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.model.context_budget import message_versions


def chat_answers(chat_model: ChatModel, body: ChatCompletionRequest) -> Callable[[], AnswerGroup]:
    """Check a request and return the function that starts its answers.

    The function raises `UsageError` if there are tools and the chat template does not take any.
    """
    params = replace(chat_model.params_with(body.sampling()), logit_bias=body.bias())
    stops = body.stops()
    messages, output_format = template_messages(body.messages), body.output_format

    def start() -> AnswerGroup:
        tools = body.offered_tools
        variables = _template_variables(chat_model, body)
        encode = chat_model.prompts.encoder(tools=tools, more_variables=variables)
        return chat_model.start_answers(
            message_versions(messages),
            encode,
            params,
            stops,
            body.num_answers,
            tools=tools or (),
            output_format=output_format,
        )

    return start


def _template_variables(chat_model: ChatModel, body: ChatCompletionRequest) -> dict[str, Any]:
    effort = body.reasoning_effort
    variables = {} if effort is None else chat_model.prompts.effort_variables(effort)
    return {**variables, **(body.chat_template_kwargs or {})}


class ChatFormat(Format):
    """The objects of a chat completion."""

    def __init__(self, chat_model: ChatModel, body: ChatCompletionRequest) -> None:
        self._chat_model, self._body = chat_model, body
        self._common = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": chat_model.name,
        }

    def response(self, choices: Sequence[Choice]) -> dict[str, Any]:
        return {
            **self._common,
            "object": "chat.completion",
            "choices": list(map(self._whole, choices)),
            "usage": usage(choices),
        }

    def _whole(self, choice: Choice) -> dict[str, Any]:
        """Return the object of a whole answer."""
        answer = choice.answer
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.text,
            "refusal": None,
        }
        if answer.reasoning is not None:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["content"] = answer.text.strip() or None
            message["tool_calls"] = list(map(self._call_object, answer.tool_calls))
        return {
            "index": choice.index,
            "message": message,
            "logprobs": self._new_logprobs(choice, answer.num_tokens),
            "finish_reason": _finish_reason(answer),
        }

    def first_chunk(self, choice: Choice) -> dict[str, Any]:
        return self._chunk(choice, {"role": "assistant", "content": ""})

    def chunk(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        name = "reasoning_content" if piece.is_reasoning else "content"
        logprobs = self._new_logprobs(choice, piece.num_tokens)
        return self._chunk(choice, {name: piece.text}, logprobs)

    def last_chunk(self, choice: Choice) -> dict[str, Any]:
        answer = choice.answer
        logprobs = self._new_logprobs(choice, answer.num_tokens)
        calls = [
            {"index": index, **self._call_object(call)}
            for index, call in enumerate(answer.tool_calls)
        ]
        delta = {"tool_calls": calls} if calls else {}
        return self._chunk(choice, delta, logprobs, _finish_reason(answer))

    def usage_chunk(self, choices: Sequence[Choice]) -> dict[str, Any] | None:
        if not self._body.includes_usage:
            return None
        return {
            **self._common,
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": usage(choices),
        }

    def _chunk(
        self,
        choice: Choice,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        one = {
            "index": choice.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk = {**self._common, "object": "chat.completion.chunk", "choices": [one]}
        return {**chunk, "usage": None} if self._body.includes_usage else chunk

    def _call_object(self, call: ToolCall) -> dict[str, Any]:
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        function = {"name": call.name, "arguments": arguments}
        return {"id": call.id, "type": "function", "function": function}

    def _new_logprobs(self, choice: Choice, num_tokens: int) -> dict[str, Any] | None:
        start, choice.num_reported = choice.num_reported, num_tokens
        return chat_logprobs(choice.answer, self._chat_model.tokenizer, start, num_tokens)


def _finish_reason(answer: Answer) -> str | None:
    return "tool_calls" if answer.tool_calls else finish_reason(answer)
