"""The index of a folder: what it finds, changes of files, interruptions, damage, embeddings."""

import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from swiftchat.chat.knowledge.index import Index, clear_indexes, index_path
from swiftchat.chat.knowledge.knowledge import Knowledge, open_knowledge, passages_in
from swiftchat.chat.knowledge.words import words_of_question
from swiftchat.chat.options.config import ChatConfig
from swiftchat.errors import UsageError
from tests.support import documents, handbook
from tests.support.remote_engine import chat_model_folder


def ignore(name: str, done: int, total: int) -> None:
    """No progress is shown."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return handbook.write(tmp_path / "handbook")


@pytest.fixture
def index(folder: Path, tmp_path: Path) -> Iterator[Index]:
    with Index(folder, tmp_path / "index.db") as index:
        index.update(None, ignore)
        yield index


def names(index: Index, question: str) -> list[str]:
    return [one.name for one in index.found(index.by_words(words_of_question(question), 20))]


def test_the_file_with_the_answer_is_among_the_first(index: Index) -> None:
    ranks = [names(index, question).index(file) for question, file in handbook.QUESTIONS.items()]
    assert sum(rank == 0 for rank in ranks) >= 15 and max(ranks) <= 1, ranks
    assert names(index, "Is there any of this?") == []


def test_only_what_has_changed_is_indexed_again(index: Index, folder: Path) -> None:
    read: list[str] = []
    update = index.update(None, lambda name, done, total: read.append(name))
    assert (update.new, update.changed, update.removed, read) == ([], [], [], [])
    (folder / "office/kitchen.txt").write_text("Tea is in the lower drawer.")
    (folder / "office/heating.txt").unlink()
    (folder / "code/new.py").write_text("walrus = 1\n")
    os.utime(folder / "code/auth.py", ns=(1, 1))  # the content is the same
    update = index.update(None, lambda name, done, total: read.append(name))
    assert (update.new, update.changed) == (["code/new.py"], ["office/kitchen.txt"])
    assert update.removed == ["office/heating.txt"]
    assert read == ["code/auth.py", "code/new.py", "office/kitchen.txt"]
    assert names(index, "walrus")[0] == "code/new.py"
    assert names(index, "coffee beans") == [] and names(index, "thermostat") == []
    assert names(index, "drawer") == ["office/kitchen.txt"]


def test_an_interrupted_update_keeps_what_is_indexed(folder: Path, tmp_path: Path) -> None:
    def interrupt(name: str, done: int, total: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with Index(folder, tmp_path / "index.db") as index:
        with pytest.raises(KeyboardInterrupt):
            index.update(None, interrupt)
        assert index.num_files() == 4
    with Index(folder, tmp_path / "index.db") as index:
        assert len(index.update(None, ignore).new) == len(handbook.FILES) - 4
        assert index.num_files() == len(handbook.FILES)


def test_what_cannot_be_indexed_is_noted(folder: Path, tmp_path: Path) -> None:
    (folder / "picture.png").write_bytes(b"\x89PNG\0")
    (folder / "large.txt").write_bytes(b"x" * (4 * 1024 * 1024 + 1))
    (folder / "bytes.txt").write_bytes("a caf\xe9 in latin-1".encode("latin-1"))
    with Index(folder, tmp_path / "index.db") as index:
        notes = index.update(None, ignore).notes
        assert notes == [
            "large.txt is left out: it is larger than 4 MiB",
            "picture.png is left out: is not a text file",
        ]
        assert names(index, "latin") == ["bytes.txt"]


def test_documents_are_indexed_by_pages(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("pypdf")
    (folder / "a.pdf").write_bytes(documents.pdf("Nothing here.", "The walrus sleeps."))
    with Index(folder, tmp_path / "index.db") as index:
        index.update(None, ignore)
        (found,) = index.found(index.by_words(["walrus"], 5))
    assert (found.mark, found.piece.text) == ("a.pdf#2", "## Page 2\n\nThe walrus sleeps.")


def test_a_damaged_index_is_made_again(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    path.write_bytes(b"not a database" * 100)
    with Index(folder, path) as index:
        assert len(index.update(None, ignore).new) == len(handbook.FILES)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_processes_may_index_a_folder(folder: Path, tmp_path: Path) -> None:
    with Index(folder, tmp_path / "index.db") as one, Index(folder, tmp_path / "index.db") as other:
        one.update(None, ignore)
        assert other.update(None, ignore).new == []
        assert len(one) == len(other)


def test_names_and_words_of_a_question_are_no_syntax(index: Index) -> None:
    for question in ('"quoted" NOT', "a* (b", "NEAR(x y)", "text:x", "%_"):
        names(index, question)


class Letters:
    """Embeds a text as how often each of its letters occurs: enough to find equal texts."""

    name = "letters"

    def __init__(self) -> None:
        self.num_texts = 0

    def __call__(self, texts: Sequence[str]) -> list[bytes]:
        self.num_texts += len(texts)
        return [self._vector(text).tobytes() for text in texts]

    def _vector(self, text: str) -> np.ndarray[tuple[int], np.dtype[np.float16]]:
        counts = np.bincount([ord(c) % 128 for c in text], minlength=128).astype(np.float32)
        return (counts / np.linalg.norm(counts)).astype(np.float16)

    def close(self) -> None:
        """Nothing is open."""


def test_embeddings_find_what_has_no_word_of_the_question(folder: Path) -> None:
    question = "ehT rehsawhsid sei"  # no word of the files, but their letters
    with Knowledge(str(folder)) as words:
        words.update(ignore)
        assert words.passages(question, len, 2000) is None
    letters = Letters()
    with Knowledge(str(folder), letters) as both:  # type: ignore[arg-type]
        both.update(ignore)
        num_texts = letters.num_texts
        both.update(ignore)
        assert letters.num_texts == num_texts, "embeddings are kept"
        found = both.passages("The dishwasher starts when?", len, 4000)
        assert found is not None and "office/kitchen.txt:1" in found.summary.split(": ")[1]
        assert both.passages(question, len, 2000) is not None


def test_a_model_of_embeddings_loads_once(tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    for name, text in (("a.md", "The sky is blue. " * 200), ("b.md", "Bread is brown.")):
        (tmp_path / "k" / name).write_text(text)
    model = str(chat_model_folder(tmp_path / "model"))
    config = ChatConfig(
        **{"device": "cpu", "threads": 1, "no_attach": True, "quiet": True},
        **{"knowledge": str(tmp_path / "k"), "knowledge_model": model},
    )
    with open_knowledge(config) as knowledge:
        knowledge.update(ignore)
        (rows,) = knowledge.index.vectors(9)
        vectors = [np.frombuffer(one, np.float16).astype(np.float32) for one in rows[1]]
        assert len(vectors) == len(knowledge.index) > 2
        assert all(abs(np.linalg.norm(vector) - 1) < 1e-2 for vector in vectors)
        found = knowledge.passages("Bread is brown.", len, 2000)
        assert found is not None and found.summary.startswith("knowledge of k: b.md:1")


def test_passages_are_bounded_and_not_repeated(folder: Path) -> None:
    with Knowledge(str(folder)) as knowledge:
        knowledge.update(ignore)
        question = "Which token, order, train, release, day?"
        whole = knowledge.passages(question, len, 5000)
        assert whole is not None
        for room in (250, 400, 800):
            found = knowledge.passages(question, len, room)
            assert found is None or len(found.attachment.text) <= room
        again = knowledge.passages(question, len, 5000, whole.attachment.text)
        assert again is None
        message = whole.attachment.fenced + "\n\nWhy?"
        assert passages_in(message).startswith("knowledge of ") and not passages_in("Why?")


def test_a_removed_folder_keeps_its_index(folder: Path) -> None:
    with Knowledge(str(folder)) as knowledge:
        knowledge.update(ignore)
        folder.rename(folder.with_name("away"))
        with pytest.raises(UsageError, match="is not a folder"):
            knowledge.update(ignore)
        assert knowledge.index.num_files() == len(handbook.FILES)


def test_neighbors_become_one_passage(tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    text = "".join(f"# Part {n}\n\n{'walrus ' * 60}\n\n" for n in range(3))
    (tmp_path / "k" / "a.md").write_text(text)
    with Knowledge(str(tmp_path / "k")) as knowledge:
        knowledge.update(ignore)
        found = knowledge.passages("walrus", len, 5000)
    assert found is not None and found.summary.endswith(": a.md:1")


def test_the_index_of_a_folder_is_private_and_its_own(folder: Path, tmp_path: Path) -> None:
    assert index_path(folder, "") != index_path(folder, "m") != index_path(tmp_path, "m")
    with pytest.raises(UsageError, match="is not a folder"):
        Knowledge(str(folder / "none"))
    with Knowledge(str(folder)) as knowledge:
        knowledge.update(ignore)
        path = index_path(folder.resolve(), "")
        with sqlite3.connect(path) as db:
            assert db.execute("SELECT count(*) FROM files").fetchone()[0] == len(handbook.FILES)
        db.close()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    num_files, num_bytes = clear_indexes()
    assert num_files >= 1 and num_bytes > 0 and not list(path.parent.iterdir())
    assert clear_indexes() == (0, 0)
