"""Answers of several models to one prompt, one after the other: `swiftchat -m A -m B -p …`."""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import replace

from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.model.chat_model import chat_model_for
from swiftchat.chat.oneshot import OneShot
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.several_answers import Answerer, PrintJson, SeveralAnswers
from swiftchat.chat.terminal.echo import hide_typing


class Comparison:
    """Answers the last message of a conversation with each model.

    A model is loaded when the one before it is closed.
    """

    def __init__(self, config: ChatConfig, autosave: Autosave) -> None:
        self._config = config
        self._autosave = autosave

    def run(self, conversation: Conversation) -> int:
        """Print the answers; return as `SeveralAnswers.run`."""
        names = [self._config.model or "", *self._config.compared]
        headings = [name.rstrip("/").rpartition("/")[2] for name in names]
        headings = headings if len(set(headings)) == len(names) else names
        answerers = [
            Answerer(heading, name, self._answer_with(name))
            for name, heading in zip(names, headings, strict=True)
        ]
        return SeveralAnswers(self._config, self._autosave).run(answerers, conversation)

    def _answer_with(
        self, name: str
    ) -> Callable[[Conversation, PrintJson, Callable[[], None]], int]:
        config = replace(self._config, model=name, compared=())

        def answer(
            conversation: Conversation, print_json: PrintJson, before: Callable[[], None]
        ) -> int:
            at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
            with chat_model_for(config) as chat_model:
                one_shot = OneShot(chat_model, config, self._autosave, print_json, before)
                with hide_typing(one_shot.pause) if at_terminal else contextlib.nullcontext():
                    return one_shot.run(conversation)

        return answer
