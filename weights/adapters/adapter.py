"""An adapter: low-rank changes of a model's matrices, and tensors that it replaces."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from swiftchat.errors.regular_file import open_regular
from swiftchat.weights.formats.arrays import Floats
from swiftchat.weights.parallel.tensor_parallel import TensorKey

Read = Callable[[], Floats]

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class LowRank:
    """The change of one matrix [out, in] from W to W + scale · B · A.

    `tensor` is the Hugging Face name of W, `key` its canonical name, layer and expert. `a` returns
    A [rank, in], `b` returns B [out, rank], both in float32 whatever the file's layout. For an
    embedding table, whose rows are looked up, `in` is the vocabulary and `out` the hidden size.

    With a `magnitude` m [out] (DoRA) the result is W' = m · (W + scale · B · A) / norm, where norm
    has the Euclidean norms of the rows of W + scale · B · A. `bias` [out] is added to B · A · x
    before the scale.
    """

    key: TensorKey
    tensor: str
    rank: int
    scale: float
    a: Read
    b: Read
    magnitude: Read | None = None
    bias: Read | None = None


@dataclass(frozen=True)
class TokenRows:
    """Rows that replace those of some tokens in the embedding table `tensor`, and in a tied head.

    `ids` are the tokens; `read` returns their rows, float32 [tokens, hidden].
    """

    key: TensorKey
    tensor: str
    ids: tuple[int, ...]
    read: Read

    def difference(self, base: Floats) -> Floats:
        """Return what is added to the rows of the tokens; `base` is [vocabulary, hidden]."""
        difference: Floats = self.read() - base[list(self.ids)]
        return difference


@dataclass(frozen=True)
class Adapter:
    """A checked adapter for one model.

    `replaced` are whole tensors by the key of the model's tensor, `token_rows` rows of the
    embeddings. `base` is the name of the base model that the adapter states, if any. `files` are
    all files that it consists of.
    """

    path: Path
    kind: str  # "LoRA", "DoRA", ...
    low_rank: tuple[LowRank, ...]
    replaced: Mapping[TensorKey, Read] = field(default_factory=dict)
    token_rows: tuple[TokenRows, ...] = ()
    base: str | None = None
    files: tuple[Path, ...] = ()

    @property
    def max_rank(self) -> int:
        return max((change.rank for change in self.low_rank), default=0)

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def digest(self) -> bytes:
        """The SHA-256 of all files."""
        return content_digest(self.files)


def content_digest(files: tuple[Path, ...]) -> bytes:
    """Return the SHA-256 of the files' content, one after the other."""
    digest = hashlib.sha256()
    for file in files:
        with open_regular(file) as opened:
            while chunk := opened.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.digest()
