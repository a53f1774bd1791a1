"""The tokenizer files of a model directory."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swiftchat.errors import BadModelFile, ModelNotFound
from swiftchat.errors.regular_file import open_regular

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_MAX_FILE_BYTES = 1 << 28
# A directory may have several vocabularies; the first one found is used.
VOCABULARIES = (
    "tokenizer.json",
    "tekken.json",  # Mistral's
    "tiktoken.model",  # a rank file: Kimi's
    # SentencePiece: the usual name (Meta's rank files have it, too), T5's, ChatGLM-6B's.
    "tokenizer.model",
    "spiece.model",
    "ice_text.model",
    "vocab.json",
)
NEIGHBORS = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer_config.json",
)
MORE_TEMPLATES = "additional_chat_templates/"  # a folder of *.jinja
_MAX_TEMPLATES = 64


def read_files(path: Path) -> dict[str, bytes]:
    """Return the contents of the vocabulary at `path` and of the files beside it, by name.

    `path` is a vocabulary file or a model directory. Raises `ModelNotFound` if there is no
    vocabulary, `BadModelFile` if a file cannot be read.
    """
    if path.suffix == ".gguf" and not path.is_dir():
        raise BadModelFile(
            f"{path.name} is a whole model, not a tokenizer",
            f"swiftchat convert {path.name} makes a model directory of it",
        )
    directory = path
    if not path.is_dir():
        if not path.is_file():
            raise ModelNotFound(f"{path.name} is missing in {path.parent}")
        # The format of a file with another name follows from its suffix and content.
        directory = path.parent
        names = [path.name]
    else:
        names = [name for name in VOCABULARIES if (path / name).is_file()]
        names = (names or sorted(file.name for file in path.glob("*.tiktoken")))[:1]
        if not names:
            raise ModelNotFound(f"tokenizer.json is missing in {path}")
    names += [name for name in NEIGHBORS if (directory / name).is_file()]
    templates = sorted((directory / MORE_TEMPLATES).glob("*.jinja"))
    if len(templates) > _MAX_TEMPLATES:
        raise BadModelFile(f"{MORE_TEMPLATES} has too many files")
    names += [MORE_TEMPLATES + file.name for file in templates]
    return {name: _read(directory / name) for name in names}


def vocabulary_name(files: Mapping[str, bytes]) -> str:
    """Return the name of the vocabulary among `files`; raises `ModelNotFound` if none is."""
    others = [n for n in files if n not in NEIGHBORS and not n.startswith(MORE_TEMPLATES)]
    for name in (*VOCABULARIES, *sorted(others)):
        if name in files:
            return name
    raise ModelNotFound(f"{VOCABULARIES[0]} is missing")


def text_of(files: Mapping[str, bytes], name: str) -> str:
    """Return the UTF-8 text of the file `name`, empty if there is no such file."""
    try:
        return files.get(name, b"").decode()
    except UnicodeDecodeError as error:
        raise BadModelFile(f"{name} cannot be read: {error}") from None


def parsed(files: Mapping[str, bytes], name: str) -> Any:
    """Parse the JSON file `name`."""
    text = text_of(files, name)
    try:
        value = json.loads(text)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # fails for lone surrogates
    except (ValueError, RecursionError) as error:
        raise BadModelFile(f"{name} is not valid JSON: {error}") from None
    return value


def parsed_object(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """Parse the JSON object in the file `name`; empty if there is no such file."""
    value = parsed(files, name) if name in files else {}
    if not isinstance(value, dict):
        raise BadModelFile(f"{name} is not a JSON object")
    return value


def _read(file: Path) -> bytes:
    try:
        with open_regular(file) as opened:
            content = opened.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadModelFile(f"{file.name} cannot be read: {error}") from None
    if len(content) > _MAX_FILE_BYTES:
        raise BadModelFile(f"{file.name} is larger than {_MAX_FILE_BYTES} bytes")
    return content
