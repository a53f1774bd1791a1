"""Search ignores case in every script; the last used conversation does not depend on the clock."""

import time
import unicodedata
from pathlib import Path

import pytest

from swiftchat.chat.history import database
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.store import SessionStore, list_names, load_session, sessions_path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


def saved(store: SessionStore, text: str, title: str = "", name: str | None = None) -> Conversation:
    conversation = Conversation(title=title, name=name)
    conversation.add("user", text)
    store.save(conversation)
    return conversation


# Latin, Greek (two forms of sigma), Cyrillic, Armenian, Georgian, Cherokee, Adlam, Deseret, Osage,
# full width, and letters whose upper case has more characters.
TEXTS = (
    "Straße",
    "ŽLUŤOUČKÝ",
    "Ελλάς Οδυσσέας",
    "Привет, МИР",
    "Հայաստան",
    "საქართველო",
    "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ",
    "𞤀𞤁𞤂𞤢𞤥",
    "𐐔𐐯𐑅𐐨𐑉𐐯𐐻",
    "𐓏𐓘𐓻𐓘𐓻𐓟",
    "ＦＵＬＬ ｗｉｄｔｈ",
    "ﬁne oﬀer",
    "ŉ ǰ ΐ",
    "Ünïcödé",
    "日本語 ab",
)


@pytest.mark.parametrize("text", TEXTS)
def test_case_is_ignored_in_every_script(path: Path, text: str) -> None:
    forms = {text, text.upper(), text.lower(), text.title(), text.swapcase(), text.casefold()}
    forms |= {unicodedata.normalize(form, text) for form in ("NFC", "NFD")}
    with SessionStore(path, pytest.fail) as store:
        saved(store, f"before {text} after")
        saved(store, f"before {text.upper()} after")
        growing = saved(store, "x")
        growing.add("assistant", f"not finished: {text}", None)
        store.save(growing)
        titled = saved(store, "y", title=f"Title {text.upper()}")
        named = saved(store, "z", name=f"name-{text.lower()}")
        saved(store, "something else", title="other", name="other")
        for words in forms:
            found = store.search(words)
            assert [one.role for one in found] == ["name", "title", "assistant", "user", "user"]
            assert [one.session_id for one in found[:2]] == [named.id, titled.id]
            if text != "ŉ ǰ ΐ":  # decomposed in lower case: found, but not marked
                assert all(one.end > one.start for one in found), words
        for short in {word[:2] for word in text.split()}:  # below three characters
            assert len(store.search(short.upper())) >= 5


def test_the_match_is_marked_where_it_is(path: Path) -> None:
    with SessionStore(path, pytest.fail) as store:
        for text, words, marked in (
            ("ß und ßß: Weißbier!", "WEISSBIER", "Weißbier"),
            ("İ İ İ needle", "NEEDLE", "needle"),
            ("Οδός", "ΟΔΌΣ", "Οδός"),
            (unicodedata.normalize("NFD", "ein Café"), "CAFÉ", "Café"),
        ):
            conversation = saved(store, text)
            (found,) = store.search(words)
            assert found.excerpt[found.start : found.end] == marked
            store.remove(conversation.id)


def test_a_title_that_the_messages_contain_is_found_once(path: Path) -> None:
    with SessionStore(path, pytest.fail) as store:
        saved(store, "Where do penguins live?")
        imported = saved(store, "hello", title="All about PENGUINS")
        assert [(one.role, one.session_id == imported.id) for one in store.search("penguins")] == [
            ("title", True),
            ("user", False),
        ]
        assert store.search("penguins", 1)[0].role == "title"
        assert store.search("penguins hello") == []


def test_a_store_of_an_older_version_is_searched_the_same(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3
    from contextlib import closing

    with monkeypatch.context() as patch:
        patch.setattr(database, "_MIGRATIONS", database._MIGRATIONS[:3])
        SessionStore(path, pytest.fail).close()
    with closing(sqlite3.connect(path)) as db, db:
        for number, id_ in enumerate("ab"):
            # The clock was wrong while the first one was used.
            updated = 3e9 if id_ == "a" else 1e9
            db.execute(
                "INSERT INTO sessions VALUES (?, NULL, 't', NULL, '{}', ?, 0, ?)",
                (id_, f"m{id_}", updated),
            )
            db.execute(
                """INSERT INTO messages (number, id, session, role, content, params, created)
                VALUES (?, ?, ?, 'user', 'Straße ΠΡΆΓΑ', '{}', 0)""",
                (number + 1, f"m{id_}", id_),
            )
        db.execute("UPDATE messages SET content = CAST(X'ff' AS TEXT) WHERE id = 'mb'")
    with SessionStore(path, pytest.fail) as store:
        assert [one.session_id for one in store.search("STRASSE πράγα")] == ["a"]
        # Conversations of one question count as one-shots.
        assert [row["id"] for row in store.recent(with_one_shots=True)] == ["b", "a"]
        assert store.recent() == []


@pytest.mark.parametrize("wrong_s", [4e9, 0.0])
def test_the_last_used_conversation_after_a_wrong_clock(
    wrong_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    right_s = time.time()
    with SessionStore(sessions_path(), pytest.fail) as store:
        times = (right_s, wrong_s, right_s + 1) if wrong_s else (right_s, right_s + 1, wrong_s)
        used = []
        for second in times:
            monkeypatch.setattr(time, "time", lambda second=second: second)
            used.append(saved(store, f"at {second}").id)
        assert [row["id"] for row in store.recent()] == used[::-1]
        assert load_session(None, with_one_shots=True).id == used[-1]
        # Used again, without a new message.
        again = store.load(used[0])
        again.tip = None
        store.save(again)
        assert load_session(None, with_one_shots=True).id == used[0]
        assert next(one.session_id for one in store.search("at")) == used[0]
        assert list_names(sessions_path())[0][0] == used[0]
        store.remove(used[0])
        assert load_session(None, with_one_shots=True).id == used[-1]
        # The dates stay as they were, for `prune`.
        assert {row["updated"] for row in store.recent()} == set(times[1:])
