"""Import of conversations: the JSON of `export`, ChatGPT's export, and lists of messages.

The files are untrusted. An invalid value raises `UsageError` with its position in the file, and
nothing is imported.
"""

import json
from collections.abc import Iterator
from typing import Any, Never

from swiftchat.chat.history.conversation import Conversation, Message, Role, title_of
from swiftchat.chat.history.fields import count_of, settings_of, text_of, time_of
from swiftchat.chat.history.tool_call import ToolCall, parse_tool_calls
from swiftchat.chat.history.transcript import FORMAT
from swiftchat.errors import UsageError

_ROLES: dict[object, Role] = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "model": "assistant",
    "gpt": "assistant",
}


def import_conversations(data: bytes, name: str) -> list[Conversation]:
    """Parse the conversations in a file; `name` is the name of the file for errors.

    The conversations get new ids; ids in the file only link messages to their parents.
    """
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        _reject(name, f"not valid JSON: {error}")
    return list(_parse(value, name))


def _parse(value: Any, name: str) -> Iterator[Conversation]:
    if isinstance(value, list) and value and all(_is_message(item) for item in value):
        yield _from_list(value, {}, name)
    elif isinstance(value, list) and value:
        for number, item in enumerate(value):
            if not isinstance(item, dict):
                _reject(f"{name}[{number}]", "neither a conversation nor a message")
            yield _parse_one(item, f"{name}[{number}]")
    elif isinstance(value, dict):
        yield _parse_one(value, name)
    else:
        _reject(name, "not a conversation")


def _parse_one(value: dict[str, Any], name: str) -> Conversation:
    """Parse one object; its keys determine the format."""
    if "swiftchat" in value:
        return _from_export(value, name)
    if isinstance(value.get("mapping"), dict):
        return _from_chatgpt(value, name)
    if not isinstance(value.get("messages"), list):
        _reject(name, "not a conversation: neither `messages` nor `mapping`")
    return _from_list(value["messages"], value, name)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and "role" in value and "content" in value


def _from_export(value: dict[str, Any], name: str) -> Conversation:
    if value["swiftchat"] != FORMAT:
        _reject(name, f"unsupported format version {value['swiftchat']!r}")
    conversation = Conversation(
        text_of(value.get("system")), title=text_of(value.get("title")) or ""
    )
    conversation.created = time_of(value.get("created")) or conversation.created
    conversation.settings = settings_of(value.get("settings"))
    by_id: dict[object, Message] = {}
    for number, item in enumerate(_list(value, "messages", name)):
        place = f"{name}: messages[{number}]"
        if not _is_message(item) or item["role"] not in ("user", "assistant", "tool"):
            _reject(place, "not a message of a user, an assistant or a tool")
        parent = item.get("parent")
        if parent is not None and text_of(parent) not in by_id:
            _reject(place, f"the parent {parent!r} is not an earlier message")
        message = Message(item["role"], _content(item["content"], place), by_id.get(parent))
        message.reasoning, message.model = (
            text_of(item.get("reasoning")),
            text_of(item.get("model")),
        )
        message.finish_reason = text_of(item.get("finish_reason"))
        message.params = settings_of(item.get("params"))
        message.created = time_of(item.get("created")) or message.created
        message.seconds = time_of(item.get("seconds"))
        message.prompt_tokens = count_of(item.get("prompt_tokens"))
        message.completion_tokens = count_of(item.get("completion_tokens"))
        message.tool_calls = _tool_calls(item, place)
        by_id[text_of(item.get("id")) or message.id] = conversation.insert(message)
    conversation.tip = by_id.get(text_of(value.get("tip")))
    return _completed(conversation)


def _from_list(messages: list[Any], value: dict[str, Any], name: str) -> Conversation:
    """Parse the messages of an OpenAI or ollama request, which may name a `model`."""
    conversation = Conversation(title=text_of(value.get("title")) or "")
    model = text_of(value.get("model"))
    for number, item in enumerate(messages):
        place = f"{name}: messages[{number}]"
        if not _is_message(item):
            _reject(place, "not a message: `role` and `content` are needed")
        content, role = _content(item["content"], place), _ROLES.get(text_of(item["role"]))
        if item["role"] in ("system", "developer"):
            conversation.system = conversation.system or content
        elif item["role"] == "tool":
            _add_tool_result(conversation, item, content)
        elif role is not None and (content or item.get("tool_calls")):
            message = _new_message(role, content, conversation.tip, model)
            message.tool_calls = parse_tool_calls(item.get("tool_calls"))
            conversation.tip = conversation.insert(message)
    return _completed(conversation)


def _tool_calls(item: dict[str, Any], place: str) -> list[ToolCall]:
    calls = parse_tool_calls(item.get("tool_calls"))
    if item["role"] == "tool" and len(calls) != 1:
        _reject(place, "the result of a tool without its call in `tool_calls`")
    return calls if item["role"] != "user" else []


def _add_tool_result(conversation: Conversation, item: dict[str, Any], content: str) -> None:
    """Append the result of an earlier call; a result without a call is left out."""
    calls = [call for message in conversation.messages for call in message.tool_calls]
    for call in reversed(calls):
        if call.id == item.get("tool_call_id"):
            conversation.add_tool_result(call, content)
            return


def _from_chatgpt(value: dict[str, Any], name: str) -> Conversation:
    """Parse ChatGPT's tree of nodes; nodes without user or assistant text are skipped."""
    conversation = Conversation(title=text_of(value.get("title")) or "")
    conversation.created = time_of(value.get("create_time")) or conversation.created
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
        made[key] = _chatgpt_message(nodes[key].get("message"), made[parent_key], conversation)
        pending += [(child, key) for child in reversed(children.get(key, []))]
    conversation.tip = made.get(text_of(value.get("current_node")))
    if not conversation.tree:
        _reject(name, "no message of a user or an assistant")
    return _completed(conversation)


def _chatgpt_message(
    value: Any, parent: Message | None, conversation: Conversation
) -> Message | None:
    """Insert the message of a node and return it; return the parent if there is none."""
    if not isinstance(value, dict) or not isinstance(value.get("author"), dict):
        return parent
    content = value.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    is_text = isinstance(content, dict) and content.get("content_type") in (
        "text",
        "multimodal_text",
    )
    text = "".join(p for p in parts if isinstance(p, str)) if isinstance(parts, list) else ""
    role = _ROLES.get(text_of(value["author"].get("role")))
    if not is_text or role is None or not text:
        return parent
    metadata = value.get("metadata")
    model = text_of(metadata.get("model_slug")) if isinstance(metadata, dict) else None
    message = _new_message(role, text, parent, model)
    message.created = time_of(value.get("create_time")) or message.created
    return conversation.insert(message)


def _new_message(role: Role, text: str, parent: Message | None, model: str | None) -> Message:
    if role == "user":
        return Message(role, text, parent)
    return Message(role, text, parent, model=model, finish_reason="stop")


def _completed(conversation: Conversation) -> Conversation:
    """Set the tip and the title if the file has none."""
    if conversation.tip is None and conversation.tree:
        conversation.tip = conversation.tree[-1]
    first = next((message.content for message in conversation.messages), "")
    conversation.title = title_of(conversation.title or first)
    return conversation


def _content(value: Any, place: str) -> str:
    """Return a string, or the joined texts of OpenAI's list of parts."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        _reject(place, "the content is not text")
    texts = [part.get("text") if isinstance(part, dict) else part for part in value]
    return "\n\n".join(text for text in texts if isinstance(text, str))


def _list(value: dict[str, Any], key: str, name: str) -> list[Any]:
    found = value.get(key)
    if not isinstance(found, list):
        _reject(name, f"`{key}` is not a list")
    return found


def _reject(place: str, reason: str) -> Never:
    raise UsageError(
        f"{place}: {reason}",
        "supported: swiftchat's JSON, ChatGPT's conversations.json, lists of role and content",
    )
