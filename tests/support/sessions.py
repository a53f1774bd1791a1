"""The conversations that the tested program has saved."""

from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.store import SessionStore, sessions_path


def stored_messages() -> list[tuple[str, str, str | None]]:
    """Return role, text and finish reason of the only conversation, [] if there is none yet."""
    with SessionStore(sessions_path(), print) as store:
        rows = store.recent(with_one_shots=True)
        assert len(rows) <= 1
        path = store.load(rows[0]["id"]).messages if rows else []
    return [(message.role, message.content, message.finish_reason) for message in path]


def save_chat(question: str, answer: str = "An answer.") -> str:
    """Save a chat of one turn; return its id."""
    conversation = Conversation()
    conversation.add("user", question)
    conversation.add("assistant", answer)
    with SessionStore(sessions_path(), print) as store:
        store.save(conversation)
    return conversation.id
