"""A saved conversation as terminal rows, as its messages were shown when they were written."""

import itertools
from collections.abc import Sequence

from rich.text import Text

from swiftchat.chat.attachments.attachment import folded
from swiftchat.chat.history.conversation import Message
from swiftchat.chat.history.transcript import author
from swiftchat.chat.render.blocks import BlockStream
from swiftchat.chat.render.markdown_view import AnsiEncoder
from swiftchat.chat.render.message_rows import STOPPED, call_rows, question_rows
from swiftchat.chat.render.rows import MarkdownRows
from swiftchat.chat.render.style import Style
from swiftchat.chat.render.verbatim import VerbatimStream, is_json
from swiftchat.chat.terminal.sanitize import sanitize, sanitize_prose

_MAX_QUESTION_ROWS = 6  # in a bounded reprint


def conversation_rows(style: Style, messages: Sequence[Message], width: int) -> list[str]:
    """Return the rows of messages; a blank row follows each part."""
    results = {call.id: one for one in messages if one.role == "tool" for call in one.tool_calls}
    rows: list[str] = []
    for message in messages:
        if message.role == "user":
            rows += question_rows(style, folded(message.content), width)
        elif message.role == "assistant":
            if message.content or message.reasoning or not message.tool_calls:
                rows += _answer_rows(style, message, width)
            for call in message.tool_calls:
                rows += call_rows(style, call.text, results.get(call.id), width)
    return rows


def end_rows(
    style: Style, messages: Sequence[Message], width: int, max_rows: int
) -> tuple[list[str], bool]:
    """Return the rows of the last turns that fit `max_rows`, and whether something is left out.

    If the last turn alone does not fit, these are the beginning of its question and the end of its
    answer. `max_rows` is at least 10.
    """
    rows: list[str] = []
    for turn in reversed(_turns(messages)):
        earlier = conversation_rows(style, turn, width)
        if len(rows) + len(earlier) <= max_rows:
            rows = earlier + rows
        elif rows:
            return rows, True
        else:
            question = conversation_rows(style, turn[:1], width)[:_MAX_QUESTION_ROWS]
            room = max_rows - len(question) - 1
            return [*question, "…", *conversation_rows(style, turn[1:], width)[-room:]], True
    return rows, False


def last_turns(messages: Sequence[Message], num_turns: int) -> list[Message]:
    """Return the messages of the last turns."""
    return list(itertools.chain.from_iterable(_turns(messages)[-num_turns:]))


def _turns(messages: Sequence[Message]) -> list[list[Message]]:
    """Divide messages into turns: a question with the answers that follow it."""
    turns: list[list[Message]] = []
    for message in messages:
        if message.role == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return turns


def _answer_rows(style: Style, message: Message, width: int) -> list[str]:
    label = [f"{sanitize(author(message))}:"] if style.mode == "accessible" else []
    note = [STOPPED] if message.interrupted else []
    if not style.is_rendered:
        return [*sanitize_prose(message.content).splitlines(), *note, ""]
    encoder, rows = AnsiEncoder(style), MarkdownRows(style)
    blocks = VerbatimStream() if is_json(message.content) else BlockStream()
    found = [Text("…done thinking", "swiftchat.reasoning"), Text()] if message.reasoning else []
    for block in (*blocks.push(sanitize_prose(message.content)), *blocks.finish()):
        found += rows.render(block, width)
    return [*label, *map(encoder.encode, found), *note, ""]
