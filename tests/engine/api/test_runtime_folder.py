"""The private folder of sockets: what another user could have made is refused."""

import os
import socket
import stat
from pathlib import Path

import pytest

from swiftchat.engine.api.runtime_folder import RuntimeFolder, check_socket
from swiftchat.errors import FileSystemError


def test_the_folder_is_private_and_below_the_runtime_folder() -> None:
    folder = RuntimeFolder()
    assert folder.sockets() == []
    folder.create()
    assert folder.path.parent == Path(os.environ["XDG_RUNTIME_DIR"])
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    folder = RuntimeFolder(tmp_path / "run")
    folder.create()
    folder.path.chmod(0o750)
    for use in (folder.create, folder.check, folder.sockets):
        with pytest.raises(FileSystemError, match="its mode is 750, not 700"):
            use()


def test_a_link_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch(0o600)
    for name in ("link", "file"):
        with pytest.raises(FileSystemError):
            RuntimeFolder(tmp_path / name).create()


def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RuntimeFolder(tmp_path / "run")
    folder.create()
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(FileSystemError, match=r"run cannot hold .* not a folder of this user"):
        folder.check()


def test_a_folder_inside_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other user could rename it and put another folder in its place."""
    folder = RuntimeFolder(tmp_path / "run")
    folder.create()
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        found = list(real(path))
        found[stat.ST_UID] = 12345 if path == tmp_path else os.getuid()
        return os.stat_result(found)

    monkeypatch.setattr(Path, "lstat", lstat)
    with pytest.raises(FileSystemError, match="not a folder of this user"):
        folder.check()


def test_a_socket_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RuntimeFolder()
    folder.create()
    path = folder.socket("key")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        path.chmod(0o620)
        with pytest.raises(FileSystemError, match="has the mode 620, not 600"):
            check_socket(path)
        path.chmod(0o600)
        check_socket(path)
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        with pytest.raises(FileSystemError, match="not a socket of this user"):
            check_socket(path)


def test_a_runtime_folder_of_another_user_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Path:
        raise PermissionError("/tmp/runtime-0 belongs to another user")

    monkeypatch.setattr("platformdirs.user_runtime_path", refuse)
    with pytest.raises(FileSystemError, match="belongs to another user"):
        RuntimeFolder()
