"""The passages of a folder before a question: found, shown, and saved as a part of the message."""

from collections.abc import Iterable

from swiftchat.chat.attachments.attachment import message_with, without_attachments
from swiftchat.chat.knowledge.index import Update
from swiftchat.chat.knowledge.knowledge import Knowledge, passages_in
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.terminal.status_line import StatusLine

_MAX_NAMED = 5  # files in a notice
_OF_QUESTION, _OF_ALL = 4, 2  # parts of the context that passages have at most


def with_passages(
    knowledge: Knowledge,
    chat_model: ChatModel,
    earlier: Iterable[str],
    message: str,
    status: StatusLine,
) -> str:
    """Return a message with the passages before it that may answer it.

    The index is updated first, and what has changed is told. `earlier` are the messages before:
    passages that they have are not repeated. A message that has passages stays as it is. The
    passages of one message have at most `--knowledge-tokens` tokens and a quarter of the context,
    those of all half of it. Raises `KeyboardInterrupt` while indexing; what is indexed stays so.
    """
    if passages_in(message):
        return message
    update_index(knowledge, status)
    known = list(filter(None, map(passages_in, earlier)))
    with status.waiting("loading the model"):
        context = chat_model.wait_ready(status.show_progress).ctx_size_tokens

    def num_tokens(text: str) -> int:
        return len(chat_model.tokenizer.encode(text))

    room = min(
        chat_model.config.knowledge_tokens,
        context // _OF_QUESTION,
        context // _OF_ALL - sum(map(num_tokens, known)),
    )
    with status.waiting("searching"):
        question = without_attachments(message)
        found = knowledge.passages(question, num_tokens, room, "".join(known))
    if found is None:
        return message
    if not chat_model.config.quiet:
        print_notice(found.summary, "tool")
    return message_with([found.attachment], message)


def update_index(knowledge: Knowledge, status: StatusLine) -> None:
    """Index what is new in the folder, and tell what has changed."""
    try:
        update = knowledge.update(status.show)
    finally:
        status.clear()
    for line in _changes(knowledge, update):
        print_notice(line)


def _changes(knowledge: Knowledge, update: Update) -> list[str]:
    lines = []
    if update.new or update.changed or update.removed:
        counts = {"new": update.new, "changed": update.changed, "removed": update.removed}
        told = "; ".join(f"{word}: {_named(names)}" for word, names in counts.items() if names)
        lines.append(f"{knowledge.name}: {knowledge.index.num_files()} files are indexed; {told}")
        lines += update.notes[:_MAX_NAMED]
        if len(update.notes) > _MAX_NAMED:
            lines.append(f"{len(update.notes) - _MAX_NAMED} more files are left out")
    return lines


def _named(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names) if len(names) <= _MAX_NAMED else str(len(names))
