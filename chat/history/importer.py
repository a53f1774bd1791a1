"""Import of conversations: the JSON of `export`, ChatGPT's export, and lists of messages.

The files are untrusted. What is no conversation or no message is left out and named with its place
in the file.
"""

import io
import json
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from swiftchat.chat.attachments.user_text import decode_text
from swiftchat.chat.history.chatgpt import read_tree
from swiftchat.chat.history.conversation import Conversation, Message, Role, title_of
from swiftchat.chat.history.fields import count_of, settings_of, text_of, time_of
from swiftchat.chat.history.parts import text_of_parts
from swiftchat.chat.history.tool_call import parse_tool_calls
from swiftchat.chat.history.transcript import FORMAT
from swiftchat.errors import UsageError

MAX_BYTES = 1 << 29
_ROLES: dict[object, Role] = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "model": "assistant",
    "gpt": "assistant",
}
# Large archives of ChatGPT divide the conversations among several files.
_MEMBER = re.compile(r"(.*/)?conversations([-_]?\d+)?\.json")
_MAX_DIGITS = 400
_MAX_TITLE = 40
_HINT = (
    "supported: swiftchat's JSON, ChatGPT's conversations.json or zip, lists of role and content"
)

Note = Callable[[str], object]  # is told what is left out, and why


class _Unusable(Exception):
    """No conversation, or no message."""


def import_conversations(
    data: bytes, name: str, leave_out: Note = lambda note: None
) -> list[Conversation]:
    """Return the conversations in a file; `name` is the name of the file for errors.

    The conversations get new ids; ids in the file only link messages to their parents. `leave_out`
    is called for what cannot be imported. Raises `UsageError` if there is no conversation.
    """
    notes: list[str] = []
    found = []
    for file, content in _files(data, name, notes.append):
        for place, value in _values(content, file, notes.append):
            try:
                found.append(_conversation(value, place, notes.append))
            except _Unusable as error:
                notes.append(f"{place}: {error}")
    if not found:
        reason = notes[0] if notes else f"{name}: there is no conversation"
        more = f", and {len(notes) - 1} more" if len(notes) > 1 else ""
        raise UsageError(f"{reason}{more}", _HINT)
    for note in notes:
        leave_out(note)
    return found


def _files(data: bytes, name: str, note: Note) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each JSON file: the file itself, or those in a zip."""
    if not data.startswith(b"PK"):
        yield name, data
        return
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        note(f"{name}: not a valid zip file: {error}")
        return
    with archive:
        members = [one for one in archive.infolist() if _MEMBER.fullmatch(one.filename)]
        if not members:
            note(f"{name}: the zip file has no conversations.json")
        for member in sorted(members, key=lambda one: one.filename):
            place = f"{name}: {member.filename}"
            try:
                with archive.open(member) as file:
                    content = file.read(MAX_BYTES + 1)
            except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
                note(f"{place}: it cannot be read: {error}")
                continue
            if len(content) > MAX_BYTES:
                note(f"{place}: it is larger than {MAX_BYTES >> 20} MiB")
                continue
            yield place, content


def _values(data: bytes, name: str, note: Note) -> Iterator[tuple[str, Any]]:
    """Yield the objects that may be conversations, and their places."""
    decoded = decode_text(data)
    if decoded is None:
        note(f"{name}: it is not a text file")
        return
    text, num_invalid = decoded
    if num_invalid:
        note(f"{name}: bytes that are not UTF-8 are replaced: {num_invalid}")
    value = _json(text, name, note)
    if isinstance(value, list) and not (value and all(map(_is_message, value))):
        yield from ((f"{name}[{number}]", item) for number, item in enumerate(value))
    elif value is not None:
        yield name, value


def _json(text: str, name: str, note: Note) -> Any:
    """Parse JSON. Of a list that ends early or has an error, return the items before that."""
    decoder = json.JSONDecoder(parse_int=_int_or_text)
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError) as error:
        reason = _reason(error)
    items: list[Any] = []
    start = re.match(r"\s*\[\s*", text)
    position = start.end() if start else len(text)
    while position < len(text):
        try:
            item, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            reason = _reason(error)
            break
        items.append(item)
        separator = re.compile(r"\s*,\s*").match(text, position)
        position = separator.end() if separator else len(text)
    behind = f" from item {len(items)} on" if items else ""
    note(f"{name}: not valid JSON{behind}: {reason}")
    return items or None


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _int_or_text(digits: str) -> int | str:
    """Return a number; Python refuses those of thousands of digits, which nothing here needs."""
    return int(digits) if len(digits) <= _MAX_DIGITS else digits


def _conversation(value: Any, place: str, note: Note) -> Conversation:
    """Parse one conversation; its keys determine the format."""
    left_out: Counter[str] = Counter()
    if isinstance(value, list):
        conversation = _from_list(value, {}, place, note, left_out)
    elif not isinstance(value, dict):
        raise _Unusable("neither a conversation nor a message")
    elif "swiftchat" in value:
        conversation = _from_export(value, place, note, left_out)
    elif isinstance(value.get("mapping"), dict):
        conversation = read_tree(value, left_out)
    elif isinstance(value.get("messages"), list):
        conversation = _from_list(value["messages"], value, place, note, left_out)
    else:
        raise _Unusable("not a conversation: neither `messages` nor `mapping`")
    if not conversation.tree:
        title = title_of(conversation.title)[:_MAX_TITLE]
        named = f" in the conversation {title!r}" if title else ""
        raise _Unusable(f"no message of a user or an assistant{named}")
    if conversation.tip is None:
        conversation.tip = conversation.tree[-1]
    first = next((message.content for message in conversation.messages), "")
    conversation.title = title_of(conversation.title or first)
    if lost := ", ".join(f"{count} × {kind}" for kind, count in left_out.items() if count):
        note(f"{place}: parts of {conversation.title[:_MAX_TITLE]!r}: {lost}")
    return conversation


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and "role" in value and "content" in value


def _from_export(
    value: dict[str, Any], place: str, note: Note, left_out: Counter[str]
) -> Conversation:
    if value["swiftchat"] != FORMAT:
        raise _Unusable(f"unsupported format version {str(value['swiftchat'])[:_MAX_TITLE]}")
    conversation = Conversation(
        text_of(value.get("system")), title=text_of(value.get("title")) or ""
    )
    conversation.created = time_of(value.get("created")) or conversation.created
    conversation.settings = settings_of(value.get("settings"))
    if not isinstance(value.get("messages"), list):
        raise _Unusable("`messages` is not a list")
    # Children of a message that is left out follow its parent.
    by_id: dict[object, Message | None] = {None: None}
    for number, item in enumerate(value["messages"]):
        parent = by_id.get(text_of(item.get("parent"))) if isinstance(item, dict) else None
        try:
            message = _exported_message(item, by_id, left_out)
        except _Unusable as error:
            note(f"{place}: messages[{number}]: {error}")
        else:
            parent = conversation.insert(message)
        if isinstance(item, dict) and (id_ := text_of(item.get("id"))) is not None:
            by_id[id_] = parent
    conversation.tip = by_id.get(text_of(value.get("tip")))
    return conversation


def _exported_message(
    item: Any, by_id: dict[object, Message | None], left_out: Counter[str]
) -> Message:
    if not _is_message(item) or item["role"] not in ("user", "assistant", "tool"):
        raise _Unusable("not a message of a user, an assistant or a tool")
    parent = item.get("parent")
    if parent is not None and text_of(parent) not in by_id:
        raise _Unusable(f"the parent {str(parent)[:_MAX_TITLE]!r} is not an earlier message")
    message = Message(item["role"], _content(item["content"], left_out), by_id[text_of(parent)])
    message.reasoning, message.model = text_of(item.get("reasoning")), text_of(item.get("model"))
    message.finish_reason = text_of(item.get("finish_reason"))
    message.params = settings_of(item.get("params"))
    message.created = time_of(item.get("created")) or message.created
    message.seconds = time_of(item.get("seconds"))
    message.prompt_tokens = count_of(item.get("prompt_tokens"))
    message.completion_tokens = count_of(item.get("completion_tokens"))
    calls = parse_tool_calls(item.get("tool_calls"))
    if item["role"] == "tool" and len(calls) != 1:
        raise _Unusable("the result of a tool without its call in `tool_calls`")
    message.tool_calls = calls if item["role"] != "user" else []
    return message


def _from_list(
    messages: list[Any], value: dict[str, Any], place: str, note: Note, left_out: Counter[str]
) -> Conversation:
    """Parse the messages of an OpenAI or ollama request, which may name a `model`."""
    conversation = Conversation(title=text_of(value.get("title")) or "")
    model = text_of(value.get("model"))
    for number, item in enumerate(messages):
        try:
            _append(conversation, item, model, left_out)
        except _Unusable as error:
            note(f"{place}: messages[{number}]: {error}")
    return conversation


def _append(
    conversation: Conversation, item: Any, model: str | None, left_out: Counter[str]
) -> None:
    if not _is_message(item):
        raise _Unusable("not a message: `role` and `content` are needed")
    content, name = _content(item["content"], left_out), text_of(item["role"])
    role = _ROLES.get(name)
    if name in ("system", "developer"):
        if conversation.system:
            raise _Unusable("a second system prompt")
        conversation.system = content
    elif name == "tool":
        _add_tool_result(conversation, item, content)
    elif role is None:
        raise _Unusable(f"no role {str(item['role'])[:_MAX_TITLE]!r}")
    elif content or item.get("tool_calls"):
        message = Message(role, content, conversation.tip)
        if role != "user":
            message.model, message.finish_reason = model, "stop"
        message.tool_calls = parse_tool_calls(item.get("tool_calls"))
        conversation.tip = conversation.insert(message)


def _add_tool_result(conversation: Conversation, item: dict[str, Any], content: str) -> None:
    calls = [call for message in conversation.messages for call in message.tool_calls]
    for call in reversed(calls):
        if call.id == item.get("tool_call_id"):
            conversation.add_tool_result(call, content)
            return
    raise _Unusable("the result of a tool without its call")


def _content(value: Any, left_out: Counter[str]) -> str:
    """Return a string, or the texts of OpenAI's list of parts."""
    if value is None:
        return ""
    if not isinstance(value, str | list):
        raise _Unusable("the content is not text")
    return value if isinstance(value, str) else text_of_parts(value, left_out)
