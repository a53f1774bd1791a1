"""Bodies of requests: bounded in size, checked against a model of their fields."""

import asyncio
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from swiftchat.chat.endpoint.errors import ApiError

BODY_S = 60.0
MAX_BODY_BYTES = 1 << 23  # more than a prompt of a million tokens

Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, kind: type[Body]) -> Body:
    """Read and check a JSON body, which has a minute to arrive; raises `ApiError`."""
    content = bytearray()
    _check_size(int(request.headers.get("content-length", 0)))
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                content += part
                _check_size(len(content))
    except TimeoutError as error:
        message = f"the body did not come within {BODY_S:.0f} s"
        raise ApiError(408, message, "request_timeout") from error
    except ClientDisconnect as error:
        raise ApiError(400, "the client has disconnected") from error
    return parsed_body(bytes(content), kind)


def parsed_body(content: bytes, kind: type[Body]) -> Body:
    """Check the JSON of a body; raises `ApiError`."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise _wrong_field(error) from error


def validated(kind: type[Body], value: object, place: str = "") -> Body:
    """Check a parsed value, which is at `place` in a body; raises `ApiError`."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _wrong_field(error, place) from error


def _wrong_field(error: ValidationError, place: str = "") -> ApiError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {first['msg']}")
    param = ".".join(filter(None, (place, *map(str, first["loc"]))))
    return ApiError(400, f"{param}: {first['msg']}", "invalid_value", param)


def _check_size(num_bytes: int) -> None:
    if num_bytes > MAX_BODY_BYTES:
        raise ApiError(413, f"the body is longer than {MAX_BODY_BYTES} bytes", "body_too_large")
