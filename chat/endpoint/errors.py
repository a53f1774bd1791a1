"""Errors as OpenAI's API reports them."""

from typing import Any

from starlette.responses import JSONResponse

from swiftchat.errors import BadModelFile, ContextOverflow, SwiftchatError, UsageError


class ApiError(Exception):
    """An HTTP status with a message; `param` names the wrong field, `code` the kind of error."""

    def __init__(
        self, status: int, message: str, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    @property
    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else None
        return JSONResponse(self.body, self.status, headers)


def api_error(error: SwiftchatError) -> ApiError:
    """Return the error of a request that the tokenizer or the engine has refused."""
    match error:
        case ContextOverflow():
            return ApiError(400, error.message, "context_length_exceeded")
        case UsageError() | BadModelFile():  # the chat template rejects the messages
            return ApiError(400, error.message)
    return ApiError(503, error.message, "engine_error")
