"""The state that the prompt loop shares with the slash commands."""

from dataclasses import dataclass, field

from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.render.style import Style
from swiftchat.chat.terminal.keyboard import Keyboard
from swiftchat.chat.terminal.output import StatusLine


@dataclass
class ChatState:
    """An interactive chat: its model, conversation and pending input.

    `attachments` are texts that precede the next message. `draft` is the initial text of the next
    input line. `shell_output` is the output of the last `!CMD`, for `/attach`. `keyboard` is lent
    to programs that use the terminal.
    """

    chat_model: ChatModel
    config: ChatConfig
    conversation: Conversation
    autosave: Autosave
    style: Style
    status: StatusLine
    attachments: list[str] = field(default_factory=list)
    draft: str = ""
    shell_output: str = ""
    last_answer: Answer | None = None
    keyboard: Keyboard = field(default_factory=Keyboard)

    def open(self, conversation: Conversation) -> None:
        """Save the current conversation and replace it by another."""
        if self.conversation.unsaved:
            self.autosave.save(self.conversation)
        self.conversation = conversation
        self.last_answer = None

    def save(self) -> None:
        """Autosave the conversation; a failure is a warning."""
        self.autosave.save(self.conversation)
