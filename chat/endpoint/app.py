"""The ASGI application: routes, authentication, and errors in OpenAI's format."""

import time
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from swiftchat.chat.endpoint.answers import Answers
from swiftchat.chat.endpoint.body import read_body
from swiftchat.chat.endpoint.chat_completions import chat_answers, chat_response
from swiftchat.chat.endpoint.completions import completion_answers, completion_response
from swiftchat.chat.endpoint.embeddings import EmbeddingJob, EmbeddingsRequest
from swiftchat.chat.endpoint.errors import ApiError, api_error
from swiftchat.chat.endpoint.generation import complete, respond
from swiftchat.chat.endpoint.requests import ChatCompletionRequest, CompletionRequest
from swiftchat.chat.endpoint.token import RequireToken
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.terminal.output import print_notice

Handler = Callable[[Request], Awaitable[Response]]


class Api:
    """The handlers of the API for one model."""

    def __init__(self, chat_model: ChatModel) -> None:
        self._chat_model = chat_model
        self._answers = Answers()
        self._created = int(time.time())
        self._has_noted_effort = False

    def app(self, token: str) -> Starlette:
        """Return the application, which requires the token in every request."""
        routes = [
            Route("/v1/models", _reporting_errors(self.models)),
            Route("/v1/models/{name:path}", _reporting_errors(self.model)),
            Route(
                "/v1/chat/completions", _reporting_errors(self.chat_completion), methods=["POST"]
            ),
            Route("/v1/completions", _reporting_errors(self.completion), methods=["POST"]),
            Route("/v1/embeddings", _reporting_errors(self.embeddings), methods=["POST"]),
        ]
        return Starlette(
            routes=routes,
            middleware=[Middleware(RequireToken, token=token)],
            exception_handlers={HTTPException: _report_http_error, Exception: _report_error},
        )

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model_object()]})

    async def model(self, request: Request) -> Response:
        self._check_name(request.path_params["name"])
        return JSONResponse(self._model_object())

    async def chat_completion(self, request: Request) -> Response:
        body = await read_body(request, ChatCompletionRequest)
        self._check_name(body.model)
        if body.reasoning_effort is not None:
            self._note_ignored_effort()
        start = chat_answers(self._chat_model, body)
        response = chat_response(self._chat_model, body)
        return await respond(request, self._answers, start, response, body)

    async def completion(self, request: Request) -> Response:
        body = await read_body(request, CompletionRequest)
        self._check_name(body.model)
        start = completion_answers(self._chat_model, body)
        response = completion_response(self._chat_model, body)
        return await respond(request, self._answers, start, response, body)

    async def embeddings(self, request: Request) -> Response:
        body = await read_body(request, EmbeddingsRequest)
        self._check_name(body.model)
        async with self._answers.open(lambda: EmbeddingJob(self._chat_model, body)) as job:
            return JSONResponse(await complete(request, job.response(self._answers)))

    def _check_name(self, name: str) -> None:
        if name not in (self._chat_model.name, self._chat_model.config.model):
            message = f"the model {name!r:.200} is not served, only {self._chat_model.name!r}"
            raise ApiError(404, message, "model_not_found", "model")

    def _note_ignored_effort(self) -> None:
        """Say once if efforts have no effect: many clients send one with every request."""
        if not self._has_noted_effort and self._chat_model.prompts.always_reasons_alike:
            self._has_noted_effort = True
            print_notice("note: reasoning_effort has no effect: the model always reasons alike")

    def _model_object(self) -> dict[str, object]:
        name = self._chat_model.name
        return {"id": name, "object": "model", "created": self._created, "owned_by": "swiftchat"}


def _reporting_errors(handler: Handler) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:  # noqa: BLE001  (a failed request does not end the server)
            return await _report_error(request, error)

    return handle


async def _report_error(request: Request, error: Exception) -> Response:
    return api_error(error, request.url.path).response()


async def _report_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path:.200}"
    return ApiError(error.status_code, message).response()
