"""Imports: what can be imported is, and what is left out is named with its place."""

import copy
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from swiftchat.chat.history import importer
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.importer import import_conversations
from swiftchat.chat.history.store import SessionStore, sessions_path
from swiftchat.errors import UsageError
from tests.support.program import Program, assert_error

HIDDEN = {"is_visually_hidden_from_conversation": True}


def node(
    role: str, content: dict[str, Any], parent: str | None, metadata: Any = None
) -> dict[str, Any]:
    message = {"author": {"role": role}, "content": content, "metadata": metadata or {}}
    return {"parent": parent, "message": message}


def text(*parts: Any, kind: str = "text") -> dict[str, Any]:
    return {"content_type": kind, "parts": list(parts)}


def spoken(words: str) -> list[dict[str, Any]]:
    return [
        {"content_type": "audio_transcription", "text": words, "direction": "in"},
        {"content_type": "audio_asset_pointer", "asset_pointer": "sediment://1"},
    ]


def chatgpt(title: str | None, **nodes: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": title,
        "default_model_slug": "gpt-5",
        "current_node": list(nodes)[-1] if nodes else None,
        "mapping": {"root": {"message": None, "parent": None}, **nodes},
    }


def talk(title: str | None = None) -> dict[str, Any]:
    return chatgpt(
        title, q=node("user", text("Hello"), "root"), a=node("assistant", text("Hi!"), "q")
    )


EMPTY = chatgpt("nothing in it")


def read(value: object) -> tuple[list[Conversation], list[str]]:
    notes: list[str] = []
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return import_conversations(data, "f.json", notes.append), notes


def contents(conversation: Conversation) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in conversation.messages]


def test_a_conversation_without_messages_is_left_out_of_many() -> None:
    found, notes = read([talk("one"), EMPTY, 5, {"mapping": []}, talk("two")])
    assert [one.title for one in found] == ["one", "two"]
    assert [note.partition(": ")[0] for note in notes] == ["f.json[1]", "f.json[2]", "f.json[3]"]
    assert "nothing in it" in notes[0]
    with pytest.raises(UsageError, match=r"f\.json\[0\]: no message .*, and 1 more"):
        read([EMPTY, EMPTY])
    for value in (
        EMPTY,
        {"swiftchat": 1, "messages": []},
        {"messages": [{"role": "system", "content": "x"}]},
    ):
        with pytest.raises(UsageError, match="no message"):
            read(value)


def test_a_voice_conversation_has_its_transcripts() -> None:
    (found,), notes = read(
        chatgpt(
            None,
            q=node("user", text(*spoken("a question"), kind="multimodal_text"), "root"),
            a=node("assistant", text(*spoken("an answer"), kind="multimodal_text"), "q"),
        )
    )
    assert contents(found) == [("user", "a question"), ("assistant", "an answer")]
    assert found.title == "a question" and found.tree[1].model == "gpt-5"
    assert notes == ["f.json: parts of 'a question': 2 × audio"]


def test_code_images_tools_and_reasoning_of_chatgpt() -> None:
    code = {"content_type": "code", "language": "python", "text": "print('```')"}
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://1"}
    (found,), notes = read(
        chatgpt(
            "T",
            profile=node(
                "user",
                {"content_type": "user_editable_context", "user_profile": "a secret"},
                "root",
                HIDDEN,
            ),
            hidden=node("user", text("a secret"), "profile", HIDDEN),
            q=node("user", text(image, "What is this?", kind="multimodal_text"), "hidden"),
            thoughts=node("assistant", {"content_type": "thoughts", "thoughts": []}, "q"),
            c=node("assistant", code, "thoughts"),
            out=node("tool", {"content_type": "execution_output", "text": "1"}, "c"),
            a=node("assistant", text("A cat."), "out"),
            only=node("user", text(image, kind="multimodal_text"), "a"),
            b=node("assistant", {"content_type": "a_new_kind", "text": "A dog."}, "only"),
        )
    )
    assert contents(found) == [
        ("user", "What is this?"),
        ("assistant", "````python\nprint('```')\n````"),
        ("assistant", "A cat."),
        ("user", "[image]"),
        ("assistant", "A dog."),
    ]
    (note,) = notes
    for part in ("2 × image", "1 × output of a tool", "1 × reasoning"):
        assert part in note
    assert "secret" not in json.dumps([contents(found), notes])


def test_strange_nodes_do_not_stop_an_import() -> None:
    value = chatgpt(
        "T",
        q=node("user", text("Hello"), "missing"),
        n=node("assistant", text(None, 5, {"text": 7}, "x"), "q"),
        e=node("assistant", {"content_type": "code", "text": None}, "n"),
        s={"parent": "n", "message": {"author": {"role": [1]}, "content": text("y")}},
        w={"parent": ["n"], "message": {"author": None}},
        x={"parent": "y", "message": None},
        y={"parent": "x", "message": None},
    )
    (found,), notes = read(value)
    assert {one.content for one in found.tree} == {"Hello", "x"}
    assert "2 × part" in notes[0] and "2 × message without a beginning" in notes[0]


def test_a_message_that_is_damaged_is_left_out_of_an_export() -> None:
    messages: list[Any] = [
        {"id": "a", "role": "user", "content": "q"},
        {"id": "b", "role": "assistant", "content": {}, "parent": "a"},
        {"id": "c", "role": "assistant", "content": "kept", "parent": "b"},
        {"id": "d", "role": "tool", "content": "result", "parent": "c"},
        {"id": "e", "role": "user", "content": "lost", "parent": "unknown"},
        7,
        {"id": ["f"], "role": "user", "content": "end", "parent": "d"},
    ]
    (found,), notes = read({"swiftchat": 1, "messages": messages, "tip": "zzz"})
    assert contents(found) == [("user", "q"), ("assistant", "kept"), ("user", "end")]
    assert [note.partition(": ")[2].partition(":")[0] for note in notes] == [
        "messages[1]",
        "messages[3]",
        "messages[4]",
        "messages[5]",
    ]


def test_a_message_that_is_damaged_is_left_out_of_a_list() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:…"}}
    messages: list[Any] = [
        {"role": "system", "content": "S"},
        {"role": "system", "content": "another"},
        {"role": "user", "content": [image]},
        5,
        {"role": "critic", "content": "bad"},
        {"role": "tool", "content": "5", "tool_call_id": "none"},
        {"role": "assistant", "content": "A cat."},
    ]
    (found,), notes = read({"messages": messages})
    assert contents(found) == [("user", "[image]"), ("assistant", "A cat.")] and found.system == "S"
    assert len(notes) == 5 and "1 × image" in notes[-1]
    for number, note in zip((1, 3, 4, 5), notes, strict=False):
        assert note.startswith(f"f.json: messages[{number}]: ")


def test_the_complete_conversations_of_a_cut_file_are_imported() -> None:
    data = json.dumps([talk("one"), talk("two"), talk("three")]).encode()
    for end in (len(data) - 1, len(data) - 30):
        found, notes = read(data[:end])
        assert [one.title for one in found] == ["one", "two", "three"][: 2 + (end > len(data) - 9)]
        assert "not valid JSON" in notes[0]
    deep = f"[{json.dumps(talk('one'))}, {'[' * 100_000}"
    found, notes = read(deep.encode())
    assert [one.title for one in found] == ["one"] and "nested too deeply" in notes[0]
    found, notes = read(data.replace(b"two", b"t\xffo"))
    assert len(found) == 3 and "replaced: 1" in notes[0]
    for broken in (b"", b"[", b"\xff\xfe", b"PK\x03\x04 no zip", b"[[[", b"x" * 99, b"\0" * 99):
        with pytest.raises(UsageError):
            read(broken)


def test_numbers_of_any_length_are_no_error() -> None:
    value = json.dumps({**talk("T"), "create_time": 7}).replace("7", "9" * 5000)
    (found,), _ = read(value.encode())
    assert found.title == "T" and found.created < 1e11


def zipped(**files: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def test_a_zip_as_the_service_exports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (json.dumps([talk(title), EMPTY]).encode() for title in ("one", "two"))
    found, notes = read(
        zipped(**{"chat.html": b"<html>", "user.json": b"{}", "conversations.json": one})
    )
    assert [each.title for each in found] == ["one"]
    assert notes[0].startswith("f.json: conversations.json[1]: ")
    many = {"x/conversations-001.json": two, "x/conversations-000.json": one, "a.json": b"[]"}
    assert [each.title for each in read(zipped(**many))[0]] == ["one", "two"]
    with pytest.raises(UsageError, match=r"has no conversations\.json"):
        read(zipped(**{"chat.html": b"", "../conversations.json.exe": one}))
    damaged = bytearray(zipped(**{"conversations.json": two * 50}))
    damaged[80] ^= 255
    with pytest.raises(UsageError, match="cannot be read"):
        read(bytes(damaged))
    monkeypatch.setattr(importer, "MAX_BYTES", 1000)
    with pytest.raises(UsageError, match="is larger than"):
        read(zipped(**{"conversations.json": b" " * 1001}))


@pytest.fixture
def run(program: Program, tmp_path: Path) -> Any:
    def import_files(*files: str, stdin: bytes = b"") -> Any:
        import subprocess
        import sys

        return subprocess.run(
            [sys.executable, "-m", "swiftchat.chat", "sessions", "import", *files],
            capture_output=True,
            input=stdin,
            cwd=tmp_path,
        )

    return import_files


def titles() -> list[str]:
    with SessionStore(sessions_path(), pytest.fail) as store:
        return [row["title"] for row in store.recent()]


def test_several_files_of_which_some_cannot_be_read(run: Any, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps([talk("one"), EMPTY]))
    (tmp_path / "two.zip").write_bytes(
        zipped(**{"conversations.json": json.dumps([talk("two")]).encode()})
    )
    (tmp_path / "bad.json").write_text("{}")
    done = run(
        "one.json",
        "none.json",
        "bad.json",
        "two.zip",
        "-",
        stdin=json.dumps(talk("three")).encode(),
    )
    assert done.returncode == 8
    assert [line.partition("  ")[2] for line in done.stdout.decode().splitlines()] == [
        "one",
        "two",
        "three",
    ]
    errors = done.stderr.decode().splitlines()
    assert [line for line in errors if line.startswith("warning")] == [
        "warning: left out: one.json[1]: no message of a user or an assistant"
        " in the conversation 'nothing in it'"
    ]
    assert len([line for line in errors if line.startswith("error: ")]) == 2
    assert set(titles()) == {"one", "two", "three"}


def test_one_file_that_cannot_be_imported(run: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(json.dumps([EMPTY]))
    assert_error(run("bad.json"), 2, "bad.json[0]")
    assert_error(run("none.json"), 8, "none.json")
    assert_error(run("."), 2, "is a folder")
    assert titles() == []


def test_a_setting_that_is_invalid_does_not_stop_the_import(run: Any, tmp_path: Path) -> None:
    settings = {"temperature": "hot", "seed": 5, "top_k": True, "connect": "evil:1"}
    value = {"swiftchat": 1, "settings": settings, "messages": [{"role": "user", "content": "q"}]}
    (tmp_path / "x.json").write_text(json.dumps(value))
    done = run("x.json")
    assert done.returncode == 0 and done.stderr.count(b"a setting of 'q'") == 2
    with SessionStore(sessions_path(), pytest.fail) as store:
        assert store.load(store.recent(1)[0]["id"]).settings == {"seed": 5}


def test_many_notes_are_cut(run: Any, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps([talk("one"), *[copy.copy(EMPTY)] * 99]))
    done = run("x.json")
    assert done.returncode == 0 and done.stderr.count(b"\n") == 21
    assert done.stderr.decode().splitlines()[-1] == "warning: left out: 79 more"
