"""Files as attachments: the fence, patterns, encodings, refusal of everything but text."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftchat.chat.attachments.attachment import Attachment, message_with
from swiftchat.chat.attachments.files import read_attachments
from swiftchat.chat.attachments.user_text import decode_text
from swiftchat.errors import FileSystemError, UsageError


@given(st.text(alphabet="`a\n \x1b:()", max_size=60), st.text(alphabet="`a\n)", max_size=20))
def test_a_text_cannot_close_its_fence(text: str, name: str) -> None:
    lines = Attachment(name, text).fenced.split("\n")
    fence = lines[-2]
    assert set(fence) == {"`"} and len(fence) >= 3 and lines[1] == fence
    assert "\n".join(lines[2:-2]) == text.removesuffix("\n")
    assert not any(fence in line for line in [lines[0], *lines[2:-2], lines[-1]])


def test_a_message_follows_its_attachments() -> None:
    fenced = [Attachment("a.txt", "one"), Attachment("b\n\x1b.txt", "two\n")]
    assert message_with(fenced, "sum up") == (
        "a.txt:\n```\none\n```\n(end of a.txt)\n\n"
        "b ␛.txt:\n```\ntwo\n```\n(end of b ␛.txt)\n\nsum up"
    )
    assert message_with([], "hello") == "hello"


def test_patterns_match_text_files_and_report_others(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.py", "a.py", "sub/c.py"):
        (tmp_path / name).write_text(name)
    (tmp_path / "sub" / "d.py").write_bytes(b"\0\1\2")
    found = read_attachments([f"{tmp_path}/*.py", f"{tmp_path}/sub/*.py"])
    assert [each.text for each in found] == ["a.py", "b.py", "sub/c.py"]
    assert [note for each in found for note in each.notes] == [
        f"{tmp_path}/sub/d.py is left out: is not a text file"
    ]
    assert len(read_attachments([f"{tmp_path}/**/*.py"])) == 3
    (tmp_path / "[x].py").write_text("brackets")  # a name that is also a pattern
    assert [each.text for each in read_attachments([f"{tmp_path}/[x].py"])] == ["brackets"]
    for source in (f"{tmp_path}/sub/d*", f"{tmp_path}/*.none", f"{tmp_path}/sub"):
        with pytest.raises(UsageError):
            read_attachments([source])


@pytest.mark.parametrize(
    ("content", "text", "num_invalid"),
    [
        ("käse\r\nzwei".encode(), "käse\nzwei", 0),
        ("\ufeffkäse".encode(), "käse", 0),
        ("käse".encode("utf-16"), "käse", 0),
        (b"\xfe\xff" + "käse".encode("utf-16-be"), "käse", 0),
        ("käse, lang genug".encode("latin-1"), "k\ufffdse, lang genug", 1),
        ("a real \ufffd".encode(), "a real \ufffd", 0),
        (b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m", 0),
        (b"", "", 0),
    ],
)
def test_encodings(content: bytes, text: str, num_invalid: int) -> None:
    assert decode_text(content) == (text, num_invalid)


@pytest.mark.parametrize(
    "content",
    [
        b"a\0b",
        b"\1\2\3",
        b"\x89PNG\r\n\x1a\n\0",
        bytes(range(128, 256)),
        b"%!PS-Adobe-3.0\n",
    ],
)
def test_only_text_is_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UsageError, match="not a text file"):
        read_attachments([str(tmp_path / "x")])


def test_invalid_bytes_are_reported(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes("für alle, die es lesen".encode("latin-1"))
    (found,) = read_attachments([str(tmp_path / "x")])
    assert found.notes == [f"{tmp_path}/x is not valid UTF-8; bytes replaced: 1"]


def test_unreadable_and_endless_files(tmp_path: Path) -> None:
    with pytest.raises(FileSystemError, match="No such file"):
        read_attachments([str(tmp_path / "none")])
    with pytest.raises(UsageError, match="larger than 32 MiB"):
        read_attachments(["/dev/zero"])
    with pytest.raises(FileSystemError, match="nouser-x"):
        read_attachments(["~nouser-x/a"])


def test_parts_of_a_pattern_that_exist_are_literal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("src/(p)/[id]/page.ts", "src/(p)/i/page.ts", "src/q/[id]/page.ts", "src/a?/[!x].ts")
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)

    def found(pattern: str) -> list[str]:
        return [one.text for one in read_attachments([pattern])]

    assert found("src/(p)/[id]/*") == [names[0]]
    assert found("src/(p)/[id]/page.*") == [names[0]]
    assert found("src/*/[id]/*") == [names[0], names[2]]
    assert found("src/(p)/[hij]/*") == [names[1]]
    assert found("src/a?/*.ts") == [names[3]]
    assert found("src/a?/[!x].ts") == [names[3]]
    assert found(f"{tmp_path}/src/(p)/[id]//*") == [names[0]]
    assert found("./src/**/[id]/*.ts") == [names[1]]  # behind ** a part is a pattern
    with pytest.raises(UsageError, match="no file matches"):
        read_attachments(["src/(p)/[xyz]/*"])


def test_terminals_and_the_outputs_of_the_program_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading them would wait for ever, and take keys from the prompt."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "r+b", buffering=0), os.fdopen(master, "wb") as keys:
        keys.write(b"typed\n")
        keys.flush()
        for name in (os.ttyname(slave), f"/proc/self/fd/{slave}", f"/dev/fd/{slave}"):
            with pytest.raises(UsageError, match="is a terminal"):
                read_attachments([name])
        with os.fdopen(os.dup(slave)) as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            with pytest.raises(UsageError, match="is stdin, which is a terminal"):
                read_attachments(["-"])


@pytest.mark.parametrize("number", [1, 2])
def test_a_pipe_that_the_program_writes_is_refused(number: int) -> None:
    script = (
        "from swiftchat.chat.attachments.user_text import read_text\n"
        f"try: read_text('/proc/self/fd/{number}')\n"
        "except Exception as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == f"/proc/self/fd/{number} is an output of this program\n"
