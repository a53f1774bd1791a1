"""A server of models on this machine, `swiftchat serve --openai`, as chats use it."""

import json
import os
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from swiftchat.engine.api.address import Address
from swiftchat.engine.api.attach import connect
from swiftchat.engine.api.remote import RemoteEngine, read_token
from swiftchat.engine.api.runtime_folder import RuntimeFolder
from swiftchat.errors import DeviceError, ModelNotFound, UsageError

TOKEN_VARIABLE = "SWIFTCHAT_API_TOKEN"
_SCHEME = "http://"
_LOAD_S = 600.0  # for the server to load a model, after others have left
_MAX_ANSWER_BYTES = 1 << 20


def is_server_url(address: str) -> bool:
    """Return whether the address of `--connect` is that of a server."""
    return address.startswith(_SCHEME)


class ModelServer:
    """The server at a URL, as `serve --openai` prints it.

    The token is that in the file, in SWIFTCHAT_API_TOKEN, or in the file that the server of this
    port has written; a server may need none. Raises `UsageError` for a file that cannot be read,
    and for another URL.
    """

    def __init__(self, url: str, token_file: Path | None) -> None:
        self._url, parts = url, urlsplit(url)
        self._address = Address.parse(parts.netloc)
        self._path = parts.path.rstrip("/") or "/v1"
        token = os.environ.get(TOKEN_VARIABLE) if token_file is None else None
        if token is None and (token_file or self._address.token_file.exists()):
            token = read_token(token_file, parts.netloc)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def connect(self, model: str | None) -> RemoteEngine:
        """Have the server load a model, unless it is loaded; return a connection to its engine.

        Without a name it is the server's only model. Raises `ModelNotFound` for an unknown name,
        `UsageError` if there are several models, and `DeviceError` if no engine can be reached.
        """
        name = model or self._only_model()
        answer = self._request("POST", "/engines", {"model": name})
        match answer:
            case {"socket": str() as socket} if Path(socket).is_socket():
                return connect(Path(socket), RuntimeFolder(Path(socket).parent))
        raise DeviceError(
            f"the engine of {self._url} is not on this machine",
            "connect to an engine there: swiftchat help hosts",
        )

    def _only_model(self) -> str:
        answer = self._request("GET", "/models")
        if not isinstance(models := answer.get("data"), list):
            raise self._strange()
        # A chat loads adapters itself.
        base = [one for one in models if isinstance(one, dict) and not one.get("parent")]
        match base:
            case [{"id": str() as name}]:
                return name
        names = ", ".join(str(one.get("id")) for one in base)
        raise UsageError(f"{self._url} serves several models", f"add -m: {names}")

    def _request(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        connection = HTTPConnection(self._address.host, self._address.port, timeout=_LOAD_S)
        content = None if body is None else json.dumps(body)
        with closing(connection):
            try:
                connection.request(method, self._path + path, content, self._headers)
                response = connection.getresponse()
                answer = json.loads(response.read(_MAX_ANSWER_BYTES))
            except (OSError, HTTPException, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise DeviceError(
                    f"no server answers at {self._url}: {reason}",
                    "swiftchat serve --openai starts one",
                ) from error
        match answer:
            case {"error": {"message": str() as message}}:
                raise _refusal(response.status, message)
            case dict() as fields:
                return fields
        raise self._strange()

    def _strange(self) -> DeviceError:
        return DeviceError(f"the program at {self._url} is not swiftchat serve")


def _refusal(status: int, message: str) -> ModelNotFound | UsageError | DeviceError:
    """Return the error that the server has answered with."""
    match status:
        case 404:
            return ModelNotFound(message, "swiftchat list shows the installed models")
        case 401:
            return UsageError(message, f"name its file with --token-file, or set {TOKEN_VARIABLE}")
        case 400:
            return UsageError(message, "check the name and the options of the server")
    return DeviceError(f"the server: {message}", "try it again")
