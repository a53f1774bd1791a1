"""Errors as OpenAI's API reports them, and as Anthropic's does."""

import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from swiftchat.chat.terminal.output import print_notice
from swiftchat.errors import BadModelFile, ContextOverflow, SwiftchatError, UsageError

ANTHROPIC_PATHS = "/v1/messages"  # and those below have Anthropic's format
NO_THREADS = "thread_unsupported_request"  # after which clients send all messages
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    500: "api_error",
    503: "overloaded_error",
}


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

    @property
    def anthropic_body(self) -> dict[str, Any]:
        """The body in Anthropic's format, which names the wrong field in the message."""
        kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error")
        is_named = self.param is None or self.param in self.message
        message = self.message if is_named else f"{self.param}: {self.message}"
        error: dict[str, Any] = {"type": kind, "message": message}
        if self.code == NO_THREADS:
            error["details"] = {"error_code": self.code}
        return {"type": "error", "error": error}

    def response(self, path: str = "") -> JSONResponse:
        """Return the response of a request for this path."""
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else None
        is_anthropic = path == ANTHROPIC_PATHS or path.startswith(f"{ANTHROPIC_PATHS}/")
        body = self.anthropic_body if is_anthropic else self.body
        return JSONResponse(body, self.status, headers)

    def renamed(self, names: Mapping[str, str]) -> "ApiError":
        """Return the error with other names of fields, in `param` and in the message."""
        words = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
        message = words.sub(lambda found: names[found[0]], self.message)
        field, *place = (self.param or "").split(".")
        param = ".".join([names.get(field, field), *place]) or None
        return ApiError(self.status, message, self.code, param)


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
