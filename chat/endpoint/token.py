"""The token of HTTP clients."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.model.model_server import TOKEN_VARIABLE
from swiftchat.errors import UsageError
from swiftchat.weights.files.paths import user_path

_TOKEN_BYTES = 32
_MIN_CHARACTERS = 16


@dataclass(frozen=True)
class ApiToken:
    """A token; `is_new` if it was made for this process, and must be shown to the user."""

    text: str
    is_new: bool = False


def find_token(file: str | None, environ: Mapping[str, str]) -> ApiToken:
    """Return the token in the file, else in SWIFTCHAT_API_TOKEN, else a new one.

    Raises `UsageError` for a file that cannot be read and for a short token.
    """
    text, source = environ.get(TOKEN_VARIABLE), TOKEN_VARIABLE
    if file is not None:
        source = file
        try:
            text = user_path(file).read_text("utf-8-sig")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise UsageError(f"cannot read the token in {file}: {reason}") from error
    if text is None:
        return ApiToken(secrets.token_urlsafe(_TOKEN_BYTES), is_new=True)
    token = text.strip()
    if len(token) < _MIN_CHARACTERS or not token.isascii() or len(token.split()) != 1:
        raise UsageError(
            f"the token in {source} is not one word of at least {_MIN_CHARACTERS} ASCII characters",
            "make one with: openssl rand -hex 32",
        )
    return ApiToken(token)


class RequireToken:
    """ASGI middleware that answers requests without the token with status 401."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_authorized(Headers(scope=scope)):
            error = ApiError(401, "the bearer token is missing or wrong", "invalid_api_key")
            await error.response(scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_authorized(self, headers: Headers) -> bool:
        """Return whether the token is there, as that of a bearer or as a key of Anthropic's API."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else ""
        return any(
            secrets.compare_digest(sent.encode("latin-1", "replace"), self._expected)
            for sent in (bearer, headers.get("x-api-key", ""))
        )
