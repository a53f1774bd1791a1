"""The store of conversations: round trips, concurrent writers, damage, full disks, kills."""

import os
import sqlite3
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.chat.history.autosave import Autosave
from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.chat.history.store import SessionStore
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.errors import FileSystemError, UsageError


class Warnings(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "store.db"


def opened(path: Path) -> SessionStore:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    return SessionStore(path, refuse)


def shape(conversation: Conversation) -> object:
    """Return all stored values of a conversation."""

    def values(message: Message) -> object:
        parent = message.parent and message.parent.id
        return (parent, {k: v for k, v in vars(message).items() if k != "parent"})

    tip = conversation.tip and conversation.tip.id
    known = {
        k: v
        for k, v in vars(conversation).items()
        if k not in ("tree", "tip", "unsaved", "last_turn")
    }
    return (known, tip, [values(message) for message in conversation.tree])


TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
MOVES = st.one_of(
    st.tuples(st.just("ask"), TEXTS),
    st.tuples(st.just("answer"), TEXTS),
    st.tuples(st.just("grow"), TEXTS),
    st.tuples(st.just("undo"), st.integers(1, 3)),
    st.tuples(st.just("pop"), st.none()),
    st.tuples(st.just("switch"), st.integers(0, 5)),
    st.tuples(st.just("save"), st.none()),
    st.tuples(st.just("reload"), st.none()),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(MOVES, max_size=25))
def test_a_conversation_equals_a_simple_model_of_it(moves: list[tuple[str, object]]) -> None:
    """The model is a set of paths of texts, and the current path."""
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder) / "s.db") as store:
        conversation = Conversation("S")
        path: tuple[str, ...] = ()
        paths: set[tuple[str, ...]] = set()
        for move, value in moves:
            if move in ("ask", "answer"):
                role = "user" if move == "ask" else "assistant"
                conversation.add(role, str(value))  # type: ignore[arg-type]
                path = (*path, f"{role}:{value}")
                paths.add(path)
            elif move == "grow" and conversation.tip and conversation.tip.id:
                grown = conversation.add("assistant", "", None)
                grown.content = f"x{value}"
                conversation.unsaved[grown] = None
                path = (*path, f"assistant:x{value}")
                paths.add(path)
            elif move == "undo":
                conversation.undo(int(str(value)))
                questions = [i for i, text in enumerate(path) if text.startswith("user:")]
                path = path[: questions[-min(int(str(value)), len(questions))]] if questions else ()
            elif move == "pop":
                conversation.pop_answer()
                path = path[:-1] if path and path[-1].startswith("assistant:") else path
            elif move == "switch" and (leaves := conversation.branches()):
                conversation.tip = leaves[int(str(value)) % len(leaves)]
                path = texts(conversation.tip)
            elif move == "save":
                store.save(conversation)
                assert not conversation.unsaved
            elif move == "reload":
                store.save(conversation)
                again = store.load(conversation.id)
                assert shape(again) == shape(conversation)
                conversation = again
            assert tuple(texts(conversation.tip)) == path
        assert {texts(message) for message in conversation.tree} == paths
        ends = {texts(leaf) for leaf in conversation.branches()}
        assert ends >= {p for p in paths if not any(o[: len(p)] == p and o != p for o in paths)}


def texts(message: Message | None) -> tuple[str, ...]:
    return tuple(f"{m.role}:{m.content}" for m in Conversation(tip=message).messages)


def test_an_unanswered_question_is_reused() -> None:
    conversation = Conversation()
    first = conversation.add("user", "why?")
    conversation.tip = None
    assert conversation.add("user", "why?") is first
    conversation.add("assistant", "so")
    conversation.undo()
    assert conversation.add("user", "why?") is not first, "that one has its answer"


def test_titles_are_the_first_words() -> None:
    conversation = Conversation()
    conversation.add(
        "user", "\n  Why is the sky   blue, and why are sunsets red, and the sea green?"
    )
    assert conversation.title == "Why is the sky blue, and why are sunsets red, and…"
    other = Conversation()
    other.add("user", "x" * 80)
    assert other.title == "x" * 50 + "…"


@pytest.mark.fault(28)
@pytest.mark.parametrize("umask", [0, 0o777])
def test_the_store_is_private_with_any_umask(path: Path, umask: int) -> None:
    if umask and os.getuid():
        pytest.skip("only root goes into a folder without permissions")
    old = os.umask(umask)
    try:
        with opened(path) as store:
            conversation = Conversation()
            conversation.add("user", "secret")
            store.save(conversation)
            files = [file for file in path.parent.iterdir() if not file.name.endswith(".lock")]
            assert len(files) == 3, "the write-ahead log and its index, too"
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def saved(store: SessionStore, *messages: str) -> Conversation:
    conversation = Conversation()
    for number, text in enumerate(messages):
        conversation.add("assistant" if number % 2 else "user", text)
    store.save(conversation)
    return conversation


@pytest.mark.fault(26)
def test_two_writers_of_one_conversation_create_branches(path: Path) -> None:
    with opened(path) as one, opened(path) as other:
        begun = saved(one, "q", "a")
        here, there = one.load(begun.id), other.load(begun.id)
        for number in range(20):
            here.add("user", f"here {number}")
            one.save(here)
            there.add("user", f"there {number}")
            other.save(there)
        both = one.load(begun.id)
        assert len(both.tree) == 42 and len(both.branches()) == 2
        ends = {leaf.content for leaf in both.branches()}
        assert ends == {"here 19", "there 19"}
        assert both.tip is not None and both.tip.content == "there 19"


def test_saving_a_removed_conversation_saves_all_of_it(path: Path) -> None:
    with opened(path) as store:
        conversation = saved(store, "q", "a")
        store.remove(conversation.id)
        with pytest.raises(UsageError):
            store.load(conversation.id)
        conversation.add("user", "still here")
        store.save(conversation)
        assert shape(store.load(conversation.id)) == shape(conversation)


def test_removed_text_is_overwritten_in_the_files(path: Path) -> None:
    with opened(path) as store:
        remaining, removed = saved(store, "keep this"), saved(store, "xylophone quartz", "zebra")
        store.remove(removed.id)
        assert store.search("xylophone") == []
        assert [one.session_id for one in store.search("keep")] == [remaining.id]
        data = b"".join(file.read_bytes() for file in path.parent.iterdir())
        assert b"xylophone" not in data and b"keep this" in data


def damage_whole(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)


def damage_inside(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)


def damage_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.fault(27)
@pytest.mark.parametrize("damage", [damage_whole, damage_inside, damage_end])
def test_a_damaged_file_is_renamed_with_a_warning(path: Path, damage: object) -> None:
    with opened(path) as store:
        conversation = saved(store, "q", "a" * 9000)
    damage(path)  # type: ignore[operator]
    bytes_before = path.read_bytes()
    warnings = Warnings()
    with SessionStore(path, warnings) as store:
        conversation.add("user", "more")
        store.save(conversation)
        assert shape(store.load(conversation.id)) == shape(conversation), "of it all is in memory"
    aside = sorted(path.parent.glob("*.damaged-*"), key=lambda file: len(file.name))
    assert len(warnings) == 1 and "was renamed" in warnings[0] and str(aside[0]) in warnings[0]
    assert aside[0].read_bytes() == bytes_before and aside[0].stat().st_mode & 0o777 == 0o600
    with opened(path) as store:
        assert len(store.recent()) == 1


@pytest.mark.fault(27)
@pytest.mark.parametrize("read", ["recent", "load", "find", "search", "remove"])
def test_damage_found_while_reading_is_handled(path: Path, read: str) -> None:
    with opened(path) as store:
        conversation = saved(store, "words " * 3000, "a" * 9000)
    warnings = Warnings()
    store = SessionStore(path, warnings)
    damage_inside(path)
    work = getattr(store, read)
    if read in ("load", "find"):
        with pytest.raises(UsageError, match="no conversation"):
            work(conversation.id)
    else:
        assert not (work() if read == "recent" else work("words"))
    assert len(warnings) == 1 and "was renamed" in warnings[0]
    store.close()


def test_a_newer_schema_raises_an_error(path: Path) -> None:
    opened(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 999")
    with pytest.raises(FileSystemError, match="newer swiftchat"):
        opened(path)


def test_an_older_schema_is_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from swiftchat.chat.history import database

    with opened(path) as store:
        conversation = saved(store, "q")
    more = (*database._MIGRATIONS, ("ALTER TABLE sessions ADD COLUMN pinned INTEGER",))
    monkeypatch.setattr(database, "_MIGRATIONS", more)
    with opened(path) as store:
        assert shape(store.load(conversation.id)) == shape(conversation)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT pinned FROM sessions").fetchall() == [(None,)]


def test_tool_calls_and_results_are_stored(path: Path) -> None:
    call = ToolCall("read", {"path": "a\nb", "depth": [1, {"x": None}]})
    with opened(path) as store:
        conversation = saved(store, "q")
        conversation.add("assistant", "").tool_calls = [call, ToolCall("list", {})]
        conversation.add_tool_result(call, "content")
        store.save(conversation)
        loaded = store.load(conversation.id)
        assert shape(loaded) == shape(conversation) and loaded.messages[-1].tool_calls == [call]
        assert store.search("content")[0].role == "tool"


@pytest.mark.fault(12)
def test_a_failing_autosave_warns_once_and_recovers(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    warnings = Warnings()
    autosave = Autosave(lambda: opened(tmp_path / "file" / "store.db"), warnings)
    conversation = Conversation()
    for text in ("one", "two"):
        conversation.add("user", text)
        autosave.save(conversation)
    assert len(warnings) == 1 and "is not saved" in warnings[0] and not autosave.is_saving
    with pytest.raises(FileSystemError) as caught:
        autosave.store.save(conversation)
    assert caught.value.exit_code == 8
    (tmp_path / "file").unlink()
    autosave.save(conversation)
    assert autosave.is_saving and len(autosave.store.load(conversation.id).tree) == 2
    autosave.finish(conversation)


@pytest.mark.fault(12)
def test_a_full_disk_keeps_saved_messages(path: Path) -> None:
    warnings = Warnings()
    store = opened(path)
    autosave = Autosave(lambda: store, warnings)
    conversation = saved(store, "q", "a")
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    conversation.add("user", "x" * 100_000)
    autosave.save(conversation)
    assert len(warnings) == 1 and "full" in warnings[0]
    assert len(store.load(conversation.id).tree) == 2
    store._db.execute("PRAGMA max_page_count = 100000")
    autosave.save(conversation)
    assert len(store.load(conversation.id).tree) == 3 and autosave.is_saving
    autosave.finish(conversation)


@pytest.mark.fault(2)
def test_a_failed_save_changes_nothing(path: Path) -> None:
    """A save writes the conversation and several messages: all of it or nothing."""
    with opened(path) as store:
        conversation = saved(store, "q")
        before = shape(store.load(conversation.id))
        store._db.execute(
            """CREATE TRIGGER refuse BEFORE INSERT ON messages WHEN new.content = 'refused'
            BEGIN SELECT RAISE(FAIL, 'refused'); END"""
        )
        conversation.add("assistant", "a")
        conversation.add("user", "refused")
        conversation.title = "changed"
        with pytest.raises(FileSystemError, match="refused"):
            store.save(conversation)
        assert shape(store.load(conversation.id)) == before
        store._db.execute("DROP TRIGGER refuse")
        store.save(conversation)
        assert shape(store.load(conversation.id)) == shape(conversation)


def test_surrogates_are_replaced(path: Path) -> None:
    with opened(path) as store:
        conversation = saved(store, "caf\udce9 \0 x")
        assert store.load(conversation.id).tree[0].content == "caf? \0 x"


def test_find_by_name_or_beginning_of_an_id(path: Path) -> None:
    with opened(path) as store:
        one, other = saved(store, "one"), saved(store, "other")
        one.name = "abc"
        store.save(one)
        assert store.find("abc") == store.find(one.id[:8].upper()) == one.id
        for wanted in ("", "%", "no such"):
            with pytest.raises(UsageError):
                store.find(wanted)
        other.name = "abc"
        with pytest.raises(UsageError, match="another conversation has the name"):
            store.save(other)
        other.name = None
        # Random ids are hexadecimal: none begins with z.
        other.id, again = "z0" + other.id, Conversation(id="z1")
        again.add("user", "x")
        store.save(other)
        store.save(again)
        with pytest.raises(UsageError, match="2 conversations begin with"):
            store.find("z")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("SKY blue", ["Why is the sky blue?"]),
        ("ky bl", ["Why is the sky blue?"]),
        ("世界", ["你好，世界"]),
        ('say "hi"', ['to say "hi" OR x']),
        ("OR", ['to say "hi" OR x']),
        ("sky red", []),
        ("", []),
    ],
)
def test_search_finds_parts_of_words_in_any_language(
    path: Path, words: str, found: list[str]
) -> None:
    with opened(path) as store:
        for text in ("Why is the sky blue?", "你好，世界", 'to say "hi" OR x'):
            saved(store, text)
        assert [one.excerpt for one in store.search(words)] == found


def test_an_excerpt_contains_the_match(path: Path) -> None:
    with opened(path) as store:
        saved(store, f"{'a ' * 100}the\nneedle{' b' * 100}")
        (found,) = store.search("NEEDLE")
        assert found.excerpt[found.start : found.end] == "needle"
        assert found.excerpt.startswith("…") and found.excerpt.endswith("…")
        assert len(found.excerpt) < 100 and "\n" not in found.excerpt


def test_search_finds_the_new_text_of_a_changed_message(path: Path) -> None:
    with opened(path) as store:
        conversation = saved(store, "q", "before")
        assert conversation.tip is not None
        conversation.tip.content = "afterwards"
        conversation.unsaved[conversation.tip] = None
        store.save(conversation)
        assert store.search("before") == [] and len(store.search("afterwards")) == 1
