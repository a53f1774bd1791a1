"""`POST /v1/completions`: continue a text without a chat template."""

from collections.abc import Callable, Iterator
from typing import Any

from swiftchat.chat.endpoint.choice import Choice, CompletionResponse
from swiftchat.chat.endpoint.logprobs import CompletionLogprobs
from swiftchat.chat.endpoint.requests import CompletionRequest
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.answer_group import AnswerGroup
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.tokenizer import Tokenizer


def completion_answers(chat_model: ChatModel, body: CompletionRequest) -> Callable[[], AnswerGroup]:
    """Check a request and return the function that starts its answers."""
    sampling = chat_model.params_with(body.sampling())
    params = body.applied(sampling, chat_model.model.config.vocab_size)
    stops, tuning = body.stops(), body.tuning(chat_model)
    output_format = body.output_format or chat_model.output_format
    return lambda: chat_model.complete(
        *(body.prompts, params, stops, body.num_samples),
        output_format=output_format,
        tuning=tuning,
    )


def completion_response(chat_model: ChatModel, body: CompletionRequest) -> CompletionResponse:
    """Return the response of a completion."""
    prompts, tokenizer = body.prompts, chat_model.tokenizer

    def echoed(index: int) -> str:
        """Return the text of a choice's prompt, if the request asks for it."""
        prompt = prompts[index // body.num_samples] if body.echo else ""
        return prompt if isinstance(prompt, str) else tokenizer.decode(prompt, skip_special=True)

    return CompletionResponse(
        *(body.full_name(chat_model), "cmpl", "text_completion", "text_completion"),
        lambda index, answer: CompletionChoice(index, answer, tokenizer, echoed(index)),
        body.includes_usage,
    )


class CompletionChoice(Choice):
    """One of the answers of a completion, behind the text `echo` of its prompt."""

    def __init__(self, index: int, answer: Answer, tokenizer: Tokenizer, echo: str = "") -> None:
        super().__init__(index, answer)
        self._echo = echo
        self._logprobs = CompletionLogprobs(answer, tokenizer)

    def begin(self) -> Iterator[dict[str, Any]]:
        if self._echo:
            yield self._object(self._echo, None)

    def push(self, piece: str) -> Iterator[dict[str, Any]]:
        if piece:
            yield self._object(piece, None)

    def end(self) -> Iterator[dict[str, Any]]:
        yield self._object("", self.finish_reason)

    def whole(self) -> dict[str, Any]:
        return self._object(self._echo + self.answer.text, self.finish_reason)

    def _object(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        return {
            "index": self.index,
            "text": text,
            "logprobs": self._logprobs.next(),
            "finish_reason": finish_reason,
        }
