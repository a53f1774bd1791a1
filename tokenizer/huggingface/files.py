"""The files of a model that have to do with its tokenizer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swiftchat.errors import BadModelFile, ModelNotFound

__all__ = ["MORE_TEMPLATES", "parsed", "parsed_object", "read_files", "text_of", "vocabulary_name"]

_LARGEST_FILE_BYTES = 1 << 28
# A directory may have several vocabularies; the first says the most.
_VOCABULARIES = (
    "tokenizer.json",
    # SentencePiece's, as most models call it, as T5 and as ChatGLM-6B does.
    "tokenizer.model",
    "spiece.model",
    "ice_text.model",
    "vocab.json",
)
_NEIGHBORS = (
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer_config.json",
)
MORE_TEMPLATES = "additional_chat_templates/"  # a folder of *.jinja
_MOST_TEMPLATES = 64


def read_files(path: Path) -> dict[str, bytes]:
    """The vocabulary at `path`, a file or a model directory, and its neighbors, by name.

    Raises `ModelNotFound` without a vocabulary, `BadModelFile` for what cannot be read.
    """
    if path.suffix == ".gguf":
        raise BadModelFile(
            f"{path.name} is a whole model, not a tokenizer",
            f"swiftchat convert {path.name} makes a model directory of it",
        )
    directory = path
    if not path.is_dir():
        if not path.is_file():
            raise ModelNotFound(f"{path.name} is missing in {path.parent}")
        # A vocabulary of another name is what its suffix and its content say.
        directory = path.parent
        names = [path.name]
    else:
        names = [name for name in _VOCABULARIES if (path / name).is_file()]
        names = (names or sorted(file.name for file in path.glob("*.tiktoken")))[:1]
        if not names:
            raise ModelNotFound(f"tokenizer.json is missing in {path}")
    names += [name for name in _NEIGHBORS if (directory / name).is_file()]
    templates = sorted((directory / MORE_TEMPLATES).glob("*.jinja"))
    if len(templates) > _MOST_TEMPLATES:
        raise BadModelFile(f"{MORE_TEMPLATES} has absurdly many files")
    names += [MORE_TEMPLATES + file.name for file in templates]
    return {name: _read(directory / name) for name in names}


def vocabulary_name(files: Mapping[str, bytes]) -> str:
    """Which of `files` is the vocabulary; raises `ModelNotFound` where none is."""
    others = [n for n in files if n not in _NEIGHBORS and not n.startswith(MORE_TEMPLATES)]
    for name in (*_VOCABULARIES, *sorted(others)):
        if name in files:
            return name
    raise ModelNotFound(f"{_VOCABULARIES[0]} is missing")


def text_of(files: Mapping[str, bytes], name: str) -> str:
    """The text of the file `name`, which is UTF-8; empty where there is no such file."""
    try:
        return files.get(name, b"").decode()
    except UnicodeDecodeError as error:
        raise BadModelFile(f"{name} cannot be read: {error}") from None


def parsed(files: Mapping[str, bytes], name: str) -> Any:
    """The parsed JSON file `name`."""
    try:
        return json.loads(text_of(files, name))
    except (ValueError, RecursionError) as error:
        raise BadModelFile(f"{name} is no JSON: {error}") from None


def parsed_object(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """The parsed JSON object of the file `name`; empty where there is no such file."""
    value = parsed(files, name) if name in files else {}
    if not isinstance(value, dict):
        raise BadModelFile(f"{name} is no JSON object")
    return value


def _read(file: Path) -> bytes:
    try:
        if file.stat().st_size > _LARGEST_FILE_BYTES:
            raise BadModelFile(f"{file.name} is absurdly large")
        return file.read_bytes()
    except OSError as error:
        raise BadModelFile(f"{file.name} cannot be read: {error}") from None
