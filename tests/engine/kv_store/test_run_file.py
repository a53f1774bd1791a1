"""Files of runs: what is written is read again, and a killed writer leaves only whole files."""

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from swiftchat.engine.api.kv_folder import KVFolder
from swiftchat.engine.kv_store.run_file import BadRunFile, RunFile, RunLayout, RunWriter, Views
from swiftchat.engine.schedule.content import ROOT, content_digest
from swiftchat.weights.formats.safetensors import read_header

LAYOUT = RunLayout(4, (("kv0", "BF16", (3, 2, 40)), ("kv1", "F32", (3, 2))))
ABOUT = {"key": "k", "model": "m"}


def block(seed: int) -> Views:
    """Return the bytes of a block: three layers of two tensors."""
    chance = np.random.default_rng(seed)
    return [
        [memoryview(chance.integers(0, 256, size, dtype=np.uint8)) for _ in range(3)]
        for size in (160, 8)
    ]


def empty() -> Views:
    return [[memoryview(bytearray(size)) for _ in range(3)] for size in (160, 8)]


def write(folder: Path, seed: int, num_blocks: int) -> Path:
    tokens = [[seed, i, 0, 0] for i in range(num_blocks)]
    writer = RunWriter(folder, LAYOUT, ROOT, tokens, ABOUT)
    for i in range(num_blocks):
        writer.write(block(100 * seed + i))
    return writer.finish()


def check(path: Path) -> int:
    """Read every block; return the seed of the file."""
    run = RunFile.open(path, LAYOUT, ABOUT)
    seed = run.blocks[0][0]
    for i in range(len(run.blocks)):
        views = empty()
        run.read(i, views)
        assert [list(map(bytes, one)) for one in views] == [
            list(map(bytes, one)) for one in block(100 * seed + i)
        ]
    return seed


def test_blocks_are_read_again_in_any_order(tmp_path: Path) -> None:
    path = write(tmp_path, 3, 5)
    run = RunFile.open(path, LAYOUT, ABOUT)
    assert run.digests[1] == content_digest(ROOT, [3, 0, 0, 0]) and len(run.blocks) == 5
    assert check(path) == 3
    tensors, metadata = read_header(path)  # any reader of safetensors can read it
    assert tensors["kv0"].shape == (5, 3, 2, 40) and metadata["num_tokens"] == "20"
    with pytest.raises(BadRunFile, match="another model"):
        RunFile.open(path, LAYOUT, {"key": "other"})
    with pytest.raises(BadRunFile, match="not those"):
        RunFile.open(path, RunLayout(2, LAYOUT.tensors), ABOUT)


def test_a_file_under_the_name_of_other_tokens_is_refused(tmp_path: Path) -> None:
    path, other = write(tmp_path, 1, 2), write(tmp_path, 2, 2)
    path.rename(other)
    with pytest.raises(BadRunFile, match="name"):
        RunFile.open(other, LAYOUT, ABOUT)


def test_an_abandoned_run_leaves_nothing(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, LAYOUT, ROOT, [[1, 2, 3, 4]], ABOUT)
    writer.write(block(1))
    writer.abandon()
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


def _write_forever(folder: Path, first: int) -> None:
    for seed in range(first, first + 10_000):
        write(folder, seed, 1 + seed % 16)


@pytest.mark.fault(47)
def test_a_writer_killed_at_any_moment_leaves_only_whole_files(tmp_path: Path) -> None:
    num_kills = int(os.environ.get("TEST_SWIFTCHAT_KILLS", "30"))
    folder, chance, num_partial = KVFolder(tmp_path), random.Random(5), 0
    inner = folder.create("model")
    for kill in range(num_kills):
        pid = os.fork()
        if pid == 0:
            try:
                _write_forever(inner, 10_000 * kill)
            finally:
                os._exit(1)
        deadline = time.monotonic() + 60
        while not any(inner.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(chance.random() * 0.02)
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        num_partial += sum(1 for _ in inner.glob("*.partial"))
        folder.remove_temporary()
        assert not list(inner.glob("*.partial"))
        for path in inner.iterdir():
            check(path)
            path.unlink()
    assert num_partial, "no kill hit a file that was being written"
