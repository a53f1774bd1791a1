"""Answers of several models to one prompt, one after the other: `swiftchat -m A -m B -p …`."""

import contextlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.chat.model.chat_model import chat_model_for
from swiftchat.chat.oneshot import SCHEMA, OneShot
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.render.style import choose_style
from swiftchat.chat.render.view import show
from swiftchat.chat.terminal.echo import hide_typing
from swiftchat.chat.terminal.error_report import print_error
from swiftchat.chat.terminal.output import write
from swiftchat.errors import SwiftchatError


class Comparison:
    """Answers the last message of a conversation with each model.

    A model is loaded when the one before it is closed. A model that fails prints its error, and
    the next one answers. The answers become branches of the conversation, which continues with the
    first of them.
    """

    def __init__(self, config: ChatConfig, autosave: Autosave) -> None:
        self._config = config
        self._autosave = autosave
        self._reports: list[dict[str, Any]] = []  # for --json
        self._num_shown = 0

    def run(self, conversation: Conversation) -> int:
        """Print the answers; return the first exit code that is not 0, and 130 after Ctrl-C."""
        names = [self._config.model or "", *self._config.compared]
        headings = [name.rstrip("/").rpartition("/")[2] for name in names]
        headings = headings if len(set(headings)) == len(names) else names
        question, settings = conversation.tip, conversation.settings
        answers: list[Message] = []
        exit_code = 0
        for number, name in enumerate(names):
            conversation.tip, conversation.last_turn = question, None
            code = self._answer(number, name, headings[number], conversation)
            if conversation.tip is not None and conversation.tip is not question:
                settings = settings if answers else conversation.settings
                answers.append(conversation.tip)
            exit_code = exit_code or code
            if code == 130:
                break
        if answers:
            conversation.tip, conversation.settings = answers[0], settings
            self._autosave.save(conversation)
        if self._config.json:
            report = {"schema": SCHEMA, "answers": self._reports}
            write(json.dumps(report, ensure_ascii=False) + "\n")
        return exit_code

    def _answer(self, number: int, name: str, heading: str, conversation: Conversation) -> int:
        """Print the answer of one model, or its error on stderr; return the exit code."""
        sink = self._sink(number)
        at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        config = replace(self._config, model=name, compared=())
        try:
            with chat_model_for(config) as chat_model:
                one_shot = OneShot(
                    chat_model, config, self._autosave, sink, lambda: self._show_heading(heading)
                )
                with hide_typing(one_shot.pause) if at_terminal else contextlib.nullcontext():
                    return one_shot.run(conversation)
        except SwiftchatError as error:
            report = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}
            sink({"event": "error", "model": {"id": name}, "error": report})
            error.message = f"{heading}: {error.message}"
            return print_error(error, debug=config.debug)

    def _show_heading(self, heading: str) -> None:
        """Print a Markdown heading; for screen readers the answer itself begins with a name."""
        if self._num_shown:
            write("\n")
        self._num_shown += 1
        style = choose_style(self._config, os.environ, sys.stdout.isatty())
        if style.mode != "accessible":
            show(replace(style, is_live=False), f"## {heading}\n", heading)
            write("\n")

    def _sink(self, number: int) -> Callable[[dict[str, Any]], None]:
        """Return the function that receives the JSON of one model."""

        def print_line(event: dict[str, Any]) -> None:
            write(json.dumps({"index": number, **event}, ensure_ascii=False) + "\n")

        def collect(report: dict[str, Any]) -> None:
            error = report.pop("error", None)
            if error is None:
                self._reports.append({**report, "error": None})
            elif len(self._reports) > number:  # the answer had begun
                self._reports[number]["error"] = error
            else:
                failed = {"model": report["model"], "content": None, "finish_reason": "error"}
                self._reports.append({**failed, "error": error})

        if self._config.stream_json:
            return print_line
        return collect if self._config.json else lambda event: None
