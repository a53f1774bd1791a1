"""The SQLite file with the conversations: its tables, and how it is opened and upgraded.

`sessions` has a row for each conversation: `name` is given by the user, `settings` are options as
JSON, `tip` is the id of the message at the end of the current path, `is_one_shot` is 0 for a
chat. `messages` are the nodes of the trees, `parent` is NULL at a root; `params` are sampling
parameters as JSON, `finish_reason` is NULL while an answer is generated, `tool_calls` is a JSON
list or NULL. Times are seconds since 1970.
`search` indexes the contents by trigrams, to find parts of words and words of languages without
spaces; answers that grow, or whose program was killed, are not in it and are searched as they are.
`folded` is the content without upper case, NULL for ASCII. `used` counts the saves of all
conversations: the order in which they were used does not depend on the clock.
"""

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from swiftchat.chat.history.search import UNFINISHED, add_functions
from swiftchat.weights.files.private import create_private_folder, open_private

_BUSY_S = 5.0
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
    (
        "ALTER TABLE sessions ADD COLUMN is_one_shot INTEGER NOT NULL DEFAULT 0",
        # Older versions did not know: no one has come back to these.
        """UPDATE sessions SET is_one_shot = 1 WHERE name IS NULL AND
            (SELECT count(*) FROM messages WHERE session = sessions.id AND role = 'user') = 1""",
    ),
)


def open_database(path: Path) -> sqlite3.Connection:
    """Open the file, which is created if it is missing, and opened read-only if it must not change.

    Raises `OSError` and SQLite's errors.
    """
    try:
        create_private_folder(path.parent)
        # SQLite would create the file with the umask; -wal and -shm get the mode of this file.
        os.close(open_private(path, os.O_RDWR))
    except OSError as error:
        if error.errno not in _FORBIDDEN or not path.exists():
            raise
        return _open_read_only(path)
    return connect(path)


def connect(path: Path | str) -> sqlite3.Connection:
    """Open a file that can be written, with the tables of this version."""
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
    with transaction(db):
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
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Commit what the block does, or undo it if the block raises."""
    # IMMEDIATE: a transaction that starts with a read fails if another process writes meanwhile.
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def is_damage(error: sqlite3.DatabaseError | UnicodeDecodeError) -> bool:
    """Return whether an error says that the file is damaged."""
    if isinstance(error, UnicodeDecodeError):  # in SQLite's message on a damaged schema
        return True
    code = getattr(error, "sqlite_errorcode", 0)  # the low byte of an extended code
    return code & 0xFF in _DAMAGE_CODES
