"""The commands about what was answered: `/copy`, `/reasoning`, `/think`."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from swiftchat.chat.history.conversation import Message
from swiftchat.chat.render.view import show
from swiftchat.chat.terminal.clipboard import copy
from swiftchat.chat.terminal.output import write
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    from swiftchat.chat.repl.loop import Repl

ANSWER_COMMANDS: dict[str, tuple[str, str]] = {
    "/copy": ("[code [N]|all]", "copy the last answer, its code block N, or everything"),
    "/reasoning": ("", "show what was thought before the last answer"),
    "/think": ("[on|off|auto]", "make the model think first, or not, if it can"),
}
ANSWER_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "/copy": ("all", "code"),
    "/think": ("auto", "off", "on"),
}


class AnswerCommands:
    """Runs them on a conversation at the prompt."""

    def __init__(self, repl: "Repl") -> None:
        self._repl = repl
        self.run: dict[str, Callable[[str], None]] = {
            "/copy": self._copy,
            "/reasoning": self._reasoning,
            "/think": self._think,
        }

    def _copy(self, argument: str) -> None:
        match argument.split():
            case []:
                text, what = self._last_answer().content, "the answer"
            case ["all"]:
                self._last_answer()
                messages = self._repl.conversation.messages
                text = "\n\n".join(f"{m.role}:\n{m.content}" for m in messages)
                what = "the conversation"
            case ["code"]:
                text, what = self._code(None)
            case ["code", number] if number.isdecimal():
                text, what = self._code(int(number))
            case _:
                raise UsageError(f"/copy cannot copy {argument!r}", "/copy [code [N]|all]")
        copy(text, os.environ, write)
        print(f"copied {what}, {len(text)} characters")

    def _code(self, number: int | None) -> tuple[str, str]:
        """A code block of the last answer, the last one without a number, and what it is called."""
        # Imported here because the Markdown parser would delay the first prompt.
        from swiftchat.chat.render.parse import code_blocks

        blocks = code_blocks(self._last_answer().content)
        if not blocks:
            raise UsageError("the last answer has no code block", "/copy copies all of it")
        number = len(blocks) if number is None else number
        if not 1 <= number <= len(blocks):
            raise UsageError(f"there is no code block {number}", f"there are 1 to {len(blocks)}")
        return blocks[number - 1].code, f"code block {number} of {len(blocks)}"

    def _reasoning(self, argument: str) -> None:
        reasoning = self._last_answer().reasoning
        if reasoning is None:
            print("the model did not think before it answered")
        else:
            show(self._repl.style, reasoning, self._repl.speaker.name)

    def _think(self, argument: str) -> None:
        speaker = self._repl.speaker
        if argument not in ("", "on", "off", "auto"):
            raise UsageError(f"/think is on, off or auto, not {argument!r}")
        if argument in ("on", "off") and not speaker.can_switch_thinking:
            raise UsageError(
                "the model's chat template knows no switch for thinking",
                "it always thinks, or never does",
            )
        speaker.think = argument or speaker.think
        print(f"think = {speaker.think}")

    def _last_answer(self) -> Message:
        for message in reversed(self._repl.conversation.messages):
            if message.role == "assistant":
                return message
        raise UsageError("there is no answer yet", "send a message first")
