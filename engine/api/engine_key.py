"""The key of an engine: equal for terminals that may share one."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import VERSION

_KEY_DIGITS = 16
# Variables that change how an engine computes or on which devices.
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "SWIFTCHAT_CPU_KERNELS")


def engine_key(path: Path, config: EngineConfig, environ: Mapping[str, str]) -> str:
    """Return 16 hexadecimal digits for a model directory or file, options and environment.

    Files count with name, size and modification time, not with their content: reading a model
    takes too long. So a replaced file gives another key, also one of the draft model or heads.
    """
    draft = Path(config.draft) if config.draft else None
    identity = {
        "program": [VERSION, str(Path(__file__).resolve())],
        "files": list(_files(path.resolve())),
        "draft": list(_files(draft.resolve())) if draft and draft.exists() else None,
        "config": config.to_wire(),
        "environ": {name: environ.get(name) for name in _VARIABLES},
    }
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:_KEY_DIGITS]


def _files(path: Path) -> Iterator[tuple[str, int, int]]:
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        found = file.stat() if file.exists() else file.lstat()  # lstat: a broken link
        if not file.is_dir():
            yield os.fspath(file), found.st_size, found.st_mtime_ns
