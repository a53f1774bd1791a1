"""The state that the prompt loop shares with the slash commands."""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from swiftchat.chat.attachments.attachment import Attachment
from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.render.style import Style, is_accessible
from swiftchat.chat.terminal.keyboard import Keyboard
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.terminal.status_line import StatusLine
from swiftchat.chat.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from swiftchat.chat.knowledge.knowledge import Knowledge


@dataclass
class ChatState:
    """An interactive chat: its model, conversation and pending input.

    `attachments` precede the next message. `draft` is the initial text of the next input line, in
    which `edited` is changed, a message of the path. `shell_output` is the output of the last
    `!CMD`, for `/attach`. `keyboard` is lent to programs that use the terminal. `compared` is the
    other model of `/compare`. `knowledge` has the passages that precede questions.
    """

    chat_model: ChatModel
    config: ChatConfig
    conversation: Conversation
    autosave: Autosave
    style: Style
    status: StatusLine
    attachments: list[Attachment] = field(default_factory=list)
    draft: str = ""
    edited: Message | None = None
    shell_output: Attachment | None = None
    last_answer: Answer | None = None
    keyboard: Keyboard = field(default_factory=Keyboard)
    toolbox: Toolbox = field(default_factory=Toolbox)
    compared: ChatModel | None = None
    knowledge: "Knowledge | None" = None

    @property
    def may_redraw(self) -> bool:
        """Whether there is a terminal, and rows of it may be redrawn: not for screen readers."""
        is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        return is_terminal and not is_accessible(self.config, os.environ)

    def open(self, conversation: Conversation) -> None:
        """Save the current conversation and replace it by another."""
        if self.conversation.unsaved:
            self.autosave.save(self.conversation)
        self.conversation = conversation
        self.last_answer = None

    @contextlib.contextmanager
    def comparing(self, other: ChatModel) -> Iterator[None]:
        """Answer with another model meanwhile.

        Its messages become a branch of the conversation, which keeps its model and its tip.
        """
        kept = self.chat_model, self.conversation, self.autosave, self.last_answer
        self.chat_model = other
        # Shares the tree; saved only at the end, because saving stores the tip and the model.
        self.conversation = replace(self.conversation, last_turn=None)
        self.autosave = Autosave(None, print_notice)
        try:
            yield
        finally:
            self.chat_model, self.conversation, self.autosave, self.last_answer = kept
            self.save()

    def close_compared(self) -> None:
        """Release the memory of the other model of `/compare`."""
        if self.compared is not None:
            self.compared.close()
            self.compared = None

    def close_knowledge(self) -> None:
        """Close the index of the knowledge, and end its model."""
        if self.knowledge is not None:
            self.knowledge.close()
            self.knowledge = None

    def count_context(self) -> None:
        """Set the token counts of the tip, which no model has written, for the context bar."""
        conversation = self.conversation
        if conversation.tip is not None:
            encode = self.chat_model.prompts.encoder(conversation.last_turn)
            conversation.tip.prompt_tokens = len(encode(conversation.template_messages()))
            conversation.tip.completion_tokens = 0

    def save(self) -> None:
        """Autosave the conversation; a failure is a warning."""
        self.autosave.save(self.conversation)
