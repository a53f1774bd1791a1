"""Errors as OpenAI's API reports them."""

from typing import Any

from starlette.responses import JSONResponse

from swiftchat.chat.terminal.output import print_notice
from swiftchat.errors import BadModelFile, ContextOverflow, SwiftchatError, UsageError


class ApiError(UsageError):
    """An HTTP status with a message; `param` names the wrong field, `code` the kind of error."""

    default_hint = "docs/serving.md describes the fields of requests"

    def __init__(
        self, status: int, message: str, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    @property
    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else None
        return JSONResponse(self.body, self.status, headers)


def api_error(error: BaseException, path: str) -> ApiError:
    """Return what the client of a path is told about any error; print those of the program."""
    match error:
        case ApiError():
            return error
        case ContextOverflow():
            return ApiError(400, error.message, "context_length_exceeded")
        case UsageError() | BadModelFile():  # the chat template rejects the messages
            return ApiError(400, error.message)
        case SwiftchatError():
            return ApiError(503, error.message, "engine_error")
    print_notice(f"error: {path}: {type(error).__name__}: {error}")
    return ApiError(500, "internal error", "internal_error")
