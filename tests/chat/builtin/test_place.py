"""Paths that tools are given: what is outside, hidden, no file, or changed since it was shown."""

import os
import socket
from pathlib import Path

import pytest

from swiftchat.chat.builtin.place import Place, place_of
from swiftchat.errors import FileSystemError, SwiftchatError, UsageError


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """Return a working folder, beside which there is a secret."""
    folder = Path(os.path.realpath(tmp_path)) / "top"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("text\n")
    (folder.parent / "secret").write_text("secret\n")
    (folder.parent / "top-secret").write_text("secret\n")
    return folder


def test_places_outside_and_hidden_ones_have_a_warning(top: Path) -> None:
    (top / "link").symlink_to("../secret")
    (top / "sub" / "out").symlink_to(top.parent)
    (top / "sub" / "in").symlink_to("../a.txt")
    for inside in ("a.txt", "./a.txt", "sub/../a.txt", str(top / "a.txt"), "sub/in", ".", "new/x"):
        assert place_of(inside, str(top)).warning == "", inside
    outside = ("..", "../secret", "../top-secret", "/etc/hosts", "link", "sub/out/secret", "~", "/")
    for name in outside:
        place = place_of(name, str(top))
        assert place.warning == f"{place.path} is outside of the working folder", name
        assert place.name == place.path
    for hidden in (".env", ".git/hooks/x", "sub/.x", "new/.y/z"):
        assert place_of(hidden, str(top)).warning.endswith(" is hidden"), hidden
    assert place_of("link", str(top)).path == str(top.parent / "secret"), "where it leads to"
    for invalid in ("", "a\0b", "x" * 5000, "~nobody-of-this-name/x"):
        with pytest.raises(SwiftchatError):
            place_of(invalid, str(top))


def test_the_root_as_working_folder() -> None:
    assert place_of("etc", "/").warning == "" and place_of("etc", "/").name == "etc"


def test_what_is_no_file_is_not_opened(top: Path) -> None:
    os.mkfifo(top / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(top)  # the address of a socket must be short
        server.bind("socket")
        for name in ("pipe", "socket", "/dev/null"):
            with pytest.raises(UsageError, match="is a device or a pipe"):
                place_of(name, str(top)).read()
            with pytest.raises(UsageError, match="is a device or a pipe"):
                place_of(name, str(top)).write(b"x", None)
    for name in (".", "sub", "/"):
        with pytest.raises(UsageError, match="is a folder"):
            place_of(name, str(top)).read()
    with pytest.raises(FileSystemError, match="No such file"):
        place_of("gone", str(top)).read()


def test_a_file_that_is_too_large(top: Path) -> None:
    with (top / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError, match="larger than 32 MiB"):
        place_of("huge", str(top)).read()


@pytest.mark.parametrize("swapped", ["file", "folder"])
def test_a_link_that_comes_after_the_check_is_not_followed(top: Path, swapped: str) -> None:
    (top / "sub" / "b.txt").write_text("mine\n")
    outside = top.parent / "outside"
    outside.mkdir()
    (outside / "b.txt").write_text("secret\n")
    place = place_of("sub/b.txt", str(top))
    if swapped == "file":
        (top / "sub" / "b.txt").unlink()
        (top / "sub" / "b.txt").symlink_to(outside / "b.txt")
    else:
        (top / "sub").rename(top / "moved")
        (top / "sub").symlink_to(outside)
    with pytest.raises(FileSystemError):
        place.read()
    with pytest.raises(FileSystemError):
        place.write(b"x", b"mine\n")
    with pytest.raises(FileSystemError):
        Place(place.path, place.top).entries()
    assert (outside / "b.txt").read_text() == "secret\n"


def test_a_file_is_replaced_only_as_it_was_shown(top: Path) -> None:
    place = place_of("a.txt", str(top))
    (top / "a.txt").chmod(0o640)
    place.write(b"new\n", b"text\n")
    assert (top / "a.txt").read_bytes() == b"new\n"
    assert (top / "a.txt").stat().st_mode & 0o777 == 0o640
    with pytest.raises(FileSystemError, match="has changed meanwhile"):
        place.write(b"x", b"text\n")
    with pytest.raises(FileSystemError, match="has changed meanwhile"):
        place.write(b"x", None)
    assert sorted(one.name for one in top.iterdir()) == ["a.txt", "sub"], "nothing is left over"


def test_new_files_and_their_folders(top: Path) -> None:
    place_of("x/y/z.txt", str(top)).write(b"z", None)
    assert (top / "x" / "y" / "z.txt").read_bytes() == b"z"
    with pytest.raises(FileSystemError):
        place_of("a.txt/b", str(top)).write(b"z", None)
    with pytest.raises(FileSystemError, match="has changed meanwhile"):
        place_of("gone.txt", str(top)).write(b"z", b"expected")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_file_stays(top: Path) -> None:
    (top / "a.txt").chmod(0o444)
    with pytest.raises(FileSystemError, match="read-only"):
        place_of("a.txt", str(top)).write(b"x", b"text\n")


def test_entries_of_a_folder(top: Path) -> None:
    (top / ".hidden").write_text("x")
    names = [name for name, _ in place_of(".", str(top)).entries()]
    assert names == [".hidden", "a.txt", "sub"]
    assert Place("/", "/").entries()
    for name in ("gone", "a.txt"):
        with pytest.raises(FileSystemError):
            place_of(name, str(top)).entries()
