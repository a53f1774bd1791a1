"""Automatic saving of conversations."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from swiftchat.chat.history.conversation import Conversation
from swiftchat.errors import SwiftchatError, UsageError

if TYPE_CHECKING:  # SQLite is imported while the engine loads
    from swiftchat.chat.history.store import SessionStore


class Autosave:
    """Saves conversations to the store; a failure is one warning, and the chat continues.

    `open_store` is called at the first save; with None nothing is saved.
    """

    def __init__(
        self, open_store: "Callable[[], SessionStore] | None", warn: Callable[[str], None]
    ) -> None:
        self.failed = False
        self._open_store = open_store
        self._store: SessionStore | None = None
        self._warn = warn

    @property
    def store(self) -> "SessionStore":
        """The store. Raises `UsageError` with --no-save, `FileSystemError` if opening fails."""
        if self._open_store is None:
            raise UsageError("this chat does not save conversations", "start without --no-save")
        if self._store is None:
            self._store = self._open_store()
        return self._store

    def open(self) -> None:
        """Open the store before the first save; a failure is a warning."""
        if self._open_store is not None:
            self._try(lambda: self.store)

    def save(self, conversation: Conversation) -> None:
        """Save unsaved messages; a failure is a warning, and the next turn tries again."""
        if self._open_store is not None and conversation.tree:
            self._try(lambda: self.store.save(conversation))

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
            self.failed = False
        except SwiftchatError as error:
            if not self.failed:
                self._warn(f"warning: this conversation is not saved: {error.message}")
            self.failed = True

    @property
    def is_saving(self) -> bool:
        """Whether saved conversations can be opened again."""
        return self._open_store is not None and not self.failed

    def finish(self, conversation: Conversation) -> None:
        """Save unsaved messages and close the store."""
        if conversation.unsaved:
            self.save(conversation)
        self.close()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
