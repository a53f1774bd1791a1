"""The folder of KV caches: bound, privacy, files of killed engines."""

import fcntl
import os
from pathlib import Path

import pytest

from swiftchat.engine.api.kv_folder import KVFolder
from swiftchat.errors import FileSystemError


def test_the_default_bound_is_a_part_of_the_disk(tmp_path: Path) -> None:
    assert 0 < KVFolder(tmp_path / "not" / "there").max_bytes <= 8 << 30
    assert KVFolder(tmp_path, 5).max_bytes == 5


def test_the_oldest_files_are_evicted_first(tmp_path: Path) -> None:
    folder = KVFolder(tmp_path, 250)
    files = [folder.create("ab"[i % 2]) / f"{i}.safetensors" for i in range(4)]
    for age, file in zip([3, 1, 4, 2], files, strict=True):
        file.write_bytes(bytes(100))
        os.utime(file, (1000 - age, 1000 - age))
    folder.evict()
    assert [file for file in files if file.exists()] == [files[1], files[3]]


@pytest.mark.fault(47)
def test_temporary_files_of_killed_engines_are_removed(tmp_path: Path) -> None:
    folder = KVFolder(tmp_path)
    dead, written = (folder.create("a") / f"{name}.partial" for name in ("dead", "written"))
    dead.write_bytes(b"1")
    with written.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        folder.remove_temporary()
        assert not dead.exists() and written.exists()
    folder.remove_temporary()
    assert not written.exists()


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "kv").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileSystemError, match="not a folder of this user"):
        KVFolder(tmp_path / "kv").create("a")
