"""Saving as it goes: without being asked, and without getting in the way."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from swiftchat.chat.history.conversation import Conversation
from swiftchat.errors import SwiftchatError, UsageError

if TYPE_CHECKING:  # SQLite can wait until the engine loads
    from swiftchat.chat.history.store import Sessions


class Autosave:
    """Keeps conversations in the store; where that fails it is told once, and the chat goes on.

    `open_store` is called when there is something to save; None saves nothing.
    """

    def __init__(
        self, open_store: "Callable[[], Sessions] | None", warn: Callable[[str], None]
    ) -> None:
        self.failed = False
        self._open_store = open_store
        self._store: Sessions | None = None
        self._warn = warn

    @property
    def store(self) -> "Sessions":
        """The store; `FileSystemError` where there can be none, `UsageError` with `--no-save`."""
        if self._open_store is None:
            raise UsageError("conversations are not kept here", "start without --no-save")
        if self._store is None:
            self._store = self._open_store()
        return self._store

    def save(self, conversation: Conversation) -> None:
        """Save what is new; a failure is a warning, and tried again with the next turn."""
        if self._open_store is None or not conversation.tree:
            return
        try:
            self.store.save(conversation)
            self.failed = False
        except SwiftchatError as error:
            if not self.failed:
                self._warn(f"warning: this conversation is not saved: {error.message}")
            self.failed = True

    @property
    def is_saving(self) -> bool:
        """Whether what is saved can be found again."""
        return self._open_store is not None and not self.failed

    def finish(self, conversation: Conversation) -> None:
        """Save what is left of a conversation, and close the store."""
        if conversation.unsaved:
            self.save(conversation)
        self.close()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
