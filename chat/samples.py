"""Several answers of one model to one prompt: `swiftchat --samples N -p …`."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.answer_group import AnswerGroup
from swiftchat.chat.model.chat_model import ChatModel, chat_model_for
from swiftchat.chat.oneshot import OneShot
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.several_answers import Answerer, PrintJson, SeveralAnswers
from swiftchat.chat.terminal.echo import hide_typing
from swiftchat.engine.api.protocol import Wait
from swiftchat.errors import DeviceError


class Samples:
    """Generates the answers at the same time, with consecutive seeds, and prints them in order.

    The engine computes the prompt once; the answers share its KV blocks. In a beam search they are
    the best beams.
    """

    def __init__(self, config: ChatConfig, autosave: Autosave) -> None:
        self._config = config
        self._autosave = autosave
        self._started: Iterator[Answer] | None = None

    def run(self, conversation: Conversation) -> int:
        """Print the answers; return as `SeveralAnswers.run`."""
        at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        with chat_model_for(self._config) as chat_model:

            def answer(
                conversation: Conversation, print_json: PrintJson, before: Callable[[], None]
            ) -> int:
                one_shot = OneShot(
                    chat_model,
                    self._config,
                    self._autosave,
                    print_json,
                    before,
                    start_answer=lambda *args: self._next_answer(chat_model, *args),
                )
                with hide_typing(one_shot.pause) if at_terminal else contextlib.nullcontext():
                    return one_shot.run(conversation)

            answerers = [
                Answerer(f"answer {number}", chat_model.name, answer)
                for number in range(1, self._config.samples + 1)
            ]
            return SeveralAnswers(self._config, self._autosave).run(answerers, conversation)

    def _next_answer(
        self,
        chat_model: ChatModel,
        conversation: Conversation,
        on_dropped: Callable[[int], None],
        on_wait: Callable[[Wait], None],
    ) -> Answer:
        """Return the next answer; the first call starts all of them."""
        if self._started is None:
            self._started = iter(
                AnswerGroup(
                    lambda params: chat_model.answer(
                        conversation, on_dropped, on_wait, seed=params.seed
                    ),
                    chat_model.params,
                    self._config.samples,
                )
            )
        answer = next(self._started, None)
        if answer is None:
            raise DeviceError("the beam search ended without this answer", "try it again")
        return answer
