"""Which files of a folder are read: git is the reference for `.gitignore`."""

import shutil
import subprocess
from pathlib import Path

import pytest

from swiftchat.chat.attachments import folder as folder_module
from swiftchat.chat.attachments.folder import readable_files
from swiftchat.errors import UsageError

FILES = (
    "a.md",
    "b.log",
    "keep.log",
    "build/x.py",
    "src/build/y.py",
    "src/a.md",
    "src/b.log",
    "src/deep/keep.log",
    "src/deep/z.tmp",
    "docs/only/here.md",
)
RULES = {
    ".gitignore": "*.log\n!keep.log\n/build/\n# a comment\nonly/\n",
    "src/.gitignore": "!b.log\n*.tmp\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / "top" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    for name, text in RULES.items():
        (tmp_path / "top" / name).write_text(text)
    return tmp_path / "top"


def test_ignored_and_hidden_files_are_left_out(folder: Path) -> None:
    (folder / ".env").write_text("SECRET=1")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x").write_text("x")
    expected = ["a.md", "keep.log", "src/a.md", "src/b.log", "src/build/y.py", "src/deep/keep.log"]
    assert readable_files(folder) == expected
    if shutil.which("git"):
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
        listing = ["git", "ls-files", "-co", "--exclude-standard"]
        names = subprocess.run(listing, cwd=folder, capture_output=True, text=True, check=True)
        found = {name for name in names.stdout.split() if not name.split("/")[-1].startswith(".")}
        assert found - {".cache/x"} == set(expected)


def test_rules_of_the_repository_above_a_folder_hold(folder: Path) -> None:
    (folder / "src" / "c.log").write_text("c")
    assert "c.log" in readable_files(folder / "src"), "the folder above is no repository"
    (folder / ".git").mkdir()
    assert readable_files(folder / "src") == ["a.md", "b.log", "build/y.py", "deep/keep.log"]


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (folder / "link.md").symlink_to(tmp_path / "secret")
    (folder / "loop").symlink_to(folder)
    assert "link.md" not in readable_files(folder)
    assert not any(name.startswith("loop/") for name in readable_files(folder))


def test_a_folder_with_too_many_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "MAX_FILES", 3)
    with pytest.raises(UsageError, match="more than 3 files"):
        readable_files(folder)
