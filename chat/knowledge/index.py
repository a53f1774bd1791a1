"""The index of a folder: one SQLite file with the pieces of its texts, their words and embeddings.

`files` has a row for each file, with the digest of what was indexed; `note` says why a file has no
pieces, or what a user should know about it. `vector` is an embedding in 16 bits, NULL in an index
without embeddings. Every file is one transaction: whatever ends the program, the files that were
indexed stay so.
"""

import contextlib
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from swiftchat.chat.attachments.document import DOCUMENT_SUFFIXES
from swiftchat.chat.attachments.files import read_file
from swiftchat.chat.attachments.folder import readable_files
from swiftchat.chat.history.database import is_damage, transaction
from swiftchat.chat.knowledge.pieces import Piece, pieces_of
from swiftchat.chat.knowledge.words import words_of
from swiftchat.errors import FileSystemError, SwiftchatError
from swiftchat.weights.files.private import create_private_folder, open_private

# A new version of the tables, or of what makes pieces and words, begins a new index.
_VERSION = 1
_TABLES = f"""
    CREATE TABLE files (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, size INTEGER NOT NULL,
        modified INTEGER NOT NULL, digest BLOB NOT NULL, note TEXT NOT NULL);
    CREATE TABLE pieces (
        id INTEGER PRIMARY KEY, file INTEGER NOT NULL REFERENCES files (id) ON DELETE CASCADE,
        place TEXT NOT NULL, text TEXT NOT NULL, vector BLOB);
    CREATE INDEX pieces_file ON pieces (file);
    CREATE VIRTUAL TABLE words USING fts5 (
        name, text, tokenize = 'porter unicode61 remove_diacritics 2');
    CREATE TRIGGER pieces_delete AFTER DELETE ON pieces BEGIN
        DELETE FROM words WHERE rowid = old.id; END;
    PRAGMA user_version = {_VERSION};"""
_BUSY_S = 30.0
_MAX_BYTES, _MAX_DOCUMENT_BYTES = 4 << 20, 64 << 20

# Returns the embeddings of texts.
Embed = Callable[[Sequence[str]], Sequence[bytes]]


@dataclass(frozen=True)
class Found:
    """A piece of the index: its id, the file that it is from, its place there, its text."""

    id: int
    name: str
    piece: Piece

    @property
    def mark(self) -> str:
        """The name for citations: `notes/a.md:12`."""
        return f"{self.name}{self.piece.place}"


@dataclass(frozen=True)
class Update:
    """What an update of the index has found: names of files, and notes on all that have one."""

    new: Sequence[str]
    changed: Sequence[str]
    removed: Sequence[str]
    notes: Sequence[str]


class Index:
    """The pieces of the files of a folder; a context manager that closes the file of the index.

    A damaged file is replaced. Raises `FileSystemError` if the file cannot be opened.
    """

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder = folder
        self._path = path
        try:
            self._db = self._opened()
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise FileSystemError(f"the index {path}: {error}") from error
            path.unlink()
            self._db = self._opened()

    def __enter__(self) -> "Index":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._db.close()

    def _opened(self) -> sqlite3.Connection:
        try:
            create_private_folder(self._path.parent)
            os.close(open_private(self._path, os.O_RDWR))
        except OSError as error:
            raise FileSystemError(f"the index {self._path}: {error.strerror}") from error
        db = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA foreign_keys = ON")
            if db.execute("PRAGMA user_version").fetchone()[0] == 0:
                with contextlib.suppress(sqlite3.OperationalError):  # another process was faster
                    db.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
        except BaseException:
            db.close()
            raise
        return db

    def __len__(self) -> int:
        """Return the number of pieces."""
        return int(self._db.execute("SELECT count(*) FROM pieces").fetchone()[0])

    def num_files(self) -> int:
        """Return the number of files with pieces."""
        return int(self._db.execute("SELECT count(DISTINCT file) FROM pieces").fetchone()[0])

    def update(self, embed: Embed | None, on_progress: Callable[[str, int, int], None]) -> Update:
        """Index new and changed files, and forget removed ones.

        A file counts as changed if its size or time differs and then its digest. `on_progress`
        receives the name of a file, how many are done, and their number. Raises what `embed` and
        `readable_files` raise; what was indexed before stays.
        """
        rows = self._db.execute("SELECT name, size, modified, digest FROM files")
        known = {name: (size, modified, digest) for name, size, modified, digest in rows}
        names = readable_files(self.folder)
        removed = sorted(known.keys() - set(names))
        with transaction(self._db):
            self._db.executemany("DELETE FROM files WHERE name = ?", [(one,) for one in removed])
        new, changed = list[str](), list[str]()
        for number, name in enumerate(names):
            try:
                status = (self.folder / name).stat()
            except OSError:  # removed meanwhile
                continue
            stamp = (status.st_size, status.st_mtime_ns)
            before = known.get(name)
            if before is not None and before[:2] == stamp:
                continue
            on_progress(name, number, len(names))
            digest = self._digest(name, status.st_size)
            if before is not None and before[2] == digest:
                values = (*stamp, name)
                self._db.execute("UPDATE files SET size = ?, modified = ? WHERE name = ?", values)
                continue
            self._add(name, stamp, digest, embed)
            (new if before is None else changed).append(name)
        # Those on files that are read come first.
        notes = self._db.execute(
            "SELECT note FROM files WHERE note != '' ORDER BY note LIKE '% is left out: %', name"
        )
        return Update(new, changed, removed, [row[0] for row in notes])

    def _digest(self, name: str, size: int) -> bytes:
        """Return the digest of a file, an empty one if it is too large or cannot be read."""
        path = self.folder / name
        with contextlib.suppress(OSError):
            if size <= _max_bytes(name):
                return hashlib.sha256(path.read_bytes()).digest()
        return b""

    def _add(self, name: str, stamp: tuple[int, int], digest: bytes, embed: Embed | None) -> None:
        """Replace the pieces of a file by those of its content now."""
        pieces, note = self._read(name, digest)
        vectors: Sequence[bytes | None] = [None] * len(pieces)
        if embed is not None and pieces:
            vectors = embed([piece.text for piece in pieces])
        with transaction(self._db):
            self._db.execute("DELETE FROM files WHERE name = ?", (name,))
            values = (name, *stamp, digest, note)
            file = self._db.execute(
                "INSERT INTO files (name, size, modified, digest, note) VALUES (?, ?, ?, ?, ?)",
                values,
            ).lastrowid
            words_of_name = " ".join(words_of(name))
            for piece, vector in zip(pieces, vectors, strict=True):
                row = (file, piece.place, piece.text, vector)
                number = self._db.execute(
                    "INSERT INTO pieces (file, place, text, vector) VALUES (?, ?, ?, ?)", row
                ).lastrowid
                words = (number, words_of_name, " ".join(words_of(piece.text)))
                self._db.execute("INSERT INTO words (rowid, name, text) VALUES (?, ?, ?)", words)

    def _read(self, name: str, digest: bytes) -> tuple[list[Piece], str]:
        """Return the pieces of a file, and why it is left out or what to know about it."""
        if not digest:
            return [], f"{name} is left out: it is larger than {_max_bytes(name) >> 20} MiB"
        try:
            read = read_file(str(self.folder / name))
        except SwiftchatError as error:
            reason = error.message.removeprefix(f"{self.folder / name} ")
            return [], f"{name} is left out: {reason}"
        text = read.text.encode("utf-8", "replace").decode()
        has_pages = name.lower().endswith(DOCUMENT_SUFFIXES)
        # Such as hidden text, which only a model would see.
        notes = "; ".join(read.notes).replace(f"{self.folder}{os.sep}", "")
        return list(pieces_of(text, has_pages=has_pages)), notes

    def by_words(self, words: Sequence[str], most: int) -> list[int]:
        """Return the ids of pieces with these words, the best first; rare words count more."""
        if not words:
            return []
        query = " OR ".join('"' + word.replace('"', '""') + '"' for word in words)
        rows = self._db.execute(
            "SELECT rowid FROM words WHERE words MATCH ? ORDER BY bm25(words, 2.0, 1.0) LIMIT ?",
            (query, most),
        )
        return [row[0] for row in rows]

    def vectors(self, num_rows: int) -> Iterator[tuple[list[int], list[bytes]]]:
        """Yield the ids and the embeddings of pieces, at most `num_rows` at a time."""
        cursor = self._db.execute("SELECT id, vector FROM pieces WHERE vector IS NOT NULL")
        while rows := cursor.fetchmany(num_rows):
            yield [row[0] for row in rows], [row[1] for row in rows]

    def found(self, ids: Sequence[int]) -> list[Found]:
        """Return pieces by their ids, in this order."""
        marks = ", ".join("?" * len(ids))
        rows = self._db.execute(
            "SELECT pieces.id, name, place, text FROM pieces JOIN files ON files.id = file "
            f"WHERE pieces.id IN ({marks})",
            ids,
        )
        by_id = {
            number: Found(number, name, Piece(place, text)) for number, name, place, text in rows
        }
        return [by_id[number] for number in ids if number in by_id]


def _max_bytes(name: str) -> int:
    return _MAX_DOCUMENT_BYTES if name.lower().endswith(DOCUMENT_SUFFIXES) else _MAX_BYTES


def index_path(folder: Path, model: str) -> Path:
    """Return the file with the index of a folder, made with the embeddings of a model."""
    digest = hashlib.sha256(os.fsencode(folder) + b"\0" + model.encode()).hexdigest()
    return index_folder() / f"{digest[:32]}.db"


def index_folder() -> Path:
    """Return the folder of all indexes."""
    import platformdirs

    return platformdirs.user_cache_path("swiftchat") / "knowledge"


def index_files() -> list[Path]:
    """Return the files of all indexes."""
    return [file for file in index_folder().glob("*") if file.is_file()]
