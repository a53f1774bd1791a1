"""Files of the KV cache on disk."""

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from swiftchat.engine.kv_store.run_file import BadRunFile, RunFile, RunLayout, RunWriter, Views
from swiftchat.engine.schedule.content import ROOT
from tests.fuzz.formats.safetensors import SAFETENSORS
from tests.fuzz.target import Difference, Target

_LAYOUT = RunLayout(4, (("kv0", "BF16", (3, 2, 8)), ("kv1", "F32", (3, 2))))
_ABOUT = {"key": "k", "model": "m"}
_NUM_BLOCKS, _SIZES = 3, (32, 8)


def _block(seed: int) -> Views:
    chance = np.random.default_rng(seed)
    return [
        [memoryview(chance.integers(0, 256, size, dtype=np.uint8)) for _ in range(3)]
        for size in _SIZES
    ]


@cache
def _file() -> tuple[str, bytes]:
    """Return the name and the content of a file."""
    with tempfile.TemporaryDirectory() as folder:
        tokens = [[7, i, 0, 0] for i in range(_NUM_BLOCKS)]
        writer = RunWriter(Path(folder), _LAYOUT, ROOT, tokens, _ABOUT)
        for i in range(_NUM_BLOCKS):
            writer.write(_block(i))
        path = writer.finish()
        return path.name, path.read_bytes()


def _load(data: bytes, folder: Path) -> Any:
    path = folder / _file()[0]
    path.write_bytes(data)
    run = RunFile.open(path, _LAYOUT, _ABOUT)
    blocks = []
    for i in range(len(run.blocks)):
        views = [[memoryview(bytearray(size)) for _ in range(3)] for size in _SIZES]
        run.read(i, views)
        blocks.append((run.blocks[i], [list(map(bytes, one)) for one in views]))
    return blocks


def _compare(data: bytes, folder: Path, loaded: Any) -> None:
    """What is accepted has the tokens of its name and the values that were written for them."""
    for i, (tokens, views) in enumerate(loaded):
        if tokens != (7, i, 0, 0) or views != [list(map(bytes, one)) for one in _block(i)]:
            raise Difference(f"block {i} has another content")


# The engine removes a file for any of these.
KV_FILES = Target(
    "kv-cache",
    lambda: [_file()[1]],
    SAFETENSORS.mutate,
    _load,
    800,
    _compare,
    refusals=(BadRunFile, OSError),
    byte_share=0.6,
)
