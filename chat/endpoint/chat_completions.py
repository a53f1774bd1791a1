"""`POST /v1/chat/completions`."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from swiftchat.chat.endpoint.choice import Choice, CompletionResponse
from swiftchat.chat.endpoint.logprobs import ChatLogprobs
from swiftchat.chat.endpoint.messages import template_messages
from swiftchat.chat.endpoint.requests import ChatCompletionRequest
from swiftchat.chat.endpoint.tool_choice import answer_format, offered
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.answer_group import AnswerGroup
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.model.context_budget import message_versions
from swiftchat.chat.model.output_format import Encode, OutputFormat
from swiftchat.chat.model.reasoning import ReasoningText
from swiftchat.chat.tools.call_stream import CallDelta, CallText
from swiftchat.chat.tools.offer import Offer
from swiftchat.engine.api.params import SamplingParams
from swiftchat.tokenizer import Tokenizer


def chat_answers(chat_model: ChatModel, body: ChatCompletionRequest) -> Callable[[], AnswerGroup]:
    """Check a request and return the function that starts its answers.

    The function raises `UsageError` if there are tools and the chat template does not take any.
    """
    sampling = chat_model.params_with(body.sampling())
    params = body.applied(sampling, chat_model.model.config.vocab_size)
    return answers_with(chat_model, body, params, body.stops(), body.num_answers)


def answers_with(
    chat_model: ChatModel,
    body: ChatCompletionRequest,
    params: SamplingParams,
    stops: Sequence[str],
    count: int,
) -> Callable[[], AnswerGroup]:
    """Return the function that starts `count` answers with parameters that are known already."""
    messages, offer = template_messages(body.messages), offered(body)
    begun = messages.pop() if body.continues else None
    tuning = body.tuning(chat_model)

    def start() -> AnswerGroup:
        output_format = answer_format(body, offer, chat_model)
        encode = _encoder(chat_model, body, offer, begun, output_format)
        return chat_model.start_answers(
            message_versions(messages),
            encode,
            params,
            stops,
            count,
            offer=offer,
            output_format=output_format,
            tuning=tuning,
            begun=begun["content"] if begun else "",
        )

    return start


def num_prompt_tokens(chat_model: ChatModel, body: ChatCompletionRequest) -> Callable[[], int]:
    """Check a request and return the function that counts the tokens of its prompt."""
    messages, offer = template_messages(body.messages), offered(body)
    begun = messages.pop() if body.continues else None

    def count() -> int:
        if offer.tools:
            chat_model.prompts.require_tools()
        output_format = answer_format(body, offer, chat_model)
        return len(_encoder(chat_model, body, offer, begun, output_format)(messages))

    return count


def _encoder(
    chat_model: ChatModel,
    body: ChatCompletionRequest,
    offer: Offer,
    begun: Mapping[str, Any] | None,
    output_format: OutputFormat | None,
) -> Encode:
    """Return the function that encodes the messages of a request before the one that is begun."""
    effort = body.effort
    variables = {} if effort is None else chat_model.prompts.effort_variables(effort)
    variables = {**variables, **(body.chat_template_kwargs or {})}
    encode = chat_model.prompts.encoder(None, begun, offer.tools, variables)
    return encode if output_format is None else output_format.instructed(encode)


def chat_response(chat_model: ChatModel, body: ChatCompletionRequest) -> CompletionResponse:
    """Return the response of a chat completion."""
    return CompletionResponse(
        *(body.full_name(chat_model), "chatcmpl", "chat.completion", "chat.completion.chunk"),
        lambda index, answer: ChatChoice(index, answer, chat_model.tokenizer),
        body.includes_usage,
    )


class ChatChoice(Choice):
    """One of the answers of a chat completion."""

    def __init__(self, index: int, answer: Answer, tokenizer: Tokenizer) -> None:
        super().__init__(index, answer)
        self._logprobs = ChatLogprobs(answer, tokenizer)

    @property
    def finish_reason(self) -> str | None:
        return "tool_calls" if self.answer.tool_calls else super().finish_reason

    def begin(self) -> Iterator[dict[str, Any]]:
        yield self._chunk({"role": "assistant", "content": ""}, None)

    def push(self, piece: str) -> Iterator[dict[str, Any]]:
        if isinstance(piece, CallDelta):
            yield self._chunk({"tool_calls": [_call_delta(piece)]}, self._logprobs.next())
        elif piece and not isinstance(piece, CallText):  # which the client has in pieces of a call
            name = "reasoning_content" if isinstance(piece, ReasoningText) else "content"
            yield self._chunk({name: piece}, self._logprobs.next())

    def end(self) -> Iterator[dict[str, Any]]:
        yield self._chunk({}, self._logprobs.next(), self.finish_reason)

    def whole(self) -> dict[str, Any]:
        answer = self.answer
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
        return {
            "index": self.index,
            "message": message,
            "logprobs": self._logprobs.next(),
            "finish_reason": self.finish_reason,
        }

    def _chunk(
        self,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        return {
            "index": self.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }


def _call_delta(piece: CallDelta) -> dict[str, Any]:
    if not piece.name:
        return {"index": piece.number, "function": {"arguments": piece.arguments}}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.number, "id": piece.id, "type": "function", "function": function}


def _call_object(call: ToolCall) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}
