"""Messages as a chat template takes them: with texts or parts, with or without system messages."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.template.process import TemplateStopped

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], Mapping[str, Any]], str]

# Field names of reasoning; most templates read the first.
_REASONING = ("reasoning_content", "thinking", "reasoning")
_SEPARATOR = "\n"  # between merged texts, as in llama.cpp
# Digits have no case, and no template has these.
_MARK = "730294615853"
_QUESTION = {"role": "user", "content": "?"}
_CALL_ID = "abcde1234"
_CALL = {
    "id": _CALL_ID,
    "type": "function",
    "function": {"name": "lookup", "arguments": {"key": "value"}},
}
_RESULT_FIELDS = {"name": "lookup", "tool_call_id": _CALL_ID}


def messages_for_template(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Copy messages without fields that are None, and with reasoning under its common names.

    Both as in `transformers`: a template would render None as text.
    """
    found = []
    for message in messages:
        fields = {name: value for name, value in message.items() if value is not None}
        reasoning = next((fields[name] for name in _REASONING if name in fields), None)
        if reasoning is not None:
            fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
        found.append(fields)
    return found


class MessageForms:
    """Gives messages the form in which a template loses none of their texts.

    It finds out by rendering conversations in which marks take the place of the texts: whether
    the content of a role must be a list of parts, and where the template takes system messages.
    What it found about a role is kept.
    """

    def __init__(self, render: Render) -> None:
        """`render` renders messages and variables, and raises `BadModelFile`."""
        self._render = render
        self._takes_parts: dict[Any, bool] = {}
        self._takes_system: dict[bool, bool] = {}

    def adapted(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> list[Message]:
        """Return the messages as the template takes them.

        Texts are texts unless the template reads only parts. System messages stay where they are
        if the template keeps them all. Otherwise the first ones become one message, and later ones
        belong to the user's message beside them; so does the first if the template has no system
        role. Raises `TemplateStopped`.
        """
        return self._in_parts(self._with_system_kept(messages, variables))

    def _with_system_kept(
        self, messages: Sequence[Message], variables: Mapping[str, Any]
    ) -> list[Message]:
        places = [place for place, one in enumerate(messages) if one.get("role") == "system"]
        is_text = all(isinstance(one.get("content", ""), str) for one in messages)
        if not places or not is_text:
            return list(messages)
        if not self._keeps_system(variables):
            return _with_system_in_user(messages)
        if places == [0] or not self._loses_system(messages, variables):
            return list(messages)
        first = next(
            (n for n, one in enumerate(messages) if one.get("role") != "system"), len(messages)
        )
        head = [{**messages[0], "content": _joined(messages[:first])}] if first else []
        return [*head, *_with_system_in_user(messages[first:])]

    def _keeps_system(self, variables: Mapping[str, Any]) -> bool:
        has_tools = bool(variables.get("tools"))
        if has_tools not in self._takes_system:
            example = [{"role": "system", "content": "?"}, _QUESTION]
            self._takes_system[has_tools] = not self._loses_system(example, variables)
        return self._takes_system[has_tools]

    def _loses_system(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> bool:
        """Return whether the template rejects the messages, or drops the text of a system message.

        What has become of the texts cannot be told if those of the user are not found either.
        """
        marked = [
            {**one, "content": f"{_MARK}{place:06}"} if "content" in one else one
            for place, one in enumerate(messages)
        ]
        text = self._rendered(self._in_parts(marked), variables)
        found = {
            role: [one.get("content", "") in text for one in marked if one.get("role") == role]
            for role in ("system", "user")
        }
        return not text or (any(found["user"]) and not all(found["system"]))

    def _in_parts(self, messages: Sequence[Message]) -> list[Message]:
        return [
            {**one, "content": _parts(one["content"])}
            if isinstance(one.get("content"), str) and self._must_have_parts(one.get("role"))
            else one
            for one in messages
        ]

    def _must_have_parts(self, role: Any) -> bool:
        """Return whether a template loses texts of a role, but not parts."""
        if role not in self._takes_parts:
            self._takes_parts[role] = False  # for its own example
            before, after = _example(role)
            extra = _RESULT_FIELDS if role == "tool" else {}
            before, after = self._in_parts(before), self._in_parts(after)

            def rendered(content: str | list[dict[str, str]]) -> str:
                return self._rendered(
                    [*before, {"role": role, "content": content, **extra}, *after], {}
                )

            if _MARK not in rendered(_MARK):
                text = rendered(_parts(_MARK))
                # A template that cuts texts may print a list.
                is_printed = re.search(rf"text['\"]\s*:\s*['\"]{_MARK}", text) is not None
                self._takes_parts[role] = _MARK in text and not is_printed
        return self._takes_parts[role]

    def _rendered(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        """Return the prompt, "" if the template rejects the messages."""
        try:
            return self._render(messages, variables)
        except TemplateStopped:
            raise
        except BadModelFile:
            return ""


def _example(role: Any) -> tuple[list[Message], list[Message]]:
    """Return the messages before and after one of this role in a conversation."""
    match role:
        case "user":
            return [], []
        case "assistant":
            return [_QUESTION], [_QUESTION]
        case "tool":
            return [_QUESTION, {"role": "assistant", "content": "", "tool_calls": [_CALL]}], []
    return [], [_QUESTION]


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _joined(messages: Iterable[Message]) -> str:
    return _SEPARATOR.join(filter(None, (one.get("content") for one in messages)))


def _with_system_in_user(messages: Iterable[Message]) -> list[Message]:
    """Merge system messages into the next message if the user has written it, else the last one.

    Between messages of others they become one of the user.
    """
    found: list[Message] = []
    waiting: list[Message] = []  # system messages
    for message in (*messages, None):
        if message is not None and message.get("role") == "system":
            waiting.append(message)
            continue
        if waiting and message is not None and message.get("role") == "user":
            message = {**message, "content": _joined((*waiting, message))}
        elif waiting and found and found[-1].get("role") == "user":
            found[-1] = {**found[-1], "content": _joined((found[-1], *waiting))}
        elif text := _joined(waiting):
            found.append({"role": "user", "content": text})
        waiting = []
        if message is not None:
            found.append(message)
    return found
