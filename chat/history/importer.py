"""Conversations from files: our own JSON, ChatGPT's export, and lists of messages.

Everything in such a file was written by somebody else: what is not as it should be is refused with
its place, and nothing of the file is kept then.
"""

import json
from collections.abc import Iterator
from typing import Any, Never

from swiftchat.chat.history.conversation import Conversation, Message, Role, title_of
from swiftchat.chat.history.transcript import FORM
from swiftchat.errors import UsageError

_ROLES: dict[object, Role] = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "model": "assistant",
    "gpt": "assistant",
}
_SETTINGS = (str, int, float, list)


def conversations_of(data: bytes, name: str) -> list[Conversation]:
    """The conversations in a file's bytes; `UsageError` naming `name` and what is wrong.

    They are new ones: ids of the file serve only to tell who follows whom.
    """
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        _refuse(name, f"no JSON: {error}")
    return list(_all(value, name))


def _all(value: Any, name: str) -> Iterator[Conversation]:
    if isinstance(value, list) and value and all(_is_message(item) for item in value):
        yield _from_list(value, {}, name)
    elif isinstance(value, list) and value:
        for number, item in enumerate(value):
            if not isinstance(item, dict):
                _refuse(f"{name}[{number}]", "neither a conversation nor a message")
            yield _one(item, f"{name}[{number}]")
    elif isinstance(value, dict):
        yield _one(value, name)
    else:
        _refuse(name, "no conversation")


def _one(value: dict[str, Any], name: str) -> Conversation:
    """One object, by what it has."""
    if "swiftchat" in value:
        return _own(value, name)
    if isinstance(value.get("mapping"), dict):
        return _chatgpt(value, name)
    if not isinstance(value.get("messages"), list):
        _refuse(name, "no conversation: it has neither `messages` nor `mapping`")
    return _from_list(value["messages"], value, name)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and "role" in value and "content" in value


def _own(value: dict[str, Any], name: str) -> Conversation:
    if value["swiftchat"] != FORM:
        _refuse(name, f"written by a newer swiftchat (form {value['swiftchat']!r})")
    conversation = Conversation(_text(value.get("system")), title=_text(value.get("title")) or "")
    conversation.created = _time(value, "created") or conversation.created
    conversation.settings = _settings(value.get("settings"))
    by_id: dict[object, Message] = {}
    for number, item in enumerate(_list(value, "messages", name)):
        place = f"{name}: messages[{number}]"
        if not _is_message(item) or item["role"] not in ("user", "assistant"):
            _refuse(place, "no message of a user or an assistant")
        parent = item.get("parent")
        if parent is not None and parent not in by_id:
            _refuse(place, f"it follows {parent!r}, which does not come before it")
        message = Message(item["role"], _content(item["content"], place), by_id.get(parent))
        message.reasoning, message.model = _text(item.get("reasoning")), _text(item.get("model"))
        message.finish_reason = _text(item.get("finish_reason"))
        message.params = _settings(item.get("params"))
        message.created = _time(item, "created") or message.created
        message.seconds = _time(item, "seconds")
        message.prompt_tokens = _count(item, "prompt_tokens")
        message.completion_tokens = _count(item, "completion_tokens")
        by_id[_text(item.get("id")) or message.id] = conversation.put(message)
    conversation.tip = by_id.get(_text(value.get("tip")))
    return _titled(conversation)


def _from_list(messages: list[Any], value: dict[str, Any], name: str) -> Conversation:
    """As OpenAI's and ollama's requests have them, with a `model` beside."""
    conversation = Conversation(title=_text(value.get("title")) or "")
    model = _text(value.get("model"))
    for number, item in enumerate(messages):
        place = f"{name}: messages[{number}]"
        if not _is_message(item):
            _refuse(place, "no message: it needs a `role` and a `content`")
        content = _content(item["content"], place)
        if item["role"] in ("system", "developer"):
            conversation.system = conversation.system or content
        elif item["role"] in _ROLES and content:
            role = _ROLES[item["role"]]
            conversation.tip = conversation.put(_foreign(role, content, conversation.tip, model))
    return _titled(conversation)


def _chatgpt(value: dict[str, Any], name: str) -> Conversation:
    """A tree of nodes; those without a text of user or assistant are passed over."""
    conversation = Conversation(title=_text(value.get("title")) or "")
    conversation.created = _time(value, "create_time") or conversation.created
    mapping: dict[object, Any] = value["mapping"]
    nodes = {key: node for key, node in mapping.items() if isinstance(node, dict)}
    after: dict[object, list[object]] = {}
    for key, node in nodes.items():
        parent = _text(node.get("parent"))
        after.setdefault(parent if parent in nodes else None, []).append(key)
    made: dict[object, Message | None] = {None: None}
    waiting: list[tuple[object, object]] = [(key, None) for key in reversed(after.get(None, []))]
    while waiting:  # a cycle has no root, so nothing is met twice
        key, parent_key = waiting.pop()
        made[key] = _chatgpt_message(nodes[key].get("message"), made[parent_key], conversation)
        waiting += [(child, key) for child in reversed(after.get(key, []))]
    conversation.tip = made.get(_text(value.get("current_node")))
    if not conversation.tree:
        _refuse(name, "no message of a user or an assistant")
    return _titled(conversation)


def _chatgpt_message(
    value: Any, parent: Message | None, conversation: Conversation
) -> Message | None:
    """The node's message, put into the conversation; the parent where it has none."""
    if not isinstance(value, dict) or not isinstance(value.get("author"), dict):
        return parent
    content = value.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    is_text = isinstance(content, dict) and content.get("content_type") in (
        "text",
        "multimodal_text",
    )
    text = "".join(p for p in parts if isinstance(p, str)) if isinstance(parts, list) else ""
    role = _ROLES.get(value["author"].get("role"))
    if not is_text or role is None or not text:
        return parent
    metadata = value.get("metadata")
    model = _text(metadata.get("model_slug")) if isinstance(metadata, dict) else None
    message = _foreign(role, text, parent, model)
    message.created = _time(value, "create_time") or message.created
    return conversation.put(message)


def _foreign(role: Role, text: str, parent: Message | None, model: str | None) -> Message:
    if role == "user":
        return Message(role, text, parent)
    return Message(role, text, parent, model=model, finish_reason="stop")


def _titled(conversation: Conversation) -> Conversation:
    """With a tip and a title, which a file need not have."""
    if conversation.tip is None and conversation.tree:
        conversation.tip = conversation.tree[-1]
    first = next((message.content for message in conversation.messages), "")
    conversation.title = title_of(conversation.title or first)
    return conversation


def _content(value: Any, place: str) -> str:
    """A text, or OpenAI's list of parts, of which the texts are taken."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        _refuse(place, "its content is no text")
    texts = [part.get("text") if isinstance(part, dict) else part for part in value]
    return "\n\n".join(text for text in texts if isinstance(text, str))


def _settings(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    return {str(key): item for key, item in value.items() if isinstance(item, _SETTINGS)}


def _list(value: dict[str, Any], key: str, name: str) -> list[Any]:
    found = value.get(key)
    if not isinstance(found, list):
        _refuse(name, f"`{key}` is no list")
    return found


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _time(value: dict[str, Any], key: str) -> float | None:
    found = value.get(key)
    if not isinstance(found, int | float) or not 0 <= found < 1e11:  # nor NaN
        return None
    return float(found)


def _count(value: dict[str, Any], key: str) -> int | None:
    found = value.get(key)
    return found if isinstance(found, int) and 0 <= found < 1 << 53 else None


def _refuse(place: str, reason: str) -> Never:
    raise UsageError(
        f"{place}: {reason}",
        "known: swiftchat's own export, ChatGPT's conversations.json, lists of role and content",
    )
