"""Lines of a batch that the HTTP API reads: OpenAI's lines, and ours with fields of requests."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from swiftchat.chat.endpoint.body import parsed_body
from swiftchat.chat.endpoint.chat_completions import (
    answers_with,
    chat_answers,
    chat_response,
)
from swiftchat.chat.endpoint.choice import Response
from swiftchat.chat.endpoint.completions import completion_answers, completion_response
from swiftchat.chat.endpoint.errors import ApiError, api_error
from swiftchat.chat.endpoint.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    refuse,
)
from swiftchat.chat.endpoint.served_models import served_name
from swiftchat.chat.model.answer_group import AnswerGroup
from swiftchat.chat.subcommands.batch.lines import Line
from swiftchat.engine.api.params import SamplingParams
from swiftchat.errors import SwiftchatError

if TYPE_CHECKING:
    from swiftchat.chat.model.chat_model import ChatModel

_Start = Callable[[Any, Any], Callable[[], AnswerGroup]]
_Respond = Callable[[Any, Any], Response]
# By the url of a line: the fields of its body, and what the API does with them.
_KINDS: dict[str, tuple[type[GenerationRequest], _Start, _Respond]] = {
    "/v1/chat/completions": (ChatCompletionRequest, chat_answers, chat_response),
    "/v1/completions": (CompletionRequest, completion_answers, completion_response),
}


def start_with_fields(
    chat_model: "ChatModel",
    body: Mapping[str, Any],
    params: SamplingParams,
    stops: Sequence[str],
    count: int,
) -> AnswerGroup:
    """Start the answers of a line of ours that has fields of chat completions."""
    content = json.dumps({**body, "model": chat_model.name}).encode()
    request = parsed_body(content, ChatCompletionRequest)
    request.check()
    return answers_with(chat_model, request, params, stops, count)()


class ApiRequest:
    """The request of a line in OpenAI's format. Raises `ApiError` as the API does.

    `system` precedes messages without a system prompt. A request without `n` has as many answers
    to a prompt as the command says.
    """

    def __init__(
        self, chat_model: "ChatModel", line: Line, body: Mapping[str, Any], system: str | None
    ) -> None:
        url = line.url
        if not isinstance(url, str) or url not in _KINDS:
            raise ApiError(400, f"url is {' or '.join(_KINDS)}", "unsupported_value", "url")
        kind, self._answers, self._respond = _KINDS[url]
        self._chat_model, self._line = chat_model, line
        self._body = parsed_body(json.dumps(_with_system(body, system)).encode(), kind)
        refuse(bool(self._body.stream), "stream", "stream: answers of a batch are whole")
        served_name(chat_model, self._body.model)
        self._body.n = self._body.n or chat_model.config.samples

    def start(self) -> AnswerGroup:
        """Start the answers."""
        return self._answers(self._chat_model, self._body)()

    def record(self, group: AnswerGroup) -> dict[str, Any]:
        """Return OpenAI's line for answers that have ended."""
        response = self._respond(self._chat_model, self._body)
        choices = [response.choice(i, answer) for i, answer in enumerate(group)]
        return _record(self._line, 200, response.whole(choices), None)


def openai_error(line: Line, error: SwiftchatError) -> dict[str, Any]:
    """Return OpenAI's line for a request that failed, with the program's exit code."""
    found = api_error(error, str(line.url))
    reason = {"code": found.code, "message": found.message, "exit_code": error.exit_code}
    return _record(line, found.status, found.body, reason)


def _record(
    line: Line, status: int, body: Mapping[str, Any], error: Mapping[str, Any] | None
) -> dict[str, Any]:
    response = {"status_code": status, "request_id": f"req_{line.key}", "body": body}
    return {
        "id": f"batch_req_{line.key}",
        "custom_id": line.custom_id,
        "response": response,
        "error": error,
    }


def _with_system(body: Mapping[str, Any], system: str | None) -> dict[str, Any]:
    """Return a body whose messages begin with a system prompt, if there is one for it."""
    messages = body.get("messages")
    if not system or not isinstance(messages, list):
        return dict(body)
    first = messages[0].get("role") if messages and isinstance(messages[0], dict) else None
    own = first in ("system", "developer")
    return {
        **body,
        "messages": messages if own else [{"role": "system", "content": system}, *messages],
    }
