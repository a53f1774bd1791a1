"""The store of conversations: one SQLite file that only the user can read.

`sessions` has a row for each conversation: `name` is given by the user, `settings` are options as
JSON, `tip` is the id of the message at the end of the current path. `messages` are the nodes of the
trees, `parent` is NULL at a root; `params` are sampling parameters as JSON, `finish_reason` is NULL
while an answer is generated, `tool_calls` is a JSON list or NULL. Times are seconds since 1970.
`search` indexes the contents by trigrams, to find parts of words and words of languages without
spaces; answers that grow, or whose program was killed, are not in it and are searched as they are.
`folded` is the content without upper case, NULL for ASCII. `used` counts the saves of all
conversations: the order in which they were used does not depend on the clock.

Every save is one transaction in a write-ahead log: a killed program loses only
uncommitted changes, and readers never wait. Only the process that created a message writes it, so
two processes in one conversation create two branches and overwrite only the tip.
"""

import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from swiftchat.chat.history.conversation import MESSAGE_FIELDS, Conversation
from swiftchat.chat.history.fields import json_of, settings_of, text_of, time_of
from swiftchat.chat.history.rows import conversation_of, message_row, session_row
from swiftchat.chat.history.search import (
    UNFINISHED,
    Found,
    add_functions,
    find_messages,
    find_names,
)
from swiftchat.chat.terminal.output import print_notice
from swiftchat.errors import FileSystemError, UsageError
from swiftchat.weights.files.private import create_private_folder, open_private

T = TypeVar("T")

_BUSY_S = 5.0
_LISTED_HINT = "swiftchat sessions lists them; at the prompt: /sessions"
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
_DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _index(row: str, command: str = "NULL", *, is_folded: bool = True) -> str:
    """Return a statement that adds a row to the index, or removes it, if it is finished."""
    content = f"coalesce({row}.folded, {row}.content)" if is_folded else f"{row}.content"
    is_finished = UNFINISHED.replace("role", f"{row}.role").replace("finish", f"{row}.finish")
    return f"""INSERT INTO search (search, rowid, content)
        SELECT {command}, {row}.number, {content} WHERE NOT ({is_finished});"""


_USE = """UPDATE sessions SET used = (SELECT max(used) + 1 FROM sessions) WHERE id = new.id;"""

# One entry for each version of the schema; `user_version` is the number of those applied.
_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE sessions (
            id TEXT PRIMARY KEY, name TEXT UNIQUE, title TEXT NOT NULL, system TEXT,
            settings TEXT NOT NULL, tip TEXT, created REAL NOT NULL, updated REAL NOT NULL)""",
        "CREATE INDEX sessions_updated ON sessions (updated)",
        """CREATE TABLE messages (
            number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE,
            session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
            parent TEXT, role TEXT NOT NULL, content TEXT NOT NULL, reasoning TEXT, model TEXT,
            params TEXT NOT NULL, finish_reason TEXT, prompt_tokens INTEGER,
            completion_tokens INTEGER, created REAL NOT NULL, seconds REAL)""",
        "CREATE INDEX messages_session ON messages (session)",
        """CREATE VIRTUAL TABLE search USING fts5 (
            content, content = 'messages', content_rowid = 'number', tokenize = 'trigram')""",
        """CREATE TRIGGER messages_insert AFTER INSERT ON messages BEGIN
            INSERT INTO search (rowid, content) VALUES (new.number, new.content); END""",
        """CREATE TRIGGER messages_delete AFTER DELETE ON messages BEGIN
            INSERT INTO search (search, rowid, content) VALUES ('delete', old.number, old.content);
            END""",
        """CREATE TRIGGER messages_update AFTER UPDATE OF content ON messages BEGIN
            INSERT INTO search (search, rowid, content) VALUES ('delete', old.number, old.content);
            INSERT INTO search (rowid, content) VALUES (new.number, new.content); END""",
    ),
    ("ALTER TABLE messages ADD COLUMN tool_calls TEXT",),
    (
        # A growing answer would be indexed again at every save: it is indexed when it ends.
        f"""INSERT INTO search (search, rowid, content)
            SELECT 'delete', number, content FROM messages WHERE {UNFINISHED}""",
        f"CREATE INDEX messages_unfinished ON messages (number) WHERE {UNFINISHED}",
        "DROP TRIGGER messages_insert",
        "DROP TRIGGER messages_delete",
        "DROP TRIGGER messages_update",
        f"""CREATE TRIGGER messages_insert AFTER INSERT ON messages BEGIN
            {_index("new", is_folded=False)} END""",
        f"""CREATE TRIGGER messages_delete AFTER DELETE ON messages BEGIN
            {_index("old", "'delete'", is_folded=False)} END""",
        f"""CREATE TRIGGER messages_update
            AFTER UPDATE OF content, role, finish_reason ON messages BEGIN
            {_index("old", "'delete'", is_folded=False)}
            {_index("new", is_folded=False)} END""",
    ),
    (
        "ALTER TABLE sessions ADD COLUMN used INTEGER NOT NULL DEFAULT 0",
        """UPDATE sessions SET used =
            (SELECT coalesce(max(number), 0) FROM messages WHERE session = sessions.id)""",
        "DROP INDEX sessions_updated",
        "CREATE INDEX sessions_used ON sessions (used)",
        f"CREATE TRIGGER sessions_insert AFTER INSERT ON sessions BEGIN {_USE} END",
        f"CREATE TRIGGER sessions_update AFTER UPDATE OF updated ON sessions BEGIN {_USE} END",
        # The index has folded texts: SQLite knows the case of few scripts.
        "ALTER TABLE messages ADD COLUMN folded TEXT",
        "DROP TRIGGER messages_update",
        "UPDATE messages SET folded = folded_unless_ascii(CAST(content AS BLOB))",
        "DROP TABLE search",
        "CREATE VIRTUAL TABLE search USING fts5 (content, content = '', tokenize = 'trigram')",
        f"""INSERT INTO search (rowid, content) SELECT number, coalesce(folded, content)
            FROM messages WHERE NOT ({UNFINISHED})""",
        "DROP TRIGGER messages_insert",
        "DROP TRIGGER messages_delete",
        f"""CREATE TRIGGER messages_insert AFTER INSERT ON messages BEGIN
            {_index("new")} END""",
        f"""CREATE TRIGGER messages_delete AFTER DELETE ON messages BEGIN
            {_index("old", "'delete'")} END""",
        f"""CREATE TRIGGER messages_update
            AFTER UPDATE OF content, folded, role, finish_reason ON messages BEGIN
            {_index("old", "'delete'")} {_index("new")} END""",
    ),
)

_COLUMNS = (*MESSAGE_FIELDS, "folded")
# An interrupted save can be repeated: a message with a known id is updated, not doubled.
_MESSAGE = f"""
    INSERT INTO messages (id, session, parent, {", ".join(_COLUMNS)})
    VALUES (:id, :session, :parent, :{", :".join(_COLUMNS)})
    ON CONFLICT (id) DO UPDATE SET {", ".join(f"{name} = :{name}" for name in _COLUMNS)}"""
_SESSION = """
    INSERT INTO sessions (id, name, title, system, settings, tip, created, updated)
    VALUES (:id, :name, :title, :system, :settings, :tip, :created, :updated)
    ON CONFLICT (id) DO UPDATE SET name = :name, title = :title, system = :system,
        settings = :settings, tip = :tip, updated = :updated"""


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
                self._db = _open(path)
            except OSError as error:
                # A file in the place of the folder is a mistake that should be seen.
                if isinstance(error, FileExistsError) or path.exists():
                    raise
                self._db, self._is_empty = _connect(":memory:"), True
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                if not _is_damage(error):
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
                self._db, self._is_empty = _open(self.path), False
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

    def recent(self, limit: int = -1) -> list[dict[str, Any]]:
        """Return conversations, the last used first.

        Keys: id, name, title, model, created, updated, num_messages, num_questions.
        """
        rows = self._rows(
            """SELECT id, name, title, settings, created, updated,
                (SELECT count(*) FROM messages WHERE session = sessions.id) AS num_messages,
                (SELECT count(*) FROM messages WHERE session = sessions.id AND role = 'user')
                    AS num_questions
            FROM sessions ORDER BY used DESC, id LIMIT ?""",
            limit,
        )
        found = [dict(row) for row in rows]
        for row in found:
            row["model"] = text_of(settings_of(json_of(row.pop("settings"))).get("model"))
            row["title"], row["name"] = text_of(row["title"]) or "", text_of(row["name"])
            row["created"] = time_of(row["created"]) or 0.0
            row["updated"] = time_of(row["updated"]) or 0.0
        return [row for row in found if isinstance(row["id"], str)]

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
                if not _is_damage(error):
                    raise
            self._db.close()
            self._db = self._replace_damaged()
            return work()

    def _remove(self, session_ids: Sequence[str]) -> None:
        self._db.execute("PRAGMA secure_delete = ON")
        with _transaction(self._db):
            self._db.executemany(
                "DELETE FROM sessions WHERE id = ?", [(one,) for one in session_ids]
            )
            self._db.execute("INSERT INTO search (search) VALUES ('optimize')")
        self._db.execute("PRAGMA wal_checkpoint (TRUNCATE)")

    def _save(self, conversation: Conversation) -> None:
        with _transaction(self._db):
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
                db = _open(self.path)
                if db.execute("PRAGMA quick_check").fetchone()[0] == "ok":
                    return db  # another process has replaced it already
                db.close()
            aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
            for ending in ("-wal", "-shm", ""):
                with contextlib.suppress(FileNotFoundError):
                    Path(f"{self.path}{ending}").rename(f"{aside}{ending}")
            self._warn(f"the saved conversations are damaged; the file was renamed to {aside}")
            return _open(self.path)

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


def load_session(id_or_name: str | None) -> Conversation:
    """Load the conversation with this name or beginning of an id, by default the last one."""
    with open_store() as store:
        if id_or_name is not None:
            return store.load(store.find(id_or_name))
        last = store.recent(1)
        if not last:
            raise UsageError("there is no conversation to continue", "swiftchat starts one")
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
    except (sqlite3.Error, UnicodeDecodeError):  # as `_is_damage`
        return []


def _open(path: Path) -> sqlite3.Connection:
    try:
        create_private_folder(path.parent)
        # SQLite would create the file with the umask; -wal and -shm get the mode of this file.
        os.close(open_private(path, os.O_RDWR))
    except OSError as error:
        if error.errno not in _FORBIDDEN or not path.exists():
            raise
        return _open_read_only(path)
    return _connect(path)


def _connect(path: Path | str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    try:
        _read_leniently(db)
        db.execute("PRAGMA journal_mode = WAL")
        # A killed process loses nothing; a power failure may lose the last transactions.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        _migrate(db)
    except BaseException:
        db.close()
        raise
    return db


def _open_read_only(path: Path) -> sqlite3.Connection:
    """Open a store that must not be written."""
    # `mode=ro` sees the writes of other processes but may need to create a -shm file; if that
    # fails, `immutable=1` reads the file as it is.
    for mode in ("mode=ro", "immutable=1"):
        db = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, isolation_level=None)
        _read_leniently(db)
        try:
            version = _version(db)
        except sqlite3.OperationalError:
            db.close()
            continue
        if version == len(_MIGRATIONS):
            return db
        db.close()
        raise sqlite3.NotSupportedError("the store was written by another version of swiftchat")
    raise sqlite3.OperationalError("the store can be neither written nor read")


def _read_leniently(db: sqlite3.Connection) -> None:
    """Return rows by name, and texts that are not UTF-8 with replacement characters."""
    add_functions(db)
    db.row_factory = sqlite3.Row
    db.text_factory = lambda data: data.decode("utf-8", "replace")


def _migrate(db: sqlite3.Connection) -> None:
    if _version(db) == len(_MIGRATIONS):
        return
    with _transaction(db):
        version = _version(db)  # another process may have migrated it
        if version > len(_MIGRATIONS):
            raise sqlite3.NotSupportedError("the store was written by a newer swiftchat")
        for statements in _MIGRATIONS[version:]:
            for statement in statements:
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    # IMMEDIATE: a transaction that starts with a read fails if another process writes meanwhile.
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _is_damage(error: sqlite3.DatabaseError | UnicodeDecodeError) -> bool:
    if isinstance(error, UnicodeDecodeError):  # in SQLite's message on a damaged schema
        return True
    code = getattr(error, "sqlite_errorcode", 0)  # the low byte of an extended code
    return code & 0xFF in _DAMAGE_CODES
