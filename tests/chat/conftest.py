"""Fixtures: the program with the fake engine, in a pipe and in a terminal; the hub."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import fake_engine
from tests.support.fake_hub import MODEL, FakeHub, in_environment
from tests.support.open_terminals import chats
from tests.support.program import Program
from tests.support.terminal import Terminal


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(fake_engine.make_folder(tmp_path / "model"))


@pytest.fixture
def chat(program: Program) -> Iterator[Callable[..., Terminal]]:
    """Opens chats in terminals: `chat(ANSWER, …, options=(OPTION, …), columns=80)`."""
    with chats(program) as open_chat:
        yield open_chat


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """The hub of the programs that a test starts; it has one model, owner/model."""
    with in_environment(FakeHub(dict(MODEL)), monkeypatch) as hub:
        yield hub
