"""The tool that fetches a page."""

import contextlib
import ipaddress
import socket
from typing import Annotated
from urllib.parse import urlsplit

from swiftchat.chat.tools.tool import Action
from swiftchat.errors import UsageError


def fetch(offline: bool, url: Annotated[str, "An http or https address."]) -> Action:
    """Return a page of the web as Markdown, without links and images."""
    host = _host(url)
    if not host:
        raise UsageError(f"{url} is not an address", "https://HOST/PATH")

    def check(target: str) -> None:
        if _is_near(_host(target)) and not _is_near(host):
            raise UsageError(f"{host} redirects to {target}, in your own network", "fetch that")

    def run() -> str:
        # Imported here: most chats need no HTTP.
        from swiftchat.chat.attachments.page import fetch_page

        return fetch_page(url, offline=offline, check=check).text

    warning = f"{host} is in your own network" if _is_near(host) else ""
    return Action(run, f"fetch from {host}", warning=warning)


def _host(url: str) -> str:
    """Return the host of an http or https address, "" for anything else."""
    try:
        parts = urlsplit(url)
        return (parts.hostname or "") if parts.scheme in ("http", "https") else ""
    except ValueError:
        return ""


def _is_near(host: str) -> bool:
    """Return whether a host is this machine or near it, where pages may be private."""
    with contextlib.suppress(ValueError):
        return not ipaddress.ip_address(host).is_global
    with contextlib.suppress(OSError):  # 0x7f.1 and 2130706433 are addresses as well
        return not ipaddress.ip_address(socket.inet_aton(host)).is_global
    name = host.rstrip(".")
    return "." not in name or name.endswith((".local", ".localhost", ".internal", ".home.arpa"))
