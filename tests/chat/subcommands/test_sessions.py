"""`swiftchat sessions`, `-c`, `--session`, `--no-save` and `--role`, with the fake engine."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from swiftchat.chat import cli
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.importer import import_conversations
from swiftchat.chat.history.store import SessionStore, load_session, sessions_path
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.history.transcript import as_json, as_markdown
from swiftchat.errors import FileSystemError, UsageError
from tests.support import fake_engine
from tests.support.in_process import Program, failure
from tests.support.roles import parse_role


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    found = Program(fake_engine.make_folder(tmp_path / "model"), monkeypatch)
    found.engine.answers = [{"text": f"Answer {number}."} for number in range(9)]
    found.engine.ctx_size_tokens = 2000
    return found


def run_sessions(*args: str) -> Any:
    result = CliRunner().invoke(cli.swiftchat, ["sessions", *args])
    assert result.exit_code == 0, result.output
    return result


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run_sessions("list", "--all", "--json").stdout)
    return found


def test_continue_and_session_options(program: Program) -> None:
    program.run("-p", "first", "-s", "Be brief.", "--temp", "0.25")
    program.run("-p", "another")
    (newest, oldest) = rows()
    assert (newest["title"], oldest["title"], oldest["num_messages"]) == ("another", "first", 2)
    program.run("--session", oldest["id"][:6], "-p", "and then?")
    assert program.engine.prompt_text().startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nfirst<|im_end|>\n"
        "<|im_start|>assistant\nAnswer 0.<|im_end|>\n<|im_start|>user\nand then?"
    )
    assert program.engine.params[-1].temperature == 0.25
    result = program.run("-c", "-p", "more", "--temp", "0.5", "-s", "")
    assert (
        "and then?" in program.engine.prompt_text() and "system" not in program.engine.prompt_text()
    )
    assert program.engine.params[-1].temperature == 0.5, "a flag overrides the session"
    assert (result.exit_code, result.stderr) == (0, "")
    assert [row["num_messages"] for row in rows()] == [6, 2]


def test_a_session_saves_its_model(program: Program, tmp_path: Path) -> None:
    program.run("-p", "x")
    other = fake_engine.make_folder(tmp_path / "other")
    result = CliRunner().invoke(cli.swiftchat, ["-c", "-p", "y", "--json"])
    assert json.loads(result.stdout)["model"]["id"] == "model"
    assert json.loads(result.stdout)["session_id"] == rows()[0]["id"]
    CliRunner().invoke(cli.swiftchat, ["-c", "-p", "z", "-m", str(other)])
    assert rows()[0]["model"] == str(other)


def test_no_save(program: Program) -> None:
    program.run("-p", "x", "--no-save")
    report = json.loads(program.run("-p", "x", "--no-save", "--json").stdout)
    program.run("-p", "x", "--no-template")
    assert report["session_id"] is None and not sessions_path().exists()
    assert failure(program, "-c", "-p", "x").exit_code == 2
    assert failure(program, "-c", "--session", "a", "-p", "x").exit_code == 2
    assert failure(program, "-c", "--no-template", "-p", "x").exit_code == 2
    program.run("-p", "kept")
    program.run("-c", "-p", "not kept", "--no-save")
    assert "kept" in program.engine.prompt_text() and rows()[0]["num_messages"] == 2


@pytest.mark.fault(17)
def test_a_partial_answer_is_saved(program: Program) -> None:
    program.engine.answers = [{"text": "Half", "error": "gone"}]
    assert failure(program, "-p", "x").exit_code == 4
    text = run_sessions("show", rows()[0]["id"]).stdout
    assert "Half\n\n*(stopped here)*" in text


@pytest.mark.fault(12, 41)
def test_an_unwritable_home_causes_a_warning(program: Program) -> None:
    sessions_path().parent.parent.mkdir(parents=True)
    sessions_path().parent.write_text("in the way")
    result = program.run("-p", "x")
    assert (result.exit_code, result.stdout) == (0, "Answer 0.\n")
    assert result.stderr.count("warning: this conversation is not saved") == 1
    result = CliRunner().invoke(cli.swiftchat, ["sessions", "list"], standalone_mode=False)
    assert result.exception is not None and getattr(result.exception, "exit_code", 0) == 8


@pytest.mark.fault(27)
def test_a_damaged_database_is_named_once_and_the_answer_saved(program: Program) -> None:
    program.run("-p", "before " * 200)
    sessions_path().write_bytes(b"no database" * 1000)
    result = program.run("-p", "y")
    assert (result.exit_code, result.stdout) == (0, "Answer 1.\n")
    (warning,) = result.stderr.splitlines()
    (aside,) = sessions_path().parent.glob("*.damaged-*")
    assert warning.startswith("warning: ") and str(aside) in warning
    (row,) = rows()
    assert "y\n\n" in run_sessions("show", row["id"]).stdout


def test_search_show_export_and_rm(program: Program, tmp_path: Path) -> None:
    program.run("-p", "Where do \x1b[31mpenguins live?")
    program.run("-p", "y")
    found = json.loads(run_sessions("search", "PENGUIN", "--json").stdout)
    assert [one["role"] for one in found] == ["user"]
    session = found[0]["session_id"]
    assert "penguins live" in run_sessions("search", "penguin").stdout
    assert "no matches" in run_sessions("search", "walrus").stderr
    assert "\x1b" not in run_sessions("list").stdout + run_sessions("show", session).stdout
    file = tmp_path / "talk.json"
    run_sessions("export", session, str(file))
    assert json.loads(file.read_text())["messages"][1]["content"] == "Answer 0."
    exists = CliRunner().invoke(
        cli.swiftchat, ["sessions", "export", session, str(file)], standalone_mode=False
    )
    assert getattr(exists.exception, "exit_code", 0) == 8
    assert "## You\n\nWhere do" in run_sessions("export", session).stdout
    asks = CliRunner().invoke(cli.swiftchat, ["sessions", "rm", session], standalone_mode=False)
    assert getattr(asks.exception, "exit_code", 0) == 2
    run_sessions("rm", "-y", session)
    assert [row["title"] for row in rows()] == ["y"]
    run_sessions("import", str(file))
    assert rows()[0]["title"].startswith("Where do") and rows()[0]["id"] != session


def imported(value: object) -> Any:
    return import_conversations(json.dumps(value).encode(), "f.json")


def test_exported_json_round_trips(program: Program) -> None:
    program.run("-p", "x", "-s", "S", "--temp", "0.5")
    with SessionStore(sessions_path(), print) as store:
        conversation = store.load(rows()[0]["id"])
    conversation.undo()
    conversation.add("user", "x2")
    (again,) = import_conversations(as_json(conversation).encode(), "f.json")
    first, second = json.loads(as_json(conversation)), json.loads(as_json(again))
    number = {m["id"]: i for i, m in enumerate(first["messages"])}
    other = {m["id"]: i for i, m in enumerate(second["messages"])}
    for one, numbers in ((first, number), (second, other)):
        one.pop("id"), one.pop("name")
        one["tip"] = numbers[one["tip"]]
        for message in one["messages"]:
            message["id"], message["parent"] = (
                numbers[message["id"]],
                numbers.get(message["parent"]),
            )
    assert first == second and first["settings"]["temperature"] == 0.5


def test_lists_of_messages_are_imported() -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url"}]},
        {"role": "assistant", "content": "hello"},
        {"role": "tool", "content": "left out"},
        {"role": "user", "content": "bye"},
    ]
    for value in (messages, {"model": "llama3", "messages": messages}, [{"messages": messages}]):
        (found,) = imported(value)
        assert [m.content for m in found.messages] == ["hi", "hello", "bye"]
        assert (found.system, found.title, found.settings) == ("S", "hi", {})
    assert imported({"model": "llama3", "messages": messages})[0].tree[1].model == "llama3"


def chatgpt_node(role: str, text: str, parent: str | None) -> dict[str, Any]:
    content = {"content_type": "text", "parts": [text]}
    return {
        "parent": parent,
        "message": {
            "author": {"role": role},
            "content": content,
            "create_time": 1.5e9,
            "metadata": {"model_slug": "gpt-x"},
        },
    }


def test_tool_calls_round_trip_through_json() -> None:
    conversation, call = Conversation(), ToolCall("add", {"a": 1})
    conversation.add("user", "q")
    conversation.add("assistant", "").tool_calls = [call]
    conversation.add_tool_result(call, "2\n```\n3")
    conversation.add("assistant", "So.")
    [again] = import_conversations(as_json(conversation).encode(), "x")
    assert [(m.role, m.content, m.tool_calls) for m in again.messages] == [
        (m.role, m.content, m.tool_calls) for m in conversation.messages
    ]
    markdown = as_markdown(conversation)
    assert "Calls `add(a=1)`" in markdown
    assert "## Result of add\n\n    2\n    ```\n    3\n" in markdown


def test_tool_calls_of_openai_messages_are_imported() -> None:
    function = {"name": "add", "arguments": '{"a": 1}'}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "tool", "tool_call_id": "unknown", "content": "3"},
        {"role": "assistant", "content": "So."},
    ]
    [found] = import_conversations(json.dumps(messages).encode(), "x")
    call = ToolCall("add", {"a": 1}, "c1")
    assert [(m.role, m.content, m.tool_calls) for m in found.messages] == [
        ("user", "q", []),
        ("assistant", "", [call]),
        ("tool", "2", [call]),
        ("assistant", "So.", []),
    ]


def test_an_imported_conversation_sets_no_option_that_is_not_saved(
    program: Program, tmp_path: Path
) -> None:
    """A file of somebody else must not start programs, read files or connect to hosts."""
    (tmp_path / "secret").write_text("a secret")
    settings = {"system_file": str(tmp_path / "secret"), "connect": "example.org:1", "seed": 5}
    value = {"swiftchat": 1, "settings": settings, "messages": [{"role": "user", "content": "q"}]}
    (tmp_path / "x.json").write_text(json.dumps(value))
    imported = run_sessions("import", str(tmp_path / "x.json"))
    result = program.run("--session", imported.stdout.split()[0], "-p", "next")
    assert (result.exit_code, result.stdout) == (0, "Answer 0.\n")
    assert "a secret" not in program.engine.prompt_text()
    assert program.engine.params[0].seed == 5


def test_chatgpt_import_keeps_branches() -> None:
    mapping = {
        "root": {"message": None, "parent": None},
        "hidden": chatgpt_node("system", "", "root"),
        "q": chatgpt_node("user", "question", "hidden"),
        "tool": chatgpt_node("tool", "looks it up", "q"),
        "a1": chatgpt_node("assistant", "one", "tool"),
        "a2": chatgpt_node("assistant", "two", "q"),
    }
    (found,) = imported(
        [{"title": "T", "create_time": 1.4e9, "mapping": mapping, "current_node": "a1"}]
    )
    assert [m.content for m in found.messages] == ["question", "one"]
    assert {leaf.content for leaf in found.branches()} == {"one", "two"}
    assert (found.title, found.created, found.tree[0].created) == ("T", 1.4e9, 1.5e9)
    assert found.tree[1].model == "gpt-x"


OWN = {"swiftchat": 1, "messages": [{"id": "a", "role": "user", "content": "x"}]}


@pytest.mark.fault(45)
@pytest.mark.parametrize(
    "value",
    [
        1,
        None,
        [],
        {},
        [1],
        "x",
        {"messages": [1]},
        {"messages": [{"role": "user", "content": 5}]},
        {"mapping": {}},
        {"mapping": {"a": {"parent": "b"}, "b": {"parent": "a"}}},
        {"swiftchat": 99, "messages": []},
        {"swiftchat": 1},
        {**OWN, "messages": [{"role": "user"}]},
        {**OWN, "messages": [{"role": "user", "content": "x", "parent": "later"}]},
        {**OWN, "messages": [{"role": "root", "content": "x"}]},
    ],
)
def test_importing_other_json_is_a_usage_error(value: object) -> None:
    with pytest.raises(UsageError, match=r"f\.json"):
        imported(value)


@pytest.mark.fault(45)
def test_hostile_files_are_rejected_or_limited() -> None:
    for data in (b"", b"\xff", b"[" * 100_000, b'{"messages": ' * 50_000):
        with pytest.raises(UsageError):
            import_conversations(data, "f.json")
    (found,) = imported({**OWN, "created": 10**400, "tip": [], "settings": [], "title": {}})
    assert found.title == "x" and found.tip is found.tree[0]


ROLE = """---
model: {model}
temperature: 0.125
top-k: 7
---

You are a pirate.
"""


def test_a_role_sets_options_and_system_prompt(program: Program, tmp_path: Path) -> None:
    from swiftchat.chat.options.user_files import roles_folder

    roles_folder().mkdir(parents=True)
    (roles_folder() / "pirate.md").write_text(ROLE.format(model=program.folder))
    result = CliRunner().invoke(cli.swiftchat, ["--role", "pirate", "-p", "x", "--top-k", "3"])
    assert result.exit_code == 0, result.output
    assert program.engine.prompt_text().startswith(
        "<|im_start|>system\nYou are a pirate.<|im_end|>"
    )
    assert (program.engine.params[0].temperature, program.engine.params[0].top_k) == (0.125, 3)
    program.run("--role", "pirate", "-s", "Or not.", "-p", "x")
    assert "system\nOr not.<" in program.engine.prompt_text()
    assert "pirate" in failure(program, "--role", "../pirate", "-p", "x").hint


@pytest.mark.fault(45)
@pytest.mark.parametrize(
    "text",
    [
        "---\ntemp: 1\n",
        "---\n- a\n---\n",
        "---\ntmp: 1\n---\n",
        "---\ntemp: [1]\n---\n",
        "---\n: :\n  - {\n---\n",
        "---\nsystem: a\n---\nb",
        "---\n!!python/object:os.system x\n---\n",
    ],
)
def test_an_invalid_role_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match=r"r\.md"):
        parse_role(text, "r.md")


def test_a_role_without_options() -> None:
    assert parse_role("Be *brief*.\n\n---\nend", "r.md").system == "Be *brief*.\n\n---\nend"
    assert parse_role("---\nsystem: S\n---\n", "r.md").system == "S"


def test_role_values_are_validated_like_flags(program: Program) -> None:
    from swiftchat.chat.options.user_files import roles_folder

    roles_folder().mkdir(parents=True)
    (roles_folder() / "hot.md").write_text("---\ntemp: hot\n---\n")
    error = failure(program, "--role", "hot", "-p", "x")
    assert error.exit_code == 2 and "hot.md: temperature: must be" in error.message


def test_failed_one_shots_are_no_conversations(program: Program) -> None:
    program.engine.answers = [{"text": "", "error": "gone"}]
    failure(program, "-p", "lost")
    failure(program, "-p", "x" * 5000)  # longer than the context
    assert rows() == []
    program.engine.answers = [{"text": "A"}, {"text": "", "error": "gone"}, {"text": "B"}]
    program.run("-p", "first")
    failure(program, "-c", "-p", "lost")
    assert [row["num_messages"] for row in rows()] == [2]
    program.run("-c", "-p", "second")
    assert [row["num_messages"] for row in rows()] == [4]
    program.engine.answers = [{"text": "Half", "error": "gone"}]
    failure(program, "-p", "kept")
    assert rows()[0]["title"] == "kept" and rows()[0]["num_messages"] == 2


def test_one_shots_are_kept_apart_from_chats(program: Program) -> None:
    program.run("-p", "once")
    listed = run_sessions()
    assert "once" not in listed.stdout and "--all" in listed.stderr
    assert "once" in run_sessions("--all").stdout
    with SessionStore(sessions_path(), print) as store:
        chat = Conversation()
        chat.add("user", "talk")
        chat.add("assistant", "A")
        store.save(chat)
    program.run("-p", "again")
    assert [row["title"] for row in json.loads(run_sessions("list", "--json").stdout)] == ["talk"]
    assert load_session(None, with_one_shots=False).id == chat.id
    program.run("-c", "-p", "and then?")  # a one-shot goes on with the last answer
    assert [row["num_messages"] for row in rows()] == [4, 2, 2]


def test_without_a_chat_the_hint_names_the_last_one_shot(program: Program) -> None:
    program.run("-p", "once")
    with pytest.raises(UsageError) as raised:
        load_session(None, with_one_shots=False)
    assert rows()[0]["id"][:8] in raised.value.hint


def test_a_conversation_whose_turns_were_taken_back_says_so(program: Program) -> None:
    program.run("-p", "once")
    with SessionStore(sessions_path(), print) as store:
        conversation = store.load(rows()[0]["id"])
        conversation.undo()
        store.save(conversation)
    assert "/branches" in run_sessions("show", conversation.id).stderr


def test_search_finds_names(program: Program) -> None:
    program.run("-p", "Why?")
    with SessionStore(sessions_path(), print) as store:
        conversation = store.load(rows()[0]["id"])
        conversation.name = "Trip to Rome"
        store.save(conversation)
    (found,) = json.loads(run_sessions("search", "rome", "trip", "--json").stdout)
    assert found["session_id"] == conversation.id and found["role"] == "name"
    assert "Trip to Rome" in run_sessions("search", "ROME").stdout
    assert json.loads(run_sessions("search", "rome", "-n", "1", "--json").stdout)
    assert "no matches" in run_sessions("search", "trip", "paris").stderr


def test_prune_removes_old_conversations_and_one_shots(program: Program) -> None:
    for text in ("old one-shot", "old talk", "new one-shot", "named"):
        program.run("-p", text)
    with SessionStore(sessions_path(), print) as store:
        by_title = {row["title"]: row["id"] for row in store.recent(with_one_shots=True)}
        named = store.load(by_title["named"])
        named.name, named.is_one_shot = "keep", False
        store.save(named)
        talk = store.load(by_title["old talk"])
        talk.is_one_shot = False
        talk.add("user", "more")
        talk.add("assistant", "B")
        store.save(talk)
    with sqlite3.connect(sessions_path()) as db:
        db.execute("UPDATE sessions SET updated = updated - 100 * 86400 WHERE title LIKE 'old %'")
    db.close()

    def titles() -> set[str]:
        return {row["name"] or row["title"] for row in rows()}

    everything = {"old one-shot", "old talk", "new one-shot", "keep"}
    shown = run_sessions("prune", "--older-than", "90d", "--dry-run").stdout
    assert "old one-shot" in shown and "old talk" in shown and "new" not in shown
    asks = CliRunner().invoke(
        cli.swiftchat, ["sessions", "prune", "--one-shots"], standalone_mode=False
    )
    assert isinstance(asks.exception, UsageError) and titles() == everything
    run_sessions("prune", "--older-than", "90d", "--one-shots", "-y")
    assert titles() == everything - {"old one-shot"}
    run_sessions("prune", "--one-shots", "-y")
    assert titles() == {"old talk", "keep"}
    run_sessions("prune", "--older-than", "90d", "-y")
    assert titles() == {"keep"}
    assert "no conversation matches" in run_sessions("prune", "--older-than", "1h", "-y").stderr
    for wrong in ((), ("--older-than", "90"), ("--older-than", "soon")):
        result = CliRunner().invoke(cli.swiftchat, ["sessions", "prune", *wrong])
        assert result.exit_code != 0, wrong


def test_export_replaces_a_file_only_with_force(program: Program, tmp_path: Path) -> None:
    program.run("-p", "x")
    file = tmp_path / "talk.md"
    file.write_text("other")
    result = CliRunner().invoke(
        cli.swiftchat, ["sessions", "export", rows()[0]["id"], str(file)], standalone_mode=False
    )
    assert isinstance(result.exception, FileSystemError) and "--force" in result.exception.hint
    assert file.read_text() == "other"
    run_sessions("export", "--force", rows()[0]["id"], str(file))
    assert "## You" in file.read_text()
