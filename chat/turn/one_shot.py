"""One prompt, answered once by each model and with each seed: `swiftchat -p`, pipes and JSON."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from swiftchat.chat.attachments.files import read_attachments
from swiftchat.chat.attachments.user_text import read_stdin_text
from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.chat_model import ChatModel, chat_model_for
from swiftchat.chat.options.config import ChatConfig, without_lengths
from swiftchat.chat.render.style import Style, choose_style, is_accessible
from swiftchat.chat.terminal.echo import hide_typing
from swiftchat.chat.terminal.error_report import print_error
from swiftchat.chat.terminal.output import print_notice, write
from swiftchat.chat.terminal.status_line import StatusLine
from swiftchat.chat.tools.toolbox import Toolbox
from swiftchat.chat.turn.json_view import JsonAnswers, JsonView, print_json
from swiftchat.chat.turn.model_tools import start_tools
from swiftchat.chat.turn.text_view import TextView
from swiftchat.chat.turn.turn import Turn
from swiftchat.chat.turn.turn_view import show_heading
from swiftchat.errors import ContextOverflow, DeviceError, SwiftchatError, UsageError


def prompt_text(config: ChatConfig) -> str:
    """Return files, stdin, the role's prompt and `-p`, separated by blank lines.

    stdin is read with `-p -` and when it is not a terminal. Raises `UsageError` if there is no
    text.
    """
    attachments = read_attachments(config.file, offline=config.offline)
    for note in (note for attachment in attachments for note in attachment.notes):
        print_notice(f"warning: {note}")
    parts = [attachment.fenced for attachment in attachments]
    reads_stdin = config.prompt == "-" or (config.prompt is None and not config.opening)
    if reads_stdin or not sys.stdin.isatty():
        piped = read_stdin_text(may_be_missing=not reads_stdin).told()
        parts.append(piped.rstrip("\n") if piped.strip() else "")
    parts.append(config.opening)
    if config.prompt not in (None, "-"):
        parts.append(config.prompt)
    text = "\n\n".join(part for part in parts if part)
    if not text.strip():
        raise UsageError("the prompt is empty", 'try: swiftchat -p "Why is the sky blue?"')
    return text


def one_shot_style(config: ChatConfig) -> Style:
    """Return how an answer on stdout looks."""
    return choose_style(config, os.environ, sys.stdout.isatty())


def one_shot_status(config: ChatConfig) -> StatusLine:
    """Return the status line of a program that answers once; with --quiet it shows nothing."""
    return StatusLine(not is_accessible(config, os.environ), config.quiet)


def answer_prompt(
    view: TextView,
    conversation: Conversation,
    autosave: Autosave,
    toolbox: Toolbox,
    next_answer: Callable[[], Answer] | None = None,
) -> int:
    """Answer the last message with the model of the view, and return the exit code."""
    chat_model = view.chat_model
    chat_model.prepare()
    if chat_model.config.knowledge:
        _add_passages(view, conversation)
    conversation.settings = without_lengths(chat_model.settings, conversation.settings)
    autosave.open()  # while the engine loads
    end = Turn(view, conversation, autosave, toolbox, next_answer).run()
    if end.is_stopped or end.reason == "interrupt":
        return 130
    limit = end.answer.limit
    is_incomplete = limit == "context" or (limit is not None and view.is_json)
    return ContextOverflow.exit_code if is_incomplete else 0


def _add_passages(view: TextView, conversation: Conversation) -> None:
    """Put passages of the knowledge before the question."""
    # Imported here, with SQLite: most prompts need none of it.
    from swiftchat.chat.knowledge.knowledge import open_knowledge
    from swiftchat.chat.knowledge.question import with_passages

    with open_knowledge(view.chat_model.config) as knowledge:
        *before, question = conversation.messages
        earlier = [one.content for one in before if one.role == "user"]
        question.content = with_passages(
            knowledge, view.chat_model, earlier, question.content, view.status
        )


class OneShot:
    """Answers the last message of a conversation on stdout, once for each model and seed.

    A model is loaded when the one before it is closed. If there are several answers, one that fails
    prints its error, and the next one follows. They become branches of the conversation, which
    continues with the first of them.
    """

    def __init__(self, config: ChatConfig, conversation: Conversation, autosave: Autosave) -> None:
        self._config = config
        self._conversation = conversation
        self._autosave = autosave
        self._style = one_shot_style(config)
        self._is_several = bool(config.compared) or config.samples > 1
        self._json = JsonAnswers(config)
        self._question = conversation.tip
        self._settings = conversation.settings  # of the first answer
        self._answers: list[Message] = []
        self._exit_codes: list[int] = []  # of each answer
        self._num_shown = 0
        self._samples: Iterator[Answer] | None = None

    def run(self) -> int:
        """Print the answers; return the first exit code that is not 0, and 130 after Ctrl-C."""
        for config, heading in self._models():
            try:
                with (
                    chat_model_for(config) as model,
                    start_tools(config, model, can_ask=False) as toolbox,
                ):
                    self._answer_with(model, config, toolbox, heading)
            except SwiftchatError as error:
                if not self._config.compared:
                    raise
                self._add_error(heading, config.model or "", error)
            if self._is_interrupted:
                break
        if self._answers:
            self._conversation.tip, self._conversation.settings = self._answers[0], self._settings
            self._autosave.save(self._conversation)
        if self._is_several:
            self._json.print()
        return next(filter(None, self._exit_codes), 0)

    def _models(self) -> list[tuple[ChatConfig, str]]:
        """Return the config of each model, and what stands above its answer."""
        config = self._config
        if not config.compared:
            return [(config, "")]
        if config.has_tools:
            print_notice("note: two models are compared without tools")
        names = [config.model or "", *config.compared]
        headings = [name.rstrip("/").rpartition("/")[2] for name in names]
        headings = headings if len(set(headings)) == len(names) else names
        configs = [replace(config, model=name, compared=(), mcp=(), tools=None) for name in names]
        return list(zip(configs, headings, strict=True))

    def _answer_with(
        self, chat_model: ChatModel, config: ChatConfig, toolbox: Toolbox, heading: str
    ) -> None:
        """Print the answers of a model: one for each seed."""
        if config.samples == 1:
            self._answer(chat_model, config, toolbox, heading)
            return
        for number in range(1, config.samples + 1):
            try:
                self._answer(chat_model, config, toolbox, f"answer {number}")
            except SwiftchatError as error:
                self._add_error(f"answer {number}", chat_model.name, error)
            if self._is_interrupted:
                return

    def _answer(
        self, chat_model: ChatModel, config: ChatConfig, toolbox: Toolbox, heading: str
    ) -> None:
        conversation, face = self._conversation, (self._style, one_shot_status(config))
        if self._exit_codes:
            conversation.tip, conversation.last_turn = self._question, None
        view: TextView
        if config.json or config.stream_json:
            output = self._json.output_of(len(self._exit_codes)) if self._is_several else print_json
            view = JsonView(chat_model, config, *face, output, not toolbox.is_empty)
        else:
            view = TextView(chat_model, config, *face, lambda: self._show_heading(heading))
        sample = partial(self._next_sample, view) if config.samples > 1 else None
        at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        with hide_typing(view.pause) if at_terminal else contextlib.nullcontext():
            try:
                code = answer_prompt(view, conversation, self._autosave, toolbox, sample)
            finally:
                self._keep_answer()
        self._exit_codes.append(code)

    def _keep_answer(self) -> None:
        """Remember the answer at the tip, also one that an error has ended."""
        tip = self._conversation.tip
        if tip is not None and tip is not self._question:
            if not self._answers:
                self._settings = self._conversation.settings
            self._answers.append(tip)

    def _next_sample(self, view: TextView) -> Answer:
        """Return the next of the answers with consecutive seeds, or of the best beams.

        The engine computes them at the same time, and the prompt once: the first call starts all.
        """
        if self._samples is None:
            group = view.chat_model.answers(
                self._conversation, view.warn_dropped, view.show_wait, count=self._config.samples
            )
            self._samples = iter(group)
        answer = next(self._samples, None)
        if answer is None:
            raise DeviceError("the beam search ended without this answer", "try it again")
        return answer

    @property
    def _is_interrupted(self) -> bool:
        return self._exit_codes[-1:] == [130]

    def _add_error(self, heading: str, model: str, error: SwiftchatError) -> None:
        """Print the error of one of several answers."""
        report = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}
        self._json.fail(len(self._exit_codes), model, report)
        error.message = f"{heading}: {error.message}"
        self._exit_codes.append(print_error(error, debug=self._config.debug))

    def _show_heading(self, heading: str) -> None:
        """Show what stands above one of several answers."""
        if self._is_several:
            write("\n" if self._num_shown else "")
            self._num_shown += 1
            show_heading(self._style, heading)
