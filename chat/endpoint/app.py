"""The ASGI application: routes, authentication, and errors in the format of the path."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from pydantic import BaseModel, ConfigDict
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from swiftchat.chat.endpoint.answers import Answers
from swiftchat.chat.endpoint.body import read_body
from swiftchat.chat.endpoint.chat_completions import (
    chat_answers,
    chat_response,
    num_prompt_tokens,
)
from swiftchat.chat.endpoint.choice import Response as ApiResponse
from swiftchat.chat.endpoint.completions import completion_answers, completion_response
from swiftchat.chat.endpoint.embeddings import EmbeddingJob, EmbeddingsRequest
from swiftchat.chat.endpoint.errors import ApiError, api_error
from swiftchat.chat.endpoint.generation import complete, respond
from swiftchat.chat.endpoint.message_choice import MessageResponse
from swiftchat.chat.endpoint.message_request import CountRequest, MessageRequest
from swiftchat.chat.endpoint.requests import ChatCompletionRequest, CompletionRequest
from swiftchat.chat.endpoint.response_choice import ItemsResponse
from swiftchat.chat.endpoint.response_request import ResponseRequest
from swiftchat.chat.endpoint.response_store import StoredResponses, item_page
from swiftchat.chat.endpoint.served_models import ServedModels
from swiftchat.chat.endpoint.token import RequireLocal, RequireToken
from swiftchat.chat.endpoint.translated_request import TranslatedRequest
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.terminal.output import print_notice

Handler = Callable[[Request], Awaitable[Response]]


class EngineRequest(BaseModel):
    """A chat's wish to attach to the engine of a model."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str


Body = TypeVar(
    "Body",
    ChatCompletionRequest,
    CompletionRequest,
    ResponseRequest,
    MessageRequest,
    CountRequest,
    EmbeddingsRequest,
    EngineRequest,
)


class Api:
    """The handlers of the API for some models."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._answers = Answers()
        self._stored = StoredResponses()
        self._created = int(time.time())
        self._has_noted_effort = False

    def app(self, token: str | None, origins: Sequence[str] = ()) -> Starlette:
        """Return the application, which requires the token in every request but that of `/health`.

        Without a token it requires that no page of a browser sends it, but for those of `origins`.
        """
        guard = (
            Middleware(RequireLocal, origins=origins)
            if token is None
            else Middleware(RequireToken, token=token)
        )
        # First: a browser sends no token with its question whether a page may send one.
        pages = Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
        )
        routes = [
            Route("/health", _health),
            Route("/v1/models", _reporting_errors(self.models)),
            Route("/v1/models/{name:path}", _reporting_errors(self.model)),
            self._route("/v1/chat/completions", ChatCompletionRequest, self.chat_completion),
            self._route("/v1/completions", CompletionRequest, self.completion),
            self._route("/v1/responses", ResponseRequest, self.response),
            self._route("/v1/responses/input_tokens", ResponseRequest, self.response_tokens),
            Route("/v1/responses/{id}", _reporting_errors(self.stored_response)),
            Route(
                "/v1/responses/{id}", _reporting_errors(self.forget_response), methods=["DELETE"]
            ),
            Route("/v1/responses/{id}/input_items", _reporting_errors(self.input_items)),
            self._route("/v1/messages", MessageRequest, self.message),
            self._route("/v1/messages/count_tokens", CountRequest, self.message_tokens),
            self._route("/v1/embeddings", EmbeddingsRequest, self.embeddings),
            self._route("/v1/engines", EngineRequest, self.engine),
        ]
        return Starlette(
            routes=routes,
            middleware=[pages, guard] if origins else [guard],
            exception_handlers={HTTPException: _report_http_error, Exception: _report_error},
        )

    async def models(self, request: Request) -> Response:
        names = await asyncio.to_thread(self._models.names)
        data = [self._model_object(name) for name in names]
        return JSONResponse({"object": "list", "data": data})

    async def model(self, request: Request) -> Response:
        name = await asyncio.to_thread(self._models.full_name, request.path_params["name"])
        return JSONResponse(self._model_object(name))

    async def chat_completion(
        self, request: Request, chat_model: ChatModel, body: ChatCompletionRequest
    ) -> Response:
        return await self._chat(request, chat_model, body, chat_response(chat_model, body))

    async def completion(
        self, request: Request, chat_model: ChatModel, body: CompletionRequest
    ) -> Response:
        start = completion_answers(chat_model, body)
        response = completion_response(chat_model, body)
        return await respond(request, self._answers, start, response, body)

    async def response(
        self, request: Request, chat_model: ChatModel, body: ResponseRequest
    ) -> Response:
        body.resolve(self._stored)
        chat = body.chat_request()
        name, tokenizer = chat.full_name(chat_model), chat_model.tokenizer
        response = ItemsResponse(name, tokenizer, body, self._stored)
        with body.errors():
            return await self._chat(request, chat_model, chat, response)

    async def response_tokens(
        self, request: Request, chat_model: ChatModel, body: ResponseRequest
    ) -> Response:
        body.resolve(self._stored)
        number = await self._num_tokens(chat_model, body)
        return JSONResponse({"object": "response.input_tokens", "input_tokens": number})

    async def stored_response(self, request: Request) -> Response:
        return JSONResponse(self._stored.get(request.path_params["id"]).response)

    async def forget_response(self, request: Request) -> Response:
        response_id = request.path_params["id"]
        self._stored.remove(response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    async def input_items(self, request: Request) -> Response:
        items = self._stored.get(request.path_params["id"]).input
        return JSONResponse(item_page(items, request.query_params))

    async def message(
        self, request: Request, chat_model: ChatModel, body: MessageRequest
    ) -> Response:
        chat = body.chat_request()
        response = MessageResponse(chat.full_name(chat_model), body)
        with body.errors():
            return await self._chat(request, chat_model, chat, response)

    async def message_tokens(
        self, request: Request, chat_model: ChatModel, body: CountRequest
    ) -> Response:
        return JSONResponse({"input_tokens": await self._num_tokens(chat_model, body)})

    async def embeddings(
        self, request: Request, chat_model: ChatModel, body: EmbeddingsRequest
    ) -> Response:
        async with self._answers.open(lambda: EmbeddingJob(chat_model, body)) as job:
            return JSONResponse(await complete(request, job.response(self._answers)))

    async def engine(
        self, request: Request, chat_model: ChatModel, body: EngineRequest
    ) -> Response:
        """Tell a chat of this machine where it can attach to the model's engine."""
        socket = chat_model.engine.socket_path
        return JSONResponse(
            {"object": "engine", "model": chat_model.name, "socket": socket and str(socket)}
        )

    def _route(
        self,
        path: str,
        kind: type[Body],
        answer: Callable[[Request, ChatModel, Body], Awaitable[Response]],
    ) -> Route:
        """Return the route of requests for a model, which stays loaded until the response ends."""

        async def handle(request: Request) -> Response:
            body = await read_body(request, kind)
            stack = contextlib.AsyncExitStack()
            used = stack.enter_async_context(self._models.use(body.model))
            chat_model = await complete(request, used)  # a client need not wait for a model
            try:
                response = await answer(request, chat_model, body)
            except BaseException:
                await stack.aclose()
                raise
            return _ResponseWithModel(response, stack)

        return Route(path, _reporting_errors(handle), methods=["POST"])

    async def _chat(
        self,
        request: Request,
        chat_model: ChatModel,
        body: ChatCompletionRequest,
        response: ApiResponse,
    ) -> Response:
        if body.effort is not None:
            self._note_ignored_effort(chat_model)
        start = chat_answers(chat_model, body)
        return await respond(request, self._answers, start, response, body)

    async def _num_tokens(self, chat_model: ChatModel, body: TranslatedRequest) -> int:
        chat = body.chat_request()
        with body.errors():
            count = num_prompt_tokens(chat_model, chat)
        return await self._answers.encoded(count)

    def _note_ignored_effort(self, chat_model: ChatModel) -> None:
        """Say once if efforts have no effect: many clients send one with every request."""
        if not self._has_noted_effort and chat_model.prompts.always_reasons_alike:
            self._has_noted_effort = True
            print_notice("note: reasoning_effort has no effect: the model always reasons alike")

    def _model_object(self, name: str) -> dict[str, object]:
        """Describe a model; the parent of one with an adapter is the base model."""
        found = {"id": name, "object": "model", "created": self._created, "owned_by": "swiftchat"}
        parent = self._models.parent(name)
        return found if parent is None else {**found, "parent": parent}


class _ResponseWithModel(Response):
    """A response during which the stack keeps a model."""

    def __init__(self, response: Response, stack: contextlib.AsyncExitStack) -> None:
        super().__init__()
        self._response, self._stack = response, stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await self._response(scope, receive, send)


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


def _reporting_errors(handler: Handler) -> Handler:
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except Exception as error:  # noqa: BLE001  (a failed request does not end the server)
            return await _report_error(request, error)

    return handle


async def _report_error(request: Request, error: Exception) -> Response:
    path = request.url.path
    return api_error(error, path).response(path)


async def _report_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path:.200}"
    return ApiError(error.status_code, message).response(request.url.path)
