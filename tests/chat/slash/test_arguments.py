"""Arguments of slash commands: numbers of any length, words with quotes, paths with `~`."""

import json
import shlex
from pathlib import Path

import pytest

from swiftchat.chat.slash.command import count_of
from swiftchat.chat.slash.registry import COMMANDS
from swiftchat.errors import SwiftchatError, UsageError
from tests.chat.slash.test_commands import Chat, chat

__all__ = ["chat"]
LEAVING = ("!", "/bye", "/regen", "/continue")


@pytest.mark.parametrize("text", ["9" * 4400, "-" + "9" * 4400, "0" * 4400, "²", "٣", "1e400"])
def test_no_command_fails_at_a_number(chat: Chat, text: str) -> None:
    chat.send("one", "```\nA\n```")
    chat.engine.answers += [{"text": "A summary."}] * 9  # of /compact 0
    for command in COMMANDS:
        if command.name in LEAVING:
            continue
        for argument in (text, f"code {text}", f"temperature {text}", f"seed {text}"):
            try:
                chat.send(f"{command.name} {argument}")
            except SwiftchatError as error:
                assert error.exit_code != 1


def test_a_number_above_all_counts_is_the_largest(chat: Chat) -> None:
    for question in ("one", "two", "three"):
        chat.send(question, "A")
    huge = "9" * 4400
    assert "took back 3 turns; 0 left" in chat.send(f"/undo {huge}")
    chat.send("four", "A")
    assert "four" in chat.send(f"/show {huge}")
    for wrong in (f"/undo {'0' * 4400}", f"/edit -{huge}", f"/switch {huge}", "/edit --1"):
        with pytest.raises(UsageError):
            chat.send(wrong)
    assert [count_of(text) for text in ("0", "007", "12", "-1", "", "x", "²")] == [
        *(0, 7, 12),
        *[None] * 4,
    ]


NAMES = ("a b", "it's", 'say "hi"', "back\\slash", "~tilde", "[x]", "$HOME", "café ✓")


@pytest.mark.parametrize("name", NAMES)
def test_files_with_any_name(chat: Chat, name: str, tmp_path: Path) -> None:
    chat.send("q", "a")
    folder = tmp_path / name
    folder.mkdir()
    talk, schema = folder / f"{name}.md", folder / f"{name}.json"
    quoted = [
        shlex.quote(str(talk)),
        '"' + str(talk).translate({ord(one): f"\\{one}" for one in '"\\'}) + '"',
        "".join(one if one.isalnum() or one in "/-_." else f"\\{one}" for one in str(talk)),
    ]
    for text in quoted:
        assert "written to" in chat.send(f"/export {text}") and talk.exists()
        assert "is attached" in chat.send(f"/read {text}")
        talk.unlink()
        with pytest.raises(UsageError, match="takes one name"):
            chat.send(f"/export {text} other.md")
    chat.send(f"/export --force {quoted[0]}")
    schema.write_text('{"type": "object"}')
    assert "answers match" in chat.send(f"/schema {shlex.quote(str(schema))}")
    assert "answers match" in chat.send(f"/schema {schema}")  # as it stands, because it exists
    with pytest.raises(SwiftchatError, match="nowhere"):
        chat.send("/model " + shlex.quote(str(folder / "nowhere")))


def test_the_hint_for_several_words_is_a_command(chat: Chat, tmp_path: Path) -> None:
    chat.send("q", "a")
    with pytest.raises(UsageError) as caught:
        chat.send(f"/export {tmp_path}/my talk.md")
    chat.send(caught.value.hint.partition("quotes: ")[2])
    assert (tmp_path / "my talk.md").exists()
    (tmp_path / "it's.txt").write_text("text")
    with pytest.raises(UsageError, match="no closing quotation") as caught:
        chat.send(f"/read {tmp_path}/it's.txt")
    assert "is attached" in chat.send(caught.value.hint.partition(" takes")[0])
    for line in ("/schema 'x", "/lora load 'x", "/model 'x", "/role 'x", "/export 'x.md"):
        with pytest.raises(UsageError, match="no closing quotation"):
            chat.send(line)


def test_a_tilde_is_the_home_folder(
    chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    chat.send("q", "a")
    assert str(home) in chat.send("/export '~/my talk.json'")
    assert json.loads((home / "my talk.json").read_text())["messages"]
    assert "is attached" in chat.send('/read "~/my talk.json"')
    (home / "s.json").write_text('{"type": "object"}')
    assert "answers match" in chat.send("/schema ~/s.json")
    for command in ("/model", "/lora load", "/export", "/read", "/schema"):
        with pytest.raises(SwiftchatError, match=r"no home folder|no-such-user"):
            chat.send(f"{command} ~no-such-user/x.md")
