"""The tool that fetches a page."""

import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

from swiftchat.chat.tools.tool import Action
from swiftchat.errors import UsageError


def fetch(offline: bool, url: Annotated[str, "An http or https address."]) -> Action:
    """Return a page of the web as Markdown, without links and images."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https"):
        raise UsageError(f"{url} is not an address", "https://HOST/PATH")

    def run() -> str:
        # Imported here: most chats need no HTTP.
        from swiftchat.chat.attachments.page import fetch_page

        return fetch_page(url, offline=offline).text

    warning = f"{host} is in your own network" if _is_near(host) else ""
    return Action(run, f"fetch from {host}", warning=warning)


def _is_near(host: str) -> bool:
    """Return whether a host is this machine or near it, where pages may be private."""
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        name = host.rstrip(".")
        return "." not in name or name.endswith((".local", ".localhost", ".internal", ".home.arpa"))
