"""Who may use the API: clients with the token, or without one those of this machine."""

import ipaddress
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.model.model_server import TOKEN_VARIABLE
from swiftchat.errors import UsageError
from swiftchat.weights.files.paths import user_path

_TOKEN_BYTES = 32
_OPEN_PATHS = ("/health",)  # that need no token
ANY_ORIGIN = "*"
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")


@dataclass(frozen=True)
class ApiToken:
    """A token; `is_new` if it was made for this process, and must be shown to the user."""

    text: str
    is_new: bool = False


def find_token(file: str | None, environ: Mapping[str, str]) -> ApiToken:
    """Return the token in the file, else in SWIFTCHAT_API_TOKEN, else a new one.

    Raises `UsageError` for a file that cannot be read, and for a token that is
    not one word in ASCII.
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
    if not token.isascii() or len(token.split()) != 1:
        hint = "make one with: openssl rand -hex 32"
        raise UsageError(f"the token in {source} is not one word of ASCII characters", hint)
    return ApiToken(token)


def check_origins(origins: Sequence[str], *, has_token: bool) -> None:
    """Raise `UsageError` for texts that no browser sends as the origin of a page.

    Any origin may be allowed only if there is a token.
    """
    for origin in origins:
        if origin == ANY_ORIGIN and not has_token:
            text = "--cors '*' without a token lets every page in a browser use the models"
            raise UsageError(text, "name the origins, or leave out --no-auth")
        if origin != ANY_ORIGIN and not _ORIGIN.fullmatch(origin):
            hint = "write it as https://example.com or http://localhost:3000"
            raise UsageError(f"--cors {origin}: it is no origin of pages", hint)


class RequireToken:
    """ASGI middleware that answers requests without the token with status 401."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or scope["path"] in _OPEN_PATHS
        if not (is_open or self._is_authorized(Headers(scope=scope))):
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


class RequireLocal:
    """ASGI middleware for a server without a token: pages in a browser may not use it.

    Requests of pages name their origin, which must be one of `origins`, or the host that the page
    was sent from, which must be this machine: a name of another host may lead here.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        self._app, self._origins = app, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin, host = headers.get("origin"), headers.get("host", "localhost")
        if origin is not None and origin not in self._origins:
            text = f"pages of {origin:.80} may not use this server: serve --cors allows an origin"
        elif not _is_loopback(host):
            text = f"{host:.80} is no name of this machine"
        else:
            await self._app(scope, receive, send)
            return
        forbidden = ApiError(403, text, "forbidden").response(scope.get("path", ""))
        await forbidden(scope, receive, send)


def _is_loopback(host: str) -> bool:
    """Return whether the header `Host` names this machine, with or without a port."""
    name = re.sub(r":\d*$", "", host).strip("[]").lower()
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
