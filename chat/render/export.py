"""The formats of exported conversations, by the endings of their files."""

from collections.abc import Callable

from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.transcript import as_json, as_markdown


def _as_page(conversation: Conversation) -> str:
    # Imported here: it needs the Markdown parser, which would delay the prompt.
    from swiftchat.chat.render.web_page import web_page

    return web_page(conversation)


FORMATS: dict[str, Callable[[Conversation], str]] = {
    "md": as_markdown,
    "json": as_json,
    "html": _as_page,
}


def format_of(file: str) -> str | None:
    """Return the format that the ending of a name says, None for another ending."""
    return next((name for name in FORMATS if file.lower().endswith(f".{name}")), None)
