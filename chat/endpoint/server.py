"""The HTTP server of the API."""

import logging
import threading
from collections.abc import Sequence
from typing import Self

import uvicorn

from swiftchat.chat.endpoint.app import Api
from swiftchat.chat.endpoint.protocol import BACKLOG, BoundedProtocol
from swiftchat.chat.endpoint.served_models import ServedModels
from swiftchat.chat.endpoint.token import ApiToken, check_origins
from swiftchat.chat.terminal.output import print_notice
from swiftchat.engine.api.address import Address, write_token
from swiftchat.errors import UsageError

_SHUTDOWN_S = 1  # for answers in progress, after Ctrl-C


class EndpointServer:
    """Listens from construction on, answers requests in `run`; a context manager.

    A new token is written to the token file of the port, for chats of this user. Without a token
    all programs of this machine may use the API. Pages of `origins` may use it from a browser.
    Raises `UsageError` for an address that is not loopback, unless `allow_remote`, `DeviceError` if
    it is in use, and `FileSystemError` if the token cannot be written.
    """

    def __init__(
        self,
        address: str,
        token: ApiToken | None,
        allow_remote: bool,
        origins: Sequence[str] = (),
    ) -> None:
        check_origins(origins, has_token=token is not None)
        wanted = Address.parse(address)
        if wanted.path is not None:
            raise UsageError(f"{address!r} is not HOST:PORT", "write it as 127.0.0.1:8080")
        try:
            self._socket = wanted.listen(allow_remote)
        except UsageError as error:
            raise UsageError(error.message, "add --allow-remote if that is intended") from error
        self._token, self._is_remote, self._origins = token, allow_remote, origins
        bound = Address(wanted.host, self._socket.getsockname()[1])
        self.url = f"http://{bound}/v1"
        self._token_file = None
        if token is not None and token.is_new:
            self._token_file = bound.token_file
            write_token(self._token_file, token.text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._socket.close()
        if self._token_file is not None:
            self._token_file.unlink(missing_ok=True)

    def run(self, models: ServedModels) -> None:
        """Answer requests until the models have ended; raises `KeyboardInterrupt` on a signal."""
        self._print_access()
        config = uvicorn.Config(
            Api(models).app(None if self._token is None else self._token.text, self._origins),
            log_level="critical",
            access_log=False,
            lifespan="off",
            ws="none",
            loop="asyncio",
            http=BoundedProtocol,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=_SHUTDOWN_S,
        )
        # Its warnings are about clients that have gone.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        server = uvicorn.Server(config)

        def end_with_models() -> None:
            models.wait_ended()
            server.should_exit = True

        threading.Thread(target=end_with_models, daemon=True).start()
        server.run(sockets=[self._socket])

    def _print_access(self) -> None:
        print_notice(f"OpenAI-compatible API: {self.url}")
        if self._token is None:
            print_notice("all programs on this machine may use it, without a token")
        elif self._token.is_new:
            print_notice(f"token: {self._token.text}")
        if self._is_remote:
            print_notice(
                "warning: other machines may reach it, and the token crosses the network in clear"
            )
