"""Commands about the last answer: `/copy`, `/reasoning`, `/think`."""

import os

from swiftchat.chat.history.conversation import Message
from swiftchat.chat.model.template_variables import LEVELS, unknown_level
from swiftchat.chat.options.parameter import shown
from swiftchat.chat.render.view import show
from swiftchat.chat.slash.command import Command, always, count_of
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.clipboard import copy
from swiftchat.chat.terminal.output import print_line, write
from swiftchat.errors import UsageError


def copy_answer(state: ChatState, argument: str) -> None:
    answer = _last_answer(state)
    match argument.split():
        case []:
            text, name = answer.content, "the answer"
        case ["all"]:
            messages = state.conversation.messages
            text = "\n\n".join(f"{m.role}:\n{m.content}" for m in messages)
            name = "the conversation"
        case ["code"]:
            text, name = _code_block(answer, None)
        case ["code", text] if (number := count_of(text)) is not None:
            text, name = _code_block(answer, number)
        case _:
            raise UsageError(f"/copy cannot copy {shown(argument)}", "/copy [code [N]|all]")
    print_line(f"{copy(text, os.environ, write)} {name}, {len(text)} characters")


def _code_block(answer: Message, number: int | None) -> tuple[str, str]:
    """Code block `number` of an answer, by default the last one, and a name for it."""
    # Imported here: the Markdown parser would delay the first prompt.
    from swiftchat.chat.render.parse import code_blocks

    blocks = code_blocks(answer.content)
    if not blocks:
        raise UsageError("the last answer has no code block", "/copy copies the whole answer")
    number = len(blocks) if number is None else number
    if not 1 <= number <= len(blocks):
        raise UsageError(f"there is no code block {number}", f"choose one from 1 to {len(blocks)}")
    return blocks[number - 1].code, f"code block {number} of {len(blocks)}"


def show_reasoning(state: ChatState, argument: str) -> None:
    reasoning = _last_answer(state).reasoning
    if reasoning is None:
        print_line("the last answer has no reasoning")
    else:
        show(state.style, reasoning, state.chat_model.name)


def think(state: ChatState, argument: str) -> None:
    chat_model = state.chat_model
    if argument not in ("", "auto", *LEVELS):
        raise UsageError(f"/think is auto, {', '.join(LEVELS)}, not {shown(argument)}")
    levels = chat_model.prompts.thinking_levels
    if argument in LEVELS and argument not in levels:
        raise unknown_level(argument, levels)
    chat_model.prompts.think = argument or chat_model.prompts.think
    print_line(f"think = {chat_model.prompts.think}")


def _last_answer(state: ChatState) -> Message:
    for message in reversed(state.conversation.messages):
        if message.role == "assistant":
            return message
    raise UsageError("there is no answer yet", "send a message first")


ANSWER_COMMANDS = (
    Command(
        "/copy",
        "[code [N]|all]",
        "copy the last answer, a code block, or everything",
        copy_answer,
        completion=("all", "code"),
        details="/copy code copies the last code block, /copy code 1 the first one,\n"
        "/copy all the whole conversation.",
    ),
    Command(
        "/reasoning",
        "",
        "show the reasoning before the last answer",
        show_reasoning,
        is_aside=always,
    ),
    Command(
        "/think",
        "[LEVEL]",
        "switch thinking on or off, or set how long it is",
        think,
        completion=("auto", *LEVELS),
        details="on and off if the chat template has a switch; low, medium, high, max if it has\n"
        "efforts; auto leaves the choice to it. Without an argument the current value is shown.",
    ),
)
