"""A folder as knowledge: before each question come the pieces of its texts that may answer it."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from swiftchat.chat.attachments.attachment import Attachment, parts_of
from swiftchat.chat.knowledge.embedder import Embedder
from swiftchat.chat.knowledge.index import Found, Index, Update, index_path
from swiftchat.chat.knowledge.pieces import Piece
from swiftchat.chat.knowledge.words import words_of_question
from swiftchat.chat.options.config import ChatConfig
from swiftchat.errors import UsageError
from swiftchat.weights.files.paths import user_path

_NAME = "knowledge of "  # the beginning of the name of such an attachment
_INSTRUCTION = (
    "Parts of the files. If they answer the question, use them, and cite the mark in brackets of "
    "each part that you use."
)
_NUM_RANKED = 50  # pieces of each search
_RANK_OFFSET = 60  # of reciprocal rank fusion: how little the first place counts above the second
# Embeddings of chat models are worse than words: docs/notes/knowledge.md.
_WORDS_WEIGHT = 2.0
_CHUNK_ROWS = 4096
Progress = Callable[[str, int, int], None]


class Knowledge:
    """The index of a folder, and the model that computes its embeddings, if there is one.

    Raises `UsageError` for what is no folder. A context manager that ends the model.
    """

    def __init__(self, folder: str, embedder: Embedder | None = None) -> None:
        self.name = folder
        self.folder = user_path(folder).resolve()
        self._check()
        self.embedder = embedder
        self._closing = ExitStack()
        if embedder is not None:
            self._closing.callback(embedder.close)
        self._index: Index | None = None

    def __enter__(self) -> "Knowledge":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the index and end the model."""
        self._closing.close()
        self._index = None

    def _check(self) -> None:
        if not self.folder.is_dir():
            raise UsageError(f"{self.name} is not a folder", "name a folder with texts, or none")

    @property
    def index(self) -> Index:
        """The index, which is opened when it is first used."""
        if self._index is None:
            path = index_path(self.folder, self.embedder.name if self.embedder else "")
            self._index = self._closing.enter_context(Index(self.folder, path))
        return self._index

    def update(self, on_progress: Progress) -> Update:
        """Index what is new or has changed; `on_progress` receives a text and how far it is.

        Raises `UsageError` if the folder was removed; its index stays.
        """
        self._check()
        return self.index.update(
            self.embedder,
            lambda name, done, total: on_progress(f"indexing {self.name}", done, total),
        )

    def passages(
        self, question: str, num_tokens: Callable[[str], int], max_tokens: int, known: str = ""
    ) -> "Passages | None":
        """Return the pieces that may answer a question, None if no piece has any of its words.

        They have at most `max_tokens` together, with their marks, and are not in the text `known`.
        """
        found, size = list[Found](), num_tokens(_INSTRUCTION)
        for one in self.index.found(self._ranked(question)):
            text = _passage(one)
            size_with = size + num_tokens(text) + 2
            if size_with <= max_tokens and one.piece.text not in known:
                found.append(one)
                size = size_with
        return Passages(self.folder.name, _joined(found)) if found else None

    def _ranked(self, question: str) -> Sequence[int]:
        """Return the ids of the best pieces: by words, or by words and embeddings together."""
        by_words = self.index.by_words(words_of_question(question), _NUM_RANKED)
        if self.embedder is None:
            return by_words
        scores: dict[int, float] = {}
        for ranking, weight in ((by_words, _WORDS_WEIGHT), (self._nearest(question), 1.0)):
            for rank, number in enumerate(ranking):
                scores[number] = scores.get(number, 0.0) + weight / (_RANK_OFFSET + rank)
        return sorted(scores, key=lambda number: -scores[number])[:_NUM_RANKED]

    def _nearest(self, question: str) -> Sequence[int]:
        """Return the ids of the pieces with the embeddings nearest to that of the question."""
        import numpy as np

        assert self.embedder is not None
        wanted = np.frombuffer(self.embedder([question])[0], np.float16).astype(np.float32)
        ids, scores = list[int](), list[float]()
        for numbers, vectors in self.index.vectors(_CHUNK_ROWS):
            matrix = np.frombuffer(b"".join(vectors), np.float16).reshape(len(numbers), -1)
            ids += numbers
            scores += (matrix.astype(np.float32) @ wanted).tolist()
        best = np.argsort(-np.asarray(scores), kind="stable")[:_NUM_RANKED]
        return [ids[i] for i in best]


class Passages:
    """The pieces of a folder that precede a question."""

    def __init__(self, folder: str, found: Sequence[Found]) -> None:
        self._folder = folder
        self._found = found

    @property
    def attachment(self) -> Attachment:
        """The pieces as a part of the message, with their marks."""
        parts = [_INSTRUCTION, *map(_passage, self._found)]
        return Attachment(f"{_NAME}{self._folder}", "\n\n".join(parts))

    @property
    def summary(self) -> str:
        """One line that names the pieces."""
        return f"{_NAME}{self._folder}: {', '.join(one.mark for one in self._found)}"


def passages_in(message: str) -> str:
    """Return the passages that a message begins with, empty if it has none."""
    first, label = next(parts_of(message))
    return first if label and first.startswith(_NAME) else ""


def open_knowledge(config: ChatConfig) -> Knowledge:
    """Return the knowledge that the options name. Raises `UsageError` for what is no folder."""
    model = config.knowledge_model
    assert config.knowledge
    return Knowledge(config.knowledge, Embedder(config, model) if model else None)


def _passage(found: Found) -> str:
    return f"[{found.mark}]\n{found.piece.text}"


def _joined(found: Sequence[Found]) -> list[Found]:
    """Return pieces in which those that follow each other in a file are one, the best one first."""
    joined: list[Found] = []
    by_end: dict[int, int] = {}  # the id of the last piece of each → its index
    rank = {one.id: i for i, one in enumerate(found)}
    for one in sorted(found, key=lambda one: one.id):
        i = by_end.pop(one.id - 1, None)
        if i is None or joined[i].name != one.name or joined[i].piece.place[:1] == "#":
            joined.append(one)
            i = len(joined) - 1
        else:
            before = joined[i]
            text = f"{before.piece.text}\n{one.piece.text}"
            joined[i] = Found(before.id, one.name, Piece(before.piece.place, text))
            rank[before.id] = min(rank[before.id], rank[one.id])
        by_end[one.id] = i
    return sorted(joined, key=lambda one: rank[one.id])
