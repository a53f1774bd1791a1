"""A conversation as a file: Markdown for people, JSON for programs."""

import json
import time
from pathlib import Path
from typing import Any

from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.errors import FileSystemError

FORM = 1  # counts changes of the JSON that readers must know about

# What the JSON has of a message besides its place in the tree, where it is known.
MESSAGE_FIELDS = (
    "role",
    "content",
    "reasoning",
    "model",
    "params",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "created",
    "seconds",
)


def as_markdown(conversation: Conversation) -> str:
    """The path in use, a heading for each message; an answer that was cut says so."""
    parts = [f"# {conversation.title or 'Conversation'}"]
    parts.append(time.strftime("%Y-%m-%d %H:%M", time.localtime(conversation.created)))
    if conversation.system:
        parts += ["## System", conversation.system]
    for message in conversation.messages:
        parts += [f"## {_speaker(message)}", message.content]
        if message.interrupted:
            parts.append("*(stopped here)*")
    return "\n\n".join(parts) + "\n"


def _speaker(message: Message) -> str:
    if message.role == "user":
        return "You"
    model = (message.model or "").rstrip("/")
    return model.rpartition("/")[2] or "Assistant"


def as_json(conversation: Conversation) -> str:
    """The whole tree, one object of the form `as_object`."""
    return json.dumps(as_object(conversation), ensure_ascii=False, indent=1) + "\n"


def as_object(conversation: Conversation) -> dict[str, Any]:
    """`messages` come after their parents; `tip` and `parent` are ids of messages."""
    return {
        "swiftchat": FORM,
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
    known = {name: value for name, value in fields.items() if value not in (None, {})}
    return {"id": message.id, "parent": message.parent and message.parent.id, **known}


def write_new(file: str, text: str) -> None:
    """Write a file that does not exist yet; `FileSystemError` if it cannot be."""
    path = Path(file).expanduser()
    try:
        with path.open("x", encoding="utf-8", errors="replace") as stream:
            stream.write(text)
    except FileExistsError:
        raise FileSystemError(f"{file} exists already", "choose another name") from None
    except OSError as error:
        raise FileSystemError(f"cannot write {file}: {error.strerror}") from error
