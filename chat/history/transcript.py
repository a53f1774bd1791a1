"""Export of a conversation as Markdown or JSON."""

import json
import time
from typing import Any

from swiftchat.chat.history.conversation import MESSAGE_FIELDS, Conversation, Message
from swiftchat.errors import FileSystemError
from swiftchat.weights.files.output import is_stream, open_output
from swiftchat.weights.files.paths import user_path

FORMAT = 1  # version of the exported JSON


def as_markdown(conversation: Conversation) -> str:
    """Return the current path as Markdown, with a heading for each message."""
    parts = [f"# {conversation.title or 'Conversation'}"]
    parts.append(time.strftime("%Y-%m-%d %H:%M", time.localtime(conversation.created)))
    if conversation.system:
        parts += ["## System", conversation.system]
    for message in conversation.messages:
        if message.role == "tool":
            names = ", ".join(call.name for call in message.tool_calls)
            parts += [f"## Result of {names}", _indented(message.content)]
            continue
        parts += [f"## {author(message)}", *filter(None, [message.content])]
        parts += [f"Calls `{call.text}`" for call in message.tool_calls]
        if message.interrupted:
            parts.append("*(stopped here)*")
    return "\n\n".join(parts) + "\n"


def author(message: Message) -> str:
    """Return the name of a message's author: You, or the model without its folders."""
    if message.role == "user":
        return "You"
    model = (message.model or "").rstrip("/")
    return model.rpartition("/")[2] or "Assistant"


def _indented(text: str) -> str:
    """Return a text as a Markdown code block, which no content can end."""
    return "\n".join(f"    {line}" for line in text.splitlines())


def as_json(conversation: Conversation) -> str:
    """Return the whole tree as JSON text; see `as_object`."""
    return json.dumps(as_object(conversation), ensure_ascii=False, indent=1) + "\n"


def as_object(conversation: Conversation) -> dict[str, Any]:
    """Return the whole tree as a JSON object.

    `messages` lists parents before their children; `tip` and `parent` are ids of messages.
    """
    return {
        "swiftchat": FORMAT,
        "id": conversation.id,
        "name": conversation.name,
        "title": conversation.title,
        "created": conversation.created,
        "system": conversation.system,
        "settings": conversation.settings,
        "tip": conversation.tip and conversation.tip.id,
        "messages": [_message(message) for message in conversation.tree],
    }


def _message(message: Message) -> dict[str, Any]:
    fields = {name: getattr(message, name) for name in MESSAGE_FIELDS}
    fields["tool_calls"] = [call.as_object() for call in message.tool_calls]
    known = {name: value for name, value in fields.items() if value not in (None, {}, [])}
    return {"id": message.id, "parent": message.parent and message.parent.id, **known}


def write_file(file: str, text: str, *, force: bool = False) -> None:
    """Write a file, or to a device or FIFO.

    Raises `FileSystemError` if that fails or, without `force`, if the file exists.
    """
    path = user_path(file)
    if path.exists() and not force and not is_stream(path):
        raise FileSystemError(f"{file} exists already", "choose another name, or add --force")
    with open_output(path) as stream:
        stream.write(text.encode("utf-8", "replace"))
