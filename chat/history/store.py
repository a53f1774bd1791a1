"""The store of conversations: one SQLite file, readable by the user alone.

`sessions` has a row for each conversation: `name` was given by the user, `settings` are options in
JSON, `tip` is the message it goes on from. `messages` are the nodes of its tree, `parent` NULL at
the root; `params` are an answer's sampling parameters in JSON, `finish_reason` NULL while it is
being written. Times are seconds since 1970. `search` indexes the contents by trigrams, so that
parts of words are found, and languages without spaces are searched as well.

Every save is one transaction in a write-ahead log: a killed program leaves what was committed, and
readers never wait. A message is written only by the process that made it, so two processes in one
conversation make two branches and overwrite nothing but the tip.
"""

import contextlib
import errno
import json
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.chat.history.search import Found, matches
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import FileSystemError, UsageError

T = TypeVar("T")

_BUSY_S = 5.0
_FORBIDDEN = (errno.EROFS, errno.EACCES, errno.EPERM)
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

# One entry for each version of the schema; `user_version` counts those that were carried out.
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
)

_COLUMNS = (
    "role",
    "content",
    "reasoning",
    "model",
    "params",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "created",
    "seconds",
)
# Written again with the same id, a message is changed, not doubled: a save that was interrupted
# after it was committed can simply be repeated.
_MESSAGE = f"""
    INSERT INTO messages (id, session, parent, {", ".join(_COLUMNS)})
    VALUES (:id, :session, :parent, :{", :".join(_COLUMNS)})
    ON CONFLICT (id) DO UPDATE SET {", ".join(f"{name} = :{name}" for name in _COLUMNS)}"""
_SESSION = """
    INSERT INTO sessions (id, name, title, system, settings, tip, created, updated)
    VALUES (:id, :name, :title, :system, :settings, :tip, :created, :updated)
    ON CONFLICT (id) DO UPDATE SET name = :name, title = :title, system = :system,
        settings = :settings, tip = :tip, updated = :updated"""


class Sessions:
    """The conversations in one file, which is made if need be; a context manager.

    `warn` is told when the file is damaged: it is set aside then, and a new one begun. A file that
    may not be written can be read. Whatever else cannot be done raises `FileSystemError`.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path = path
        self._warn = warn
        with self._told():
            try:
                self._db = _open(path)
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
                self._db = self._replaced()

    def __enter__(self) -> "Sessions":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def save(self, conversation: Conversation) -> None:
        """Write what of a conversation is not yet saved, all or nothing."""
        self._done(lambda: self._save(conversation))

    def load(self, session_id: str) -> Conversation:
        """The conversation of that id."""
        found = self._rows("SELECT * FROM sessions WHERE id = ?", session_id)
        rows = self._rows("SELECT * FROM messages WHERE session = ? ORDER BY number", session_id)
        if not found:
            raise UsageError(f"no conversation {session_id}", "swiftchat sessions list")
        row = found[0]
        messages: dict[str | None, Message] = {}
        for columns in rows:
            facts = {name: columns[name] for name in _COLUMNS}
            facts["params"] = json.loads(facts["params"])
            parent = messages.get(columns["parent"])
            messages[columns["id"]] = Message(**facts, parent=parent, id=columns["id"])
        return Conversation(
            row["system"],
            row["id"],
            row["name"],
            row["title"],
            row["created"],
            json.loads(row["settings"]),
            list(messages.values()),
            messages.get(row["tip"]),
        )

    def recent(self, most: int = -1) -> list[dict[str, Any]]:
        """The conversations, the last used first: id, name, title, model, times, messages."""
        rows = self._rows(
            """SELECT id, name, title, settings, created, updated,
                (SELECT count(*) FROM messages WHERE session = sessions.id) AS num_messages
            FROM sessions ORDER BY updated DESC, id LIMIT ?""",
            most,
        )
        found = [dict(row) for row in rows]
        for row in found:
            row["model"] = json.loads(row.pop("settings")).get("model")
        return found

    def find(self, wanted: str) -> str:
        """The id of the conversation of that name, or whose id begins so; else `UsageError`."""
        rows = self._rows("SELECT id FROM sessions WHERE name = ?", wanted)
        if not rows and wanted.strip():
            start = wanted.lower()
            rows = self._rows(
                "SELECT id FROM sessions WHERE substr(id, 1, ?) = ? ORDER BY updated DESC",
                len(start),
                start,
            )
        ids = [row["id"] for row in rows]
        if len(ids) == 1:
            return str(ids[0])
        if not ids:
            raise UsageError(f"no conversation {wanted!r}", "swiftchat sessions list shows them")
        some = ", ".join(found[:12] for found in ids[:4])
        raise UsageError(f"{len(ids)} conversations begin with {wanted!r}: {some} …", "say more")

    def search(self, text: str, most: int = 50) -> list[Found]:
        """The messages that hold each of the words, those of the last used conversations first."""
        return self._done(lambda: matches(self._db, text, most))

    def remove(self, session_id: str) -> None:
        """Remove a conversation, and its text from the file."""
        self._done(lambda: self._remove(session_id))

    def _rows(self, query: str, *values: object) -> list[Any]:
        return self._done(lambda: self._db.execute(query, values).fetchall())

    def _done(self, work: Callable[[], T]) -> T:
        """Do something with the file; where it turns out to be damaged, with a new one."""
        with self._told():
            try:
                return work()
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise
            self._db.close()
            self._db = self._replaced()
            return work()

    def _remove(self, session_id: str) -> None:
        self._db.execute("PRAGMA secure_delete = ON")
        with _transaction(self._db):
            self._db.execute("DELETE FROM sessions WHERE id = ?", (session_id,))
            self._db.execute("INSERT INTO search (search) VALUES ('optimize')")
        self._db.execute("PRAGMA wal_checkpoint (TRUNCATE)")

    def _save(self, conversation: Conversation) -> None:
        with _transaction(self._db):
            known = self._db.execute("SELECT 1 FROM sessions WHERE id = ?", (conversation.id,))
            # All of it if it was removed meanwhile, or is new: here somebody is still talking.
            messages = conversation.unsaved if known.fetchone() else conversation.tree
            try:
                self._db.execute(_SESSION, _session_row(conversation))
            except sqlite3.IntegrityError:
                raise UsageError(
                    f"another conversation has the name {conversation.name}", "choose another"
                ) from None
            rows = [_message_row(conversation, message) for message in messages]
            self._db.executemany(_MESSAGE, rows)
        conversation.unsaved.clear()

    def _replaced(self) -> sqlite3.Connection:
        """Set the damaged file aside and begin a new one."""
        # Here: it takes longer to import than all else in this file.
        from filelock import FileLock

        with FileLock(f"{self.path}.lock"):
            with contextlib.suppress(sqlite3.DatabaseError):
                db = _open(self.path)
                if db.execute("PRAGMA quick_check").fetchone()[0] == "ok":
                    return db  # another process has been here
                db.close()
            aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
            for ending in ("-wal", "-shm", ""):
                with contextlib.suppress(FileNotFoundError):
                    Path(f"{self.path}{ending}").rename(f"{aside}{ending}")
            self._warn(f"the saved conversations are damaged and were set aside: {aside}")
            return _open(self.path)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what the system and SQLite say into our errors."""
        try:
            yield
        except sqlite3.Error as error:
            raise FileSystemError(f"conversations in {self.path}: {error}") from error
        except OSError as error:
            raise FileSystemError(f"conversations in {self.path}: {error.strerror}") from error


def sessions_path() -> Path:
    """Where the user's conversations are."""
    import platformdirs

    return platformdirs.user_data_path("swiftchat") / "sessions" / "sessions.db"


def open_store() -> Sessions:
    """The user's store; where it is damaged, that is told on stderr."""

    def warn(text: str) -> None:
        print(sanitize(f"warning: {text}"), file=sys.stderr)

    return Sessions(sessions_path(), warn)


def load_wanted(wanted: str | None) -> Conversation:
    """The conversation that `wanted` means, None the last; also with --no-save."""
    with open_store() as store:
        if wanted is not None:
            return store.load(store.find(wanted))
        last = store.recent(1)
        if not last:
            raise UsageError("there is no conversation to go on with", "swiftchat begins one")
        return store.load(last[0]["id"])


def names_in(path: Path, most: int = 200) -> list[tuple[str, str | None, str]]:
    """Id, name and title of the last used conversations; [] where they cannot be read at once.

    For completion: opens the file for reading only and changes nothing, not even a damaged one.
    """
    try:
        with contextlib.closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=0.1, uri=True)
        ) as db:
            return db.execute(
                "SELECT id, name, title FROM sessions ORDER BY updated DESC, id LIMIT ?", (most,)
            ).fetchall()
    except sqlite3.Error:
        return []


def _open(path: Path) -> sqlite3.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        # Here, because SQLite's own would follow the umask; its -wal and -shm follow this one.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        path.chmod(0o600)
    except OSError as error:
        if error.errno not in _FORBIDDEN or not path.exists():
            raise
        return _open_to_read(path)
    db = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    try:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode = WAL")
        # A killed process loses nothing so; power that fails may take the last transactions.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        _migrate(db)
    except BaseException:
        db.close()
        raise
    return db


def _open_to_read(path: Path) -> sqlite3.Connection:
    """What is there, where nothing may be written."""
    # As somebody else may be writing it; and if that takes a file that cannot be made, as it is.
    for how in ("mode=ro", "immutable=1"):
        db = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, isolation_level=None)
        db.row_factory = sqlite3.Row
        try:
            version = _version(db)
        except sqlite3.OperationalError:
            db.close()
            continue
        if version == len(_MIGRATIONS):
            return db
        db.close()
        raise sqlite3.NotSupportedError("they were written by another version of swiftchat")
    raise sqlite3.OperationalError("they can be neither written nor read")


def _migrate(db: sqlite3.Connection) -> None:
    if _version(db) == len(_MIGRATIONS):
        return
    with _transaction(db):
        version = _version(db)  # another process may have been first
        if version > len(_MIGRATIONS):
            raise sqlite3.NotSupportedError("they were written by a newer swiftchat")
        for statements in _MIGRATIONS[version:]:
            for statement in statements:
                db.execute(statement)
        db.execute(f"PRAGMA user_version = {len(_MIGRATIONS)}")


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    # IMMEDIATE: a transaction that begins by reading could not wait for another writer later.
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)  # extended codes have the kind in the low byte
    return code & 0xFF in _DAMAGE


def _session_row(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": conversation.id,
        "name": _value(conversation.name),
        "title": _value(conversation.title),
        "system": _value(conversation.system),
        "settings": _value(conversation.settings),
        "tip": conversation.tip and conversation.tip.id,
        "created": conversation.created,
        "updated": time.time(),
    }


def _message_row(conversation: Conversation, message: Message) -> dict[str, Any]:
    columns = {name: _value(getattr(message, name)) for name in _COLUMNS}
    parent = message.parent and message.parent.id
    return {"id": message.id, "session": conversation.id, "parent": parent, **columns}


def _value(value: Any) -> Any:
    """A value as SQLite takes it: undecodable bytes, which Python keeps in texts, replaced."""
    if isinstance(value, dict):
        return json.dumps(value)
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
