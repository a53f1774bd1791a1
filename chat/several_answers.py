"""Several answers to one prompt, one after the other on stdout, which become branches."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.chat.oneshot import SCHEMA
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.render.style import choose_style
from swiftchat.chat.render.view import show
from swiftchat.chat.terminal.error_report import print_error
from swiftchat.chat.terminal.output import write
from swiftchat.errors import SwiftchatError

PrintJson = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Answerer:
    """Answers the last message of a conversation and returns the exit code.

    `answer` receives the conversation, what prints JSON, and what to call before the text is shown.
    `model` is the name of the model, `heading` stands above the answer.
    """

    heading: str
    model: str
    answer: Callable[[Conversation, PrintJson, Callable[[], None]], int]


class SeveralAnswers:
    """Prints the answers of several answerers to the last message of a conversation.

    An answerer that fails prints its error, and the next one answers. The answers become branches
    of the conversation, which continues with the first of them.
    """

    def __init__(self, config: ChatConfig, autosave: Autosave) -> None:
        self._config = config
        self._autosave = autosave
        self._reports: list[dict[str, Any]] = []  # for --json
        self._num_shown = 0

    def run(self, answerers: Sequence[Answerer], conversation: Conversation) -> int:
        """Print the answers; return the first exit code that is not 0, and 130 after Ctrl-C."""
        question, settings = conversation.tip, conversation.settings
        answers: list[Message] = []
        exit_code = 0
        for number, answerer in enumerate(answerers):
            conversation.tip, conversation.last_turn = question, None
            code = self._answer(number, answerer, conversation)
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

    def _answer(self, number: int, answerer: Answerer, conversation: Conversation) -> int:
        """Print one answer, or its error on stderr; return the exit code."""
        sink = self._sink(number)
        try:
            return answerer.answer(conversation, sink, lambda: self._show_heading(answerer.heading))
        except SwiftchatError as error:
            report = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}
            sink({"event": "error", "model": {"id": answerer.model}, "error": report})
            error.message = f"{answerer.heading}: {error.message}"
            return print_error(error, debug=self._config.debug)

    def _show_heading(self, heading: str) -> None:
        """Print a Markdown heading; for screen readers the answer itself begins with a name."""
        if self._num_shown:
            write("\n")
        self._num_shown += 1
        style = choose_style(self._config, os.environ, sys.stdout.isatty())
        if style.mode != "accessible":
            show(replace(style, is_live=False), f"## {heading}\n", heading)
            write("\n")

    def _sink(self, number: int) -> PrintJson:
        """Return the function that receives the JSON of one answer."""

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
