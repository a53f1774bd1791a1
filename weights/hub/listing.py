"""What the hub says a model consists of, every name and number checked before it is used."""

import fnmatch
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.weight_files import parse_weight_map

__all__ = ["HubFile", "Listing", "chosen", "shard_names"]

_DEFAULT_FILES = (
    "*.safetensors",
    "*.json",
    "*.model",
    "*.tiktoken",
    "merges.txt",
    "vocab.txt",
    "*.jinja",
    "README.md",
    "LICENSE*",
)
_DEFAULT_FOLDERS = ("additional_chat_templates/*.jinja",)
# A second copy of the weights that some repositories carry in their author's own layout.
_SECOND_COPIES = ("consolidated*",)
_WEIGHTS = (".safetensors", ".bin")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_GIT_DIGEST, _SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")
_MAX_FILES = 100_000
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class HubFile:
    """A file of a model: its name below the model's folder, bytes, and digest in hexadecimal.

    The digest is the SHA-256 of the content for large files (64 digits); small files have git's
    own (40 digits), the SHA-1 of `blob SIZE`, a zero byte and the content.
    """

    name: str
    size_bytes: int
    digest: str

    def has_digest_of(self, path: Path, report: Callable[[int], None]) -> bool:
        """Read `path` and tell whether it is this file; `report` is given the bytes read."""
        if path.stat().st_size != self.size_bytes:
            return False
        hasher = self._hasher()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                hasher.update(chunk)
                report(file.tell())
        return hasher.hexdigest() == self.digest

    def is_content(self, content: bytes) -> bool:
        """Tell whether these bytes are this file."""
        hasher = self._hasher()
        hasher.update(content)
        return hasher.hexdigest() == self.digest

    def _hasher(self) -> "hashlib._Hash":
        if len(self.digest) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size_bytes, usedforsecurity=False)


@dataclass(frozen=True)
class Listing:
    """A model of the hub at one commit; `revision` is what was asked for."""

    repo: str
    revision: str
    commit: str
    license: str | None
    files: Mapping[str, HubFile]

    @classmethod
    def parse(cls, repo: str, revision: str, said: object) -> Self:
        """Read the hub's JSON about `repo`; `BadModelFile` names what in it cannot be."""
        if not isinstance(said, dict):
            raise _bad(repo, "the list of files", "a JSON object", said)
        commit, siblings = said.get("sha"), said.get("siblings")
        if not (isinstance(commit, str) and _COMMIT.fullmatch(commit)):
            raise _bad(repo, "sha", "40 hexadecimal digits", commit)
        if not isinstance(siblings, list) or len(siblings) > _MAX_FILES:
            raise _bad(repo, "siblings", f"a list of at most {_MAX_FILES} files", type(siblings))
        files = {file.name: file for file in (_file(repo, entry) for entry in siblings)}
        name = said.get("id")
        if isinstance(name, str) and name.lower() == repo.lower():
            repo = name  # spelled as its owner does
        return cls(repo, revision, commit, _license(said), files)


def _file(repo: str, entry: object) -> HubFile:
    said: dict[str, Any] = entry if isinstance(entry, dict) else {}
    name = said.get("rfilename")
    if not isinstance(name, str) or not _stays_inside(name):
        raise BadModelFile(f"{repo} lists a file outside its own folder: {str(name)[:200]!r}")
    large = said.get("lfs")
    if isinstance(large, dict):
        size, digest, form = large.get("size", said.get("size")), large.get("sha256"), _SHA256
    else:
        size, digest, form = said.get("size"), said.get("blobId"), _GIT_DIGEST
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**60:
        raise _bad(repo, f"size of {name}", "a number of bytes", size)
    if not (isinstance(digest, str) and form.fullmatch(digest)):
        raise _bad(repo, f"checksum of {name}", "hexadecimal digits", digest)
    return HubFile(name, size, digest)


def _stays_inside(name: str) -> bool:
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or len(name) > 1000:
        return False
    return not any(character in "\\:" or not character.isprintable() for character in name)


def _license(said: dict[str, Any]) -> str | None:
    card = said.get("cardData")
    card = card if isinstance(card, dict) else {}
    name = card.get("license")
    if name == "other":
        name = card.get("license_name") or name
    return name[:100] if isinstance(name, str) and name else None


def _bad(repo: str, field: str, expected: str, found: object) -> BadModelFile:
    return BadModelFile(
        f"what the hub lists of {repo}: {field}: expected {expected}, found {str(found)[:80]!r}",
        "try again; if it stays so, use another model",
    )


def chosen(
    listing: Listing, shards: list[str] | None, include: Sequence[str], exclude: Sequence[str]
) -> list[HubFile]:
    """The files to bring: what the engine reads, and `include`, without `exclude`.

    `shards` are the weights; None: every safetensors of the top folder. `BadModelFile` where
    there are no weights to bring.
    """
    files = [
        file
        for name, file in listing.files.items()
        if (_is_needed(name, shards) or _matches(name, include)) and not _matches(name, exclude)
    ]
    if not include and not any(file.name.endswith(_WEIGHTS) for file in files):
        others = [name for name in listing.files if name.endswith((".gguf", ".bin", ".pth"))]
        raise BadModelFile(
            f"{listing.repo} has no safetensors and no pytorch_model.bin in its top folder",
            f"name files with --include, for example {others[0]}"
            if others
            else "look for a safetensors version of the model",
        )
    return files


def _is_needed(name: str, shards: list[str] | None) -> bool:
    if shards is not None and name.endswith(_WEIGHTS):
        return name in shards
    in_top = "/" not in name and not _matches(name, _SECOND_COPIES)
    return (in_top and _matches(name, _DEFAULT_FILES)) or _matches(name, _DEFAULT_FOLDERS)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def shard_names(listing: Listing, name: str, index: bytes) -> list[str]:
    """Return the weight files in the index `name`, sorted.

    Raises `BadModelFile` for an invalid index, or one with a file that `listing` lacks: the check
    comes before the download of large files.
    """
    kind = Path(name.removesuffix(".index.json")).suffix[1:]
    weight_map = parse_weight_map(
        index, name, f"{listing.repo}: the {kind} index", existing=listing.files
    )
    return sorted(set(weight_map.values()))
