"""The hub's list of a model's files, with every field checked."""

import fnmatch
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.weight_files import parse_weight_map

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
# A second copy of the weights in the author's own layout.
_SECOND_COPIES = ("consolidated*",)
_WEIGHTS = (".safetensors", ".bin")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_GIT_DIGEST, _SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")
_MAX_FILES = 100_000
_MAX_NAME = 1000  # characters
_REVISION = re.compile(r"[^\x00-\x20\x7f~^:?*\[\\]+")  # as git allows
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class HubFile:
    """A file of a model: path in the repository, bytes, and hexadecimal digest.

    The digest of large files is the SHA-256 of the content (64 digits), that of small files
    git's (40 digits): the SHA-1 of `blob SIZE`, a zero byte and the content.
    """

    name: str
    size_bytes: int
    digest: str

    def matches_file(self, path: Path, report: Callable[[int], None]) -> bool:
        """Return whether `path` has this content; calls `report` with the bytes read so far."""
        if path.stat().st_size != self.size_bytes:
            return False
        hasher = self._hasher()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                hasher.update(chunk)
                report(file.tell())
        return hasher.hexdigest() == self.digest

    def matches(self, content: bytes) -> bool:
        """Return whether `content` is the content of this file."""
        hasher = self._hasher()
        hasher.update(content)
        return hasher.hexdigest() == self.digest

    def _hasher(self) -> "hashlib._Hash":
        if len(self.digest) == 64:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size_bytes, usedforsecurity=False)


@dataclass(frozen=True)
class Listing:
    """The files of a model on the hub at one commit; `revision` is the requested one."""

    repo: str
    revision: str
    commit: str
    license: str | None
    files: Mapping[str, HubFile]

    @classmethod
    def parse(cls, repo: str, revision: str, answer: object) -> Self:
        """Parse the hub's JSON about `repo`; `BadModelFile` names an invalid field."""
        if not isinstance(answer, dict):
            raise _invalid(repo, "the list of files", "a JSON object", answer)
        commit, siblings = answer.get("sha"), answer.get("siblings")
        if not (isinstance(commit, str) and _COMMIT.fullmatch(commit)):
            raise _invalid(repo, "sha", "40 hexadecimal digits", commit)
        if not isinstance(siblings, list) or len(siblings) > _MAX_FILES:
            raise _invalid(
                repo, "siblings", f"a list of at most {_MAX_FILES} files", type(siblings)
            )
        files = {file.name: file for file in (_file(repo, entry) for entry in siblings)}
        name = answer.get("id")
        if isinstance(name, str) and name.lower() == repo.lower():
            repo = name  # the owner's spelling
        return cls(repo, revision, commit, _license(answer), files)


def _file(repo: str, entry: object) -> HubFile:
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    name = fields.get("rfilename")
    if not isinstance(name, str) or not _is_safe_path(name):
        raise BadModelFile(f"{repo} lists a file outside the repository: {str(name)[:200]!r}")
    lfs = fields.get("lfs")
    if isinstance(lfs, dict):
        size, digest, pattern = lfs.get("size", fields.get("size")), lfs.get("sha256"), _SHA256
    else:
        size, digest, pattern = fields.get("size"), fields.get("blobId"), _GIT_DIGEST
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**60:
        raise _invalid(repo, f"size of {name}", "a number of bytes", size)
    if not (isinstance(digest, str) and pattern.fullmatch(digest)):
        raise _invalid(repo, f"checksum of {name}", "hexadecimal digits", digest)
    return HubFile(name, size, digest)


def _is_safe_path(name: str) -> bool:
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or len(name) > _MAX_NAME:
        return False
    return not any(character in "\\:" or not character.isprintable() for character in name)


def is_revision(name: str) -> bool:
    """Return whether git may have a branch, tag or commit of this name, which is a safe path."""
    parts = name.split("/")
    is_safe = all(part and not part.startswith((".", "-")) and ".." not in part for part in parts)
    return is_safe and len(name) <= _MAX_NAME and _REVISION.fullmatch(name) is not None


def _license(answer: dict[str, Any]) -> str | None:
    card = answer.get("cardData")
    card = card if isinstance(card, dict) else {}
    name = card.get("license")
    if name == "other":
        name = card.get("license_name") or name
    return name[:100] if isinstance(name, str) and name else None


def _invalid(repo: str, field: str, expected: str, found: object) -> BadModelFile:
    return BadModelFile(
        f"invalid answer of the hub about {repo}: {field}: expected {expected}, "
        f"found {str(found)[:80]!r}",
        "try again; if the error stays, use another model",
    )


def has_default_weights(listing: Listing, shards: list[str] | None) -> bool:
    """Return whether `select_files` finds weights without patterns."""
    return any(name.endswith(_WEIGHTS) and _is_needed(name, shards) for name in listing.files)


def select_files(
    listing: Listing, shards: list[str] | None, include: Sequence[str], exclude: Sequence[str]
) -> list[HubFile]:
    """Return the files to download: those the engine reads, plus `include`, minus `exclude`.

    `shards` are the weight files; None: every safetensors file of the top folder. Raises
    `BadModelFile` if there are no weights.
    """
    files = [
        file
        for name, file in listing.files.items()
        if (_is_needed(name, shards) or _matches(name, include)) and not _matches(name, exclude)
    ]
    if not include and not any(file.name.endswith(_WEIGHTS) for file in files):
        others = [name for name in listing.files if name.endswith((".bin", ".pth"))]
        raise BadModelFile(
            f"{listing.repo} has no safetensors and no pytorch_model.bin in the top folder",
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
