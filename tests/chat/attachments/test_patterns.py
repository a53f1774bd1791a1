"""Patterns in folders that somebody else has made: loops of links, links to other files, size."""

import glob
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftchat.chat.attachments import files, patterns
from swiftchat.chat.attachments.files import read_attachments
from swiftchat.chat.attachments.patterns import matching_files
from swiftchat.errors import UsageError

TREE = ("a.py", "b.md", "sub/c.py", "sub/deep/d.py", "sub/[x]/e.py", ".hidden/f.py", "sub/.g.py")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tree")
    for name in TREE:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


@given(st.lists(st.sampled_from(["**", "*", "*.py", "sub", "[ad]*", "?.md", "."]), min_size=1))
def test_without_links_they_are_those_of_glob(tree: Path, parts: list[str]) -> None:
    for start in (str(tree), f"{glob.escape(str(tree))}/sub/.."):
        pattern = "/".join([start, *parts])
        expected = {name for name in glob.glob(pattern, recursive=True) if Path(name).is_file()}  # noqa: PTH207
        found, links = matching_files(pattern, pattern)
        assert ({os.path.normpath(n) for n in found}, links) == (
            {os.path.normpath(n) for n in expected},
            [],
        )


def test_names_are_relative_as_the_pattern_is(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert matching_files("**", "")[0] == [
        "a.py",
        "b.md",
        "sub/[x]/e.py",
        "sub/c.py",
        "sub/deep/d.py",
    ]
    assert matching_files("**/*.md", "")[0] == ["b.md"]
    assert matching_files("sub/**/d.py", "")[0] == ["sub/deep/d.py"]


def test_loops_of_links_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two links to the folder above would give 2 to the power of 40 paths."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("one", "two", "three"):
        (tmp_path / "a" / "b" / name).symlink_to(tmp_path)
    (tmp_path / "self").symlink_to("self")
    (tmp_path / "a" / "x.txt").write_text("x")
    assert [each.name for each in read_attachments(["**"])] == ["a/x.txt"]
    assert len(read_attachments([f"{tmp_path}/**/*.txt"])) == 1


@pytest.mark.parametrize("pattern", ["**", "*", "{}/*", "{}/**/*.txt", "d*/*.txt"])
def test_a_link_out_of_the_folder_is_left_out_with_a_note(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret.txt").write_text("a secret")
    folder = tmp_path / "cloned"
    (folder / "data").mkdir(parents=True)
    monkeypatch.chdir(folder)
    for name in ("own.txt", "data/own.txt"):
        (folder / name).write_text("own")
        (folder / name).with_name("notes.txt").symlink_to(tmp_path / "secret.txt")
        (folder / name).with_name("same.txt").symlink_to(folder / "own.txt")
    (folder / "dir").symlink_to(tmp_path)
    found = read_attachments([pattern.format(folder)])
    assert {each.text for each in found} == {"own"}
    assert {Path(each.name).name for each in found} == {"own.txt", "same.txt"}
    notes = [note for each in found for note in each.notes]
    assert any("notes.txt is left out: a link out of the folder" in note for note in notes)


def test_a_link_that_the_user_names_is_attached(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("x")
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "text")
    (tmp_path / "way").symlink_to(tmp_path / "folder")
    assert read_attachments([f"{tmp_path}/folder/link"])[0].text == "x"
    with pytest.raises(UsageError, match="only links out of the folder match") as caught:
        read_attachments([f"{tmp_path}/folder/*"])
    assert caught.value.hint == f"name one to attach it: {tmp_path}/folder/link"
    (tmp_path / "folder" / "own").write_text("own")
    assert [each.text for each in read_attachments([f"{tmp_path}/way/*"])] == ["own"]


def test_files_and_their_sum_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("x" * 10)
    read: list[str] = []
    read_file = files.read_file
    monkeypatch.setattr(files, "read_file", lambda name: (read.append(name), read_file(name))[1])
    monkeypatch.setattr(files, "_MAX_CHARACTERS", 30)
    names = [str(tmp_path / f"{number}.txt") for number in range(5)]
    for sources in ([f"{tmp_path}/*"], names, [f"{tmp_path}/[01]*", f"{tmp_path}/[23]*"]):
        read.clear()
        with pytest.raises(UsageError, match="more than 30 characters"):
            read_attachments(sources)
        assert len(read) == 4, "the others are not read"
    monkeypatch.setattr(patterns, "_MAX_FILES", 4)
    with pytest.raises(UsageError, match="matches more than 4 files"):
        read_attachments([f"{tmp_path}/*"])
