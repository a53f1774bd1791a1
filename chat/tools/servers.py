"""The servers that `--mcp` names: command lines, addresses, and files with several of them."""

import ipaddress
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Never
from urllib.parse import urlsplit

from swiftchat.errors import FileSystemError, UsageError
from swiftchat.errors.addresses import without_passwords
from swiftchat.weights.files.paths import split_words, user_path

NONE = "none"  # as the value of --mcp: no servers, not even those of the configuration file
# Programs that run another one, which names the server.
_LAUNCHERS = re.compile(r"(python[\d.]*|node|npx|bunx?|deno|uvx?|pipx|env|sh|bash|docker|run|exec)")
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class ServerSpec:
    """A server: a program that is started with `command`, or the address `url` with `headers`.

    With `is_sse` it speaks the older protocol over HTTP, which is else found out.
    """

    name: str
    command: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    is_sse: bool = False


def parse_servers(values: Iterable[str], offline: bool) -> list[ServerSpec]:
    """Parse the values of `--mcp`; servers with the same name are numbered.

    Raises `UsageError` for an invalid value, and with `offline` for an address of another host;
    `FileSystemError` for a file that cannot be read.
    """
    found: dict[str, ServerSpec] = {}
    for value in values:
        for spec in [] if value == NONE else _parse(value):
            if offline and spec.url and not _is_loopback(spec.url):
                address = without_passwords(spec.url)
                raise UsageError(
                    f"the server {spec.name} is at {address}, which --offline does not allow",
                    "leave out --offline, or the server",
                )
            number, name = 1, spec.name
            while name in found:
                number += 1
                name = f"{spec.name}-{number}"
            found[name] = replace(spec, name=name)
    return list(found.values())


def _parse(value: str) -> list[ServerSpec]:
    if value.startswith(("http://", "https://")):
        # Without dots: they separate the name of a server from that of its tool.
        return [ServerSpec(_plain(_host(value)), url=value)]
    path = user_path(value)
    if value.endswith(".json") and (path.is_file() or len(value.split()) == 1):
        return _read(path, value)
    words = split_words(value, "--mcp")
    if not words:
        _reject("--mcp has an empty command")
    # As in a shell, `~/bin/server` is a path.
    words = [str(user_path(word)) if word.startswith("~/") else word for word in words]
    return [ServerSpec(_name_of(words), tuple(words))]


def _name_of(words: list[str]) -> str:
    """Return a name for a server from its command line: the last program or package in it."""
    names = (Path(word).stem for word in words if not word.startswith("-"))
    name = next((name for name in names if not _LAUNCHERS.fullmatch(name)), words[0])
    return _plain(name) or "server"


def _plain(name: str) -> str:
    """Return a name with letters, digits, `_` and `-` only, "" if there are none."""
    return re.sub(r"[^\w-]+", "-", name, flags=re.ASCII).strip("-")[:64]


def _read(path: Path, name: str) -> list[ServerSpec]:
    """Read a file in the layout {"mcpServers": {NAME: {"command": …} or {"url": …}}}."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileSystemError.reading(name, error) from error
    if len(data) > _MAX_FILE_BYTES:
        _reject(f"{name} is larger than {_MAX_FILE_BYTES} bytes")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        _reject(f"{name} is not valid JSON: {error}")
    servers = value.get("mcpServers") if isinstance(value, dict) else None
    if not isinstance(servers, dict):
        _reject(f'{name} has no object "mcpServers"')
    return [
        _spec(key, fields, f"{name}: mcpServers.{key}")
        for key, fields in servers.items()
        if not (isinstance(fields, dict) and fields.get("disabled") is True)
    ]


def _spec(key: str, fields: Any, place: str) -> ServerSpec:
    if not isinstance(fields, dict):
        _reject(f"{place} is not an object")
    name = _plain(key)
    if not name:
        _reject(f"{place}: the name needs a letter or a digit")
    url, command = fields.get("url"), fields.get("command")
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        is_sse = fields.get("type", fields.get("transport")) == "sse"
        headers = _texts(fields, "headers", place)
        return ServerSpec(name, url=url, headers=headers, is_sse=is_sse)
    if not isinstance(command, str) or not command:
        _reject(f"{place} has neither a command nor an url")
    args, cwd = fields.get("args", []), fields.get("cwd")
    if not isinstance(args, list) or not all(isinstance(word, str) for word in args):
        _reject(f"{place}.args is not a list of texts")
    if not isinstance(cwd, str | None):
        _reject(f"{place}.cwd is not a text")
    command, cwd = str(user_path(command)), cwd and str(user_path(cwd))
    return ServerSpec(name, (command, *args), _texts(fields, "env", place), cwd)


def _texts(fields: dict[str, Any], key: str, place: str) -> dict[str, str]:
    value = fields.get(key, {})
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        _reject(f"{place}.{key} is not an object of texts")
    return dict(value)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or "server"
    except ValueError:
        _reject(f"--mcp {without_passwords(url)!r} is not an address")


def _is_loopback(url: str) -> bool:
    host = _host(url)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _reject(reason: str) -> Never:
    raise UsageError(
        reason, "--mcp takes a command line, an address or a JSON file with mcpServers"
    )
