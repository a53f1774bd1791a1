"""Making room: the model itself summarizes the old turns, which stay in a branch of their own."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.chat.terminal.echo import hide_typing
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    from swiftchat.chat.repl.loop import Repl

_INSTRUCTION = (
    "Summarise the conversation below for somebody who will go on with it: facts, names, numbers, "
    "decisions, and what is still open. Write only the summary, in its language, at most 200 words."
)
_BEFORE = "Summary of our conversation so far:"


def compact(repl: "Repl", argument: str) -> None:
    """Go on in a branch that has a summary for all but the last turns (default: one)."""
    if argument and not argument.isdecimal():
        raise UsageError(f"/compact needs a number of turns to keep, not {argument!r}")
    path = repl.conversation.messages
    starts = [i for i, message in enumerate(path) if message.role == "user"]
    keep = int(argument or 1)
    if len(starts) <= keep:
        raise UsageError("there is nothing to summarize yet", f"all but the last {keep} turns are")
    first_kept = starts[-keep] if keep else len(path)
    with hide_typing():
        summary = _summary(repl, path[:first_kept])
    print(sanitize(summary))
    _go_on_with(repl.conversation, summary, path[first_kept:])
    repl.last_answer = None
    repl.autosave.save(repl.conversation)
    leaf = repl.conversation.branches().index(path[-1]) + 1 if path else 0
    print(f"summarized {first_kept} messages; /switch {leaf} goes back to them")


def _go_on_with(conversation: Conversation, summary: str, kept: list[Message]) -> None:
    """The summary goes into the first question: any template takes that."""
    conversation.tip = None
    question = f"{_BEFORE}\n\n{summary}"
    if not kept:
        conversation.add("user", question)
        conversation.add("assistant", "Understood.", "edit")
    for message in kept:
        is_first = conversation.tip is None
        content = f"{question}\n\n{message.content}" if is_first else message.content
        copied = conversation.add(message.role, content, message.finish_reason)
        copied.model, copied.params = message.model, message.params
    conversation.last_turn = None


def _summary(repl: "Repl", messages: list[Message]) -> str:
    """In portions that fit half of the context, each with the summary of those before."""
    info = repl.speaker.wait_ready()
    count = repl.speaker.tokenizer.encode
    most = info.ctx_size_tokens // 2 - len(count(_INSTRUCTION))
    transcript = "\n\n".join(f"{m.role.capitalize()}: {m.content}" for m in messages)
    summary = ""
    for portion in _portions(transcript, lambda text: len(count(text)) <= max(16, most)):
        before = f"{_BEFORE} {summary}\n\n" if summary else ""
        asked = Conversation()
        asked.add("user", f"{_INSTRUCTION}\n\n{before}{portion}")
        answer = repl.speaker.answer(asked, lambda num_messages: None)
        try:
            for _ in answer:
                repl.show_status("summarizing", answer.num_tokens, info.ctx_size_tokens // 4)
        except KeyboardInterrupt:
            answer.interrupt()
            raise
        finally:
            repl.show_status()
        summary = answer.text.strip()
    if not summary:
        raise UsageError("the model gave no summary", "nothing is changed")
    return summary


def _portions(text: str, fits: Callable[[str], bool]) -> list[str]:
    """`text` cut in halves, at the ends of lines where there are some, until each part fits."""
    if len(text) < 2 or fits(text):
        return [text]
    middle = text.rfind("\n", 1, len(text) // 2) + 1 or len(text) // 2
    return [*_portions(text[:middle], fits), *_portions(text[middle:], fits)]
