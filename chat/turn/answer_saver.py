"""Saving an answer while it is generated."""

import time
from collections.abc import Iterator
from dataclasses import asdict

from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.chat.model.answer import Answer

_INTERVAL_S = 0.25


class AnswerSaver:
    """Iterate for an answer's pieces; each is in the conversation before it is returned.

    The first piece adds a message and makes it the tip. The conversation is saved four times a
    second, so that a killed program loses little. `prefix` is the text that the answer continues.
    Call `finish` afterwards.
    """

    def __init__(
        self, autosave: Autosave, conversation: Conversation, answer: Answer, prefix: str = ""
    ) -> None:
        self._autosave = autosave
        self._conversation = conversation
        self._answer = answer
        self._prefix = prefix
        self._message: Message | None = None
        self._saved = self._started = time.monotonic()

    def __iter__(self) -> Iterator[str]:
        for piece in self._answer:
            self._update()
            if time.monotonic() - self._saved >= _INTERVAL_S and not self._autosave.failed:
                self._save()
            yield piece

    def finish(self, reason: str | None) -> None:
        """Set the finish reason and the statistics of the message, and save it."""
        message, answer = self._update(), self._answer
        message.finish_reason = reason or "interrupt"
        message.tool_calls = list(answer.tool_calls)
        message.prompt_tokens, message.completion_tokens = len(answer.prompt), answer.num_tokens
        message.seconds = time.monotonic() - self._started
        if answer.result is not None:
            message.params["seed"] = answer.result.seed
        self._save()

    def _update(self) -> Message:
        if self._message is None:
            self._message = self._conversation.add("assistant", "", None)
            self._message.model = self._conversation.settings.get("model")
            params = asdict(self._answer.params)
            # Ids belong to one model, and the texts they stand for are saved with the conversation.
            self._message.params = {
                name: value
                for name, value in params.items()
                if isinstance(value, bool | int | float | str)
            }
        self._message.content = self._prefix + self._answer.text
        self._message.reasoning = self._answer.reasoning
        self._conversation.unsaved[self._message] = None
        return self._message

    def _save(self) -> None:
        self._autosave.save(self._conversation)
        self._saved = time.monotonic()
