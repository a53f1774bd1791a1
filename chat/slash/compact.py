"""`/compact`: a summary by the model in place of old turns, which stay in a branch."""

import contextlib
from collections.abc import Callable, Iterator

from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.parameter import shown
from swiftchat.chat.slash.command import count_of
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.output import print_line
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import UsageError

_INSTRUCTION = (
    "Summarize the conversation below for somebody who will go on with it: facts, names, numbers, "
    "decisions, and what is still open. Write only the summary, in its language, at most 200 words."
)
_SUMMARY_HEADING = "Summary of our conversation so far:"


def compact(state: ChatState, argument: str) -> None:
    """Start a branch that has a summary in place of all but the last turns (default: one)."""
    num_kept_turns = count_of(argument or "1")
    if num_kept_turns is None:
        raise UsageError(f"/compact needs a number of turns to keep, not {shown(argument)}")
    path = state.conversation.messages
    starts = [i for i, message in enumerate(path) if message.role == "user"]
    if len(starts) <= num_kept_turns:
        raise UsageError(
            "there is nothing to summarize yet",
            "/compact keeps the last turn, /compact N the last N turns; /compact 0 keeps none",
        )
    first_kept = starts[-num_kept_turns] if num_kept_turns else len(path)
    with (
        state.keyboard.erasing(state.status.clear),
        state.status.waiting("summarizing"),
        _plain_text(state.chat_model),
    ):
        summary = _summarize(state, path[:first_kept])
    print(sanitize(summary))
    _start_branch(state.conversation, summary, path[first_kept:])
    state.last_answer = None
    state.count_context()
    state.save()
    branch = state.conversation.branches().index(path[-1]) + 1 if path else 0
    print_line(f"summarized {first_kept} messages; /switch {branch} goes back to them")


@contextlib.contextmanager
def _plain_text(chat_model: ChatModel) -> Iterator[None]:
    """Let the model write a text, without the format of its answers and without tools."""
    before = chat_model.output_format, chat_model.tools
    chat_model.output_format, chat_model.tools = None, []
    try:
        yield
    finally:
        chat_model.output_format, chat_model.tools = before


def _start_branch(conversation: Conversation, summary: str, kept: list[Message]) -> None:
    """Start a branch with the summary and the kept messages.

    The summary is part of the first user message, because every template accepts that.
    """
    conversation.tip = None
    question = f"{_SUMMARY_HEADING}\n\n{summary}"
    if not kept:
        conversation.add("user", question)
        conversation.add("assistant", "Understood.", "edit")
    for message in kept:
        is_first = conversation.tip is None
        content = f"{question}\n\n{message.content}" if is_first else message.content
        copied = conversation.add(message.role, content, message.finish_reason)
        copied.model, copied.params = message.model, message.params
        copied.tool_calls = message.tool_calls
    conversation.last_turn = None


def _summarize(state: ChatState, messages: list[Message]) -> str:
    """Summarize portions that fit half of the context, each with the summary so far."""
    info = state.chat_model.wait_ready()
    encode = state.chat_model.tokenizer.encode
    max_tokens = max(16, info.ctx_size_tokens // 2 - len(encode(_INSTRUCTION)))
    transcript = "\n\n".join(f"{m.role.capitalize()}: {m.content}" for m in messages)
    summary = ""
    for portion in _portions(transcript, lambda text: len(encode(text)) <= max_tokens):
        so_far = f"{_SUMMARY_HEADING} {summary}\n\n" if summary else ""
        request = Conversation()
        request.add("user", f"{_INSTRUCTION}\n\n{so_far}{portion}")
        answer = state.chat_model.answer(request, lambda num_messages: None)
        try:
            for _ in answer:
                state.status.show("summarizing", answer.num_tokens, info.ctx_size_tokens // 4)
        except KeyboardInterrupt:
            answer.interrupt()
            raise
        finally:
            state.status.clear()
        summary = answer.text.strip()
    if not summary:
        raise UsageError("the model returned an empty summary", "the conversation is unchanged")
    return summary


def _portions(text: str, fits: Callable[[str], bool]) -> list[str]:
    """Halve `text`, at line ends if possible, until each portion fits."""
    if len(text) < 2 or fits(text):
        return [text]
    middle = text.rfind("\n", 1, len(text) // 2) + 1 or len(text) // 2
    return [*_portions(text[:middle], fits), *_portions(text[middle:], fits)]
