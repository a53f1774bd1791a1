"""The store of conversations: one SQLite file that only the user can read (`database.py`).

Every save is one transaction in a write-ahead log: a killed program loses only
uncommitted changes, and readers never wait. Only the process that created a message writes it, so
two processes in one conversation create two branches and overwrite only the tip.
"""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from swiftchat.chat.history.conversation import MESSAGE_FIELDS, SHORT_ID, Conversation
from swiftchat.chat.history.database import connect, is_damage, open_database, transaction
from swiftchat.chat.history.fields import json_of, settings_of, text_of, time_of
from swiftchat.chat.history.rows import conversation_of, message_row, session_row
from swiftchat.chat.history.search import Found, find_messages, find_names
from swiftchat.chat.terminal.output import print_notice
from swiftchat.errors import FileSystemError, UsageError

T = TypeVar("T")

_LISTED_HINT = "swiftchat sessions lists them; at the prompt: /sessions"
_COLUMNS = (*MESSAGE_FIELDS, "folded")
# An interrupted save can be repeated: a message with a known id is updated, not doubled.
_MESSAGE = f"""
    INSERT INTO messages (id, session, parent, {", ".join(_COLUMNS)})
    VALUES (:id, :session, :parent, :{", :".join(_COLUMNS)})
    ON CONFLICT (id) DO UPDATE SET {", ".join(f"{name} = :{name}" for name in _COLUMNS)}"""
_SESSION = """
    INSERT INTO sessions (id, name, title, system, settings, is_one_shot, tip, created, updated)
    VALUES (:id, :name, :title, :system, :settings, :is_one_shot, :tip, :created, :updated)
    ON CONFLICT (id) DO UPDATE SET name = :name, title = :title, system = :system,
        settings = :settings, is_one_shot = :is_one_shot, tip = :tip, updated = :updated"""


class SessionStore:
    """The conversations in one file, which is created if it is missing; a context manager.

    A damaged file is renamed and replaced by a new one, and `warn` is called. A read-only file can
    be read; where no file can be created, there are no conversations. Methods raise
    `FileSystemError` for other failures.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path = path
        self._warn = warn
        self._is_empty = False  # whether `_db` stands for a file that could not be created
        with self._converted_errors():
            try:
                self._db = open_database(path)
            except OSError as error:
                # A file in the place of the folder is a mistake that should be seen.
                if isinstance(error, FileExistsError) or path.exists():
                    raise
                self._db, self._is_empty = connect(":memory:"), True
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                if not is_damage(error):
                    raise
                self._db = self._replace_damaged()

    def __enter__(self) -> "SessionStore":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def save(self, conversation: Conversation) -> None:
        """Write the unsaved messages of a conversation in one transaction."""
        if self._is_empty:
            with self._converted_errors():
                self._db, self._is_empty = open_database(self.path), False
        self._with_recovery(lambda: self._save(conversation))

    def load(self, session_id: str) -> Conversation:
        """Load a conversation by its id. Raises `UsageError` for an unknown id."""
        found = self._rows("SELECT * FROM sessions WHERE id = ?", session_id)
        rows = self._rows("SELECT * FROM messages WHERE session = ? ORDER BY number", session_id)
        if not found:
            raise UsageError(f"no conversation {session_id}", _LISTED_HINT)
        conversation, num_damaged = conversation_of(found[0], rows)
        if num_damaged:
            self._warn(f"damaged messages of this conversation were left out: {num_damaged}")
        return conversation

    def recent(self, limit: int = -1, *, with_one_shots: bool = False) -> list[dict[str, Any]]:
        """Return chats, or all conversations, the last used first.

        Keys: id, name, title, model, is_one_shot, created, updated, num_messages.
        """
        rows = self._rows(
            """SELECT id, name, title, settings, is_one_shot, created, updated,
                (SELECT count(*) FROM messages WHERE session = sessions.id) AS num_messages
            FROM sessions WHERE NOT is_one_shot OR ? ORDER BY used DESC, id LIMIT ?""",
            with_one_shots,
            limit,
        )
        found = [dict(row) for row in rows]
        for row in found:
            row["model"] = text_of(settings_of(json_of(row.pop("settings"))).get("model"))
            row["title"], row["name"] = text_of(row["title"]) or "", text_of(row["name"])
            row["is_one_shot"] = bool(row["is_one_shot"])
            row["created"] = time_of(row["created"]) or 0.0
            row["updated"] = time_of(row["updated"]) or 0.0
        return [row for row in found if isinstance(row["id"], str)]

    def num_one_shots(self) -> int:
        return int(self._rows("SELECT count(*) FROM sessions WHERE is_one_shot")[0][0])

    def find(self, id_or_name: str) -> str:
        """Return the id of the conversation with this name or beginning of an id.

        Raises `UsageError` if there is none or more than one.
        """
        rows = self._rows("SELECT id FROM sessions WHERE name = ?", id_or_name)
        if not rows and id_or_name.strip():
            start = id_or_name.lower()
            rows = self._rows(
                "SELECT id FROM sessions WHERE substr(id, 1, ?) = ? ORDER BY used DESC",
                len(start),
                start,
            )
        ids = [row["id"] for row in rows if isinstance(row["id"], str)]
        if len(ids) == 1:
            return str(ids[0])
        if not ids:
            raise UsageError(f"no conversation {id_or_name!r}", _LISTED_HINT)
        examples = ", ".join(found[:12] for found in ids[:4])
        raise UsageError(
            f"{len(ids)} conversations begin with {id_or_name!r}: {examples} …", "give more digits"
        )

    def search(self, text: str, limit: int = 50) -> list[Found]:
        """Return the names and titles, then the messages that contain all words.

        The last used conversations are first.
        """

        names = self._with_recovery(lambda: find_names(self._db, text, limit))
        count = limit - len(names)
        return names + self._with_recovery(lambda: find_messages(self._db, text, count))

    def remove(self, *session_ids: str) -> None:
        """Remove conversations and overwrite their text in the file."""
        self._with_recovery(lambda: self._remove(session_ids))

    def _rows(self, query: str, *values: object) -> list[Any]:
        return self._with_recovery(lambda: self._db.execute(query, values).fetchall())

    def _with_recovery(self, work: Callable[[], T]) -> T:
        """Call `work`; if the file is damaged, replace it and call `work` again."""
        with self._converted_errors():
            try:
                return work()
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                if not is_damage(error):
                    raise
            self._db.close()
            self._db = self._replace_damaged()
            return work()

    def _remove(self, session_ids: Sequence[str]) -> None:
        self._db.execute("PRAGMA secure_delete = ON")
        with transaction(self._db):
            self._db.executemany(
                "DELETE FROM sessions WHERE id = ?", [(one,) for one in session_ids]
            )
            self._db.execute("INSERT INTO search (search) VALUES ('optimize')")
        self._db.execute("PRAGMA wal_checkpoint (TRUNCATE)")

    def _save(self, conversation: Conversation) -> None:
        with transaction(self._db):
            known = self._db.execute("SELECT 1 FROM sessions WHERE id = ?", (conversation.id,))
            # Another process may have removed the conversation: then save all of it again.
            messages = conversation.unsaved if known.fetchone() else conversation.tree
            try:
                self._db.execute(_SESSION, session_row(conversation))
            except sqlite3.IntegrityError:
                raise UsageError(
                    f"another conversation has the name {conversation.name}", "choose another name"
                ) from None
            rows = [message_row(conversation, message) for message in messages]
            self._db.executemany(_MESSAGE, rows)
        conversation.unsaved.clear()

    def _replace_damaged(self) -> sqlite3.Connection:
        """Rename the damaged file and create a new one."""
        # Imported here: it takes longer than the other imports of this file together.
        from filelock import FileLock

        with FileLock(f"{self.path}.lock"):
            with contextlib.suppress(sqlite3.DatabaseError, UnicodeDecodeError):
                db = open_database(self.path)
                if db.execute("PRAGMA quick_check").fetchone()[0] == "ok":
                    return db  # another process has replaced it already
                db.close()
            aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
            for ending in ("-wal", "-shm", ""):
                with contextlib.suppress(FileNotFoundError):
                    Path(f"{self.path}{ending}").rename(f"{aside}{ending}")
            self._warn(f"the saved conversations are damaged; the file was renamed to {aside}")
            return open_database(self.path)

    @contextlib.contextmanager
    def _converted_errors(self) -> Iterator[None]:
        """Convert errors of the system and of SQLite into `FileSystemError`."""
        try:
            yield
        except (sqlite3.Error, MemoryError, UnicodeDecodeError) as error:
            # A damaged row can announce any length; the name in a message can be no text.
            raise FileSystemError(f"conversations in {self.path}: {error or 'damaged'}") from error
        except OSError as error:
            raise FileSystemError(f"conversations in {self.path}: {error.strerror}") from error


def sessions_path() -> Path:
    """Return the path of the user's store."""
    import platformdirs

    return platformdirs.user_data_path("swiftchat") / "sessions" / "sessions.db"


def open_store() -> SessionStore:
    """Open the user's store; warnings go to stderr."""
    return SessionStore(sessions_path(), lambda text: print_notice(f"warning: {text}"))


def load_session(id_or_name: str | None, *, with_one_shots: bool) -> Conversation:
    """Load the conversation with this name or beginning of an id, by default the last one.

    That is the last chat, or with `with_one_shots` the last conversation of any kind.
    """
    with open_store() as store:
        if id_or_name is not None:
            return store.load(store.find(id_or_name))
        last = store.recent(1, with_one_shots=True)
        if last and last[0]["is_one_shot"] and not with_one_shots:
            hint = f"--session {last[0]['id'][:SHORT_ID]} continues the last one-shot"
            last = store.recent(1)
        else:
            hint = "swiftchat starts one"
        if not last:
            raise UsageError("there is no conversation to continue", hint)
        return store.load(last[0]["id"])


def list_names(path: Path, limit: int = 200) -> list[tuple[str, str | None, str]]:
    """Return id, name and title of the last used conversations, [] if the file cannot be read.

    For completion: opens the file read-only and never replaces a damaged one.
    """
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=0.1, uri=True)
        ) as db:
            return db.execute(
                "SELECT id, name, title FROM sessions ORDER BY used DESC, id LIMIT ?", (limit,)
            ).fetchall()
    except (sqlite3.Error, UnicodeDecodeError):  # as `is_damage`
        return []
