"""Rows of the store and conversations; wrong values in a row are left out."""

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from swiftchat.chat.history.conversation import MESSAGE_FIELDS, Conversation, Message
from swiftchat.chat.history.fields import count_of, json_of, settings_of, text_of, time_of
from swiftchat.chat.history.search import folded_unless_ascii
from swiftchat.chat.history.tool_call import parse_tool_calls

_ROLES = ("user", "assistant", "tool")


def conversation_of(
    session: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]
) -> tuple[Conversation, int]:
    """Return a conversation and the number of its rows that are no messages.

    The row of a parent comes before those of its children. Children of a left-out message follow
    its parent.
    """
    messages: dict[object, Message | None] = {None: None}
    num_damaged = 0
    for row in rows:
        parent = messages.get(row["parent"])
        message = _message_of(row, parent)
        if message is None:
            num_damaged += 1
        if row["id"] is not None:
            messages[row["id"]] = message or parent
    found = [one for one in dict.fromkeys(messages.values()) if one is not None]
    conversation = Conversation(
        text_of(session["system"]),
        session["id"],
        text_of(session["name"]),
        text_of(session["title"]) or "",
        time_of(session["created"]) or 0.0,
        settings_of(json_of(session["settings"])),
        bool(session["is_one_shot"]),
        found,
        messages.get(session["tip"]),
    )
    return conversation, num_damaged


def _message_of(row: Mapping[str, Any], parent: Message | None) -> Message | None:
    """Return a message, None if its id, role or content is damaged."""
    id_, role, content = text_of(row["id"]), row["role"], text_of(row["content"])
    calls = parse_tool_calls(json_of(row["tool_calls"]))
    if id_ is None or role not in _ROLES or content is None or (role == "tool") > len(calls):
        return None
    return Message(
        role,
        content,
        parent,
        id_,
        time_of(row["created"]) or 0.0,
        text_of(row["reasoning"]),
        text_of(row["model"]),
        settings_of(json_of(row["params"])),
        text_of(row["finish_reason"]),
        count_of(row["prompt_tokens"]),
        count_of(row["completion_tokens"]),
        time_of(row["seconds"]),
        calls,
    )


def session_row(conversation: Conversation) -> dict[str, Any]:
    """Return the columns of a conversation, which is used now."""
    return {
        "id": conversation.id,
        "name": _value(conversation.name),
        "title": _value(conversation.title),
        "system": _value(conversation.system),
        "settings": _value(conversation.settings),
        "is_one_shot": conversation.is_one_shot,
        "tip": conversation.tip and conversation.tip.id,
        "created": conversation.created,
        "updated": time.time(),
    }


def message_row(conversation: Conversation, message: Message) -> dict[str, Any]:
    """Return the columns of a message."""
    columns = {name: _value(getattr(message, name)) for name in MESSAGE_FIELDS}
    parent = message.parent and message.parent.id
    columns["folded"] = folded_unless_ascii(columns["content"])
    return {"id": message.id, "session": conversation.id, "parent": parent, **columns}


def _value(value: Any) -> Any:
    """Convert a value for SQLite: dicts and calls to JSON, surrogates (wrong bytes) to `?`."""
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, list):
        return json.dumps([call.as_object() for call in value]) if value else None
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
