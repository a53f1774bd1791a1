"""The default model: `model` in the configuration file."""

import json
import os
import re
from pathlib import Path

from swiftchat.chat.options.option_files import parse_toml
from swiftchat.chat.options.user_files import config_path
from swiftchat.errors import FileSystemError, UsageError

_LINE = re.compile(r"^[ \t]*model[ \t]*=.*$", re.MULTILINE)


def set_default_model(name: str) -> Path:
    """Write the model into the configuration file and return its path; the other lines stay.

    Raises `UsageError` if the file cannot be changed so, `FileSystemError` if not written.
    """
    path = config_path()
    line = f"model = {json.dumps(name)}"
    try:
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        new, num_lines = _LINE.subn(lambda found: line, old, count=1)
        new = new if num_lines else f"{line}\n{old}"
        if parse_toml(new) != {**parse_toml(old), "model": name}:
            raise ValueError("model is set in another way")
    except ValueError as error:  # of TOML, or of UTF-8
        raise UsageError(f"{path}: {error}", f"edit the file: {line}") from error
    except OSError as error:
        raise FileSystemError.reading(path, error) from error
    target = path.resolve()  # the file may be a link into a folder of settings
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{os.getpid()}")
        part.write_text(new, encoding="utf-8")
        part.replace(target)
    except OSError as error:
        raise FileSystemError(f"cannot write {path}: {error.strerror}") from error
    return path
