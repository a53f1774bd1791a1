"""A conversation of ChatGPT's export: a tree of nodes, of which some hold messages."""

import re
from collections import Counter
from typing import Any

from swiftchat.chat.history.conversation import Conversation, Message, Role
from swiftchat.chat.history.fields import text_of, time_of
from swiftchat.chat.history.parts import text_of_parts

_ROLES: dict[object, Role] = {"user": "user", "assistant": "assistant"}
# Content that the service adds: it shows neither the text nor that there is one.
_HIDDEN = ("user_editable_context", "model_editable_context")
_REASONING = ("thoughts", "reasoning_recap")
_LANGUAGE = re.compile(r"[A-Za-z0-9+#.-]{1,20}")


def read_tree(value: dict[str, Any], left_out: Counter[str]) -> Conversation:
    """Return the conversation of an object with a `mapping`; count what it loses by its kind.

    Hidden nodes and empty ones are skipped.
    """
    conversation = Conversation(title=text_of(value.get("title")) or "")
    conversation.created = time_of(value.get("create_time")) or conversation.created
    model = text_of(value.get("default_model_slug"))
    mapping: dict[object, Any] = value["mapping"]
    nodes = {key: node for key, node in mapping.items() if isinstance(node, dict)}
    children: dict[object, list[object]] = {}
    for key, node in nodes.items():
        parent = text_of(node.get("parent"))
        children.setdefault(parent if parent in nodes else None, []).append(key)
    made: dict[object, Message | None] = {None: None}
    pending: list[tuple[object, object]] = [(key, None) for key in reversed(children.get(None, []))]
    while pending:  # a cycle has no root, so no node is visited twice
        key, parent_key = pending.pop()
        message = _message(nodes[key].get("message"), made[parent_key], model, left_out)
        made[key] = made[parent_key] if message is None else conversation.insert(message)
        pending += [(child, key) for child in reversed(children.get(key, []))]
    left_out["message without a beginning"] += len(nodes) - len(made) + 1
    conversation.tip = made.get(text_of(value.get("current_node")))
    return conversation


def _message(
    value: Any, parent: Message | None, model: str | None, left_out: Counter[str]
) -> Message | None:
    """Return the message of a node, None if there is none to import."""
    if not isinstance(value, dict) or not isinstance(value.get("author"), dict):
        return None
    author, content, metadata = value["author"], value.get("content"), value.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    if not isinstance(content, dict) or metadata.get("is_visually_hidden_from_conversation"):
        return None
    kind, name = content.get("content_type"), text_of(author.get("role"))
    if kind in _HIDDEN or name == "system":
        return None
    role = _ROLES.get(name)
    text = "" if role is None or kind in _REASONING else _text(content, left_out)
    if role is None or not text:
        if name == "tool":
            left_out["output of a tool"] += 1
        elif kind in _REASONING:
            left_out["reasoning"] += 1
        return None
    message = Message(role, text, parent)
    if role == "assistant":
        message.model, message.finish_reason = text_of(metadata.get("model_slug")) or model, "stop"
    message.created = time_of(value.get("create_time")) or message.created
    return message


def _text(content: dict[str, Any], left_out: Counter[str]) -> str:
    if content.get("content_type") != "code":
        parts = content.get("parts")
        return text_of_parts(parts if isinstance(parts, list) else [content], left_out)
    code, language = text_of(content.get("text")) or "", text_of(content.get("language")) or ""
    if not code:
        return ""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
    info = language if language != "unknown" and _LANGUAGE.fullmatch(language) else ""
    return f"{fence}{info}\n{code}\n{fence}"
