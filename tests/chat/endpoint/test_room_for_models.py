"""Which model leaves for another one, with scripted engines on an event loop of the test."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swiftchat.chat.endpoint import installed_models
from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.endpoint.installed_models import InstalledModels
from swiftchat.chat.options.config import ChatConfig
from swiftchat.errors import BadModelFile, DeviceError, OutOfMemory, SwiftchatError


class Scripted:
    """A pool of models that are loaded at once, unless `errors` has an error for the next load."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int = 2) -> None:
        self.events: list[str] = []
        self.errors: list[SwiftchatError] = []
        self.chats: dict[str, int] = {}
        self.may_start = threading.Event()
        self.may_start.set()
        store: Any = SimpleNamespace(stored=lambda name: [SimpleNamespace(name=name)])
        self.pool = InstalledModels(store, ChatConfig(quiet=True), room, "http://x/v1")
        monkeypatch.setattr(self.pool, "_path", Path)
        monkeypatch.setattr(self.pool, "_started", self._started)
        monkeypatch.setattr(installed_models, "fits_beside", lambda *args: True)
        monkeypatch.setattr(installed_models, "print_notice", lambda text: None)
        monkeypatch.setattr(installed_models.Model, "open", lambda path: None)
        monkeypatch.setattr(
            installed_models, "num_terminals", lambda engine: self.chats.get(engine.name, 0)
        )

    def _started(self, name: str, path: Path) -> Any:
        engine = SimpleNamespace(name=name, info=object(), has_ended=False)
        self.events.append(f"+{name}")
        assert self.may_start.wait(60)
        error = self.errors.pop(0) if self.errors else None
        return SimpleNamespace(
            name=name,
            engine=engine,
            close=lambda: self.events.append(f"-{name}"),
            wait_ready=lambda: _raise(error),
        )

    async def use(self, *names: str) -> None:
        for name in names:
            async with self.pool.use(name) as chat_model:
                assert chat_model.name == name


def _raise(error: SwiftchatError | None) -> None:
    if error is not None:
        raise error


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    return Scripted(monkeypatch)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


def test_the_least_recently_used_one_leaves(scripted: Scripted) -> None:
    asyncio.run(scripted.use("a", "b", "a", "c", "a", "b"))
    assert scripted.events == ["+a", "+b", "-b", "+c", "-c", "+b"]


def test_one_that_answers_leaves_after_that(scripted: Scripted) -> None:
    """New requests for it come after the one that waits for its room."""

    async def run() -> None:
        async with scripted.pool.use("b"):
            async with scripted.pool.use("a"):
                await scripted.use("b")  # a is the oldest now
                waiting = asyncio.create_task(scripted.use("c"))
                await until(lambda: scripted.pool._loaded["a"].is_leaving)
                again = asyncio.create_task(scripted.use("a"))
                await until(lambda: bool(scripted.pool._loading._waiters))
                assert scripted.events == ["+b", "+a"]
            await waiting
            await again

    asyncio.run(run())
    assert scripted.events == ["+b", "+a", "-a", "+c", "-c", "+a"]


def test_an_idle_one_leaves_before_one_that_answers(scripted: Scripted) -> None:
    async def run() -> None:
        async with scripted.pool.use("a"):
            await scripted.use("b", "c")

    asyncio.run(run())
    assert scripted.events == ["+a", "+b", "-b", "+c"]


def test_too_low_an_estimate_makes_others_leave(scripted: Scripted) -> None:
    async def run() -> None:
        await scripted.use("a")
        scripted.errors = [OutOfMemory("full")]
        await scripted.use("b")
        scripted.errors = [OutOfMemory("full"), OutOfMemory("full")]
        with pytest.raises(OutOfMemory):  # also alone
            await scripted.use("c")
        await scripted.use("c")

    asyncio.run(run())
    assert scripted.events == ["+a", "+b", "-b", "-a", "+b", "+c", "-c", "-b", "+c", "-c", "+c"]


@pytest.mark.parametrize("error", [DeviceError("broken"), BadModelFile("damaged")])
def test_another_error_is_that_of_the_request(scripted: Scripted, error: SwiftchatError) -> None:
    async def run() -> None:
        await scripted.use("a")
        scripted.errors = [error]
        with pytest.raises(type(error)):
            await scripted.use("b")
        await scripted.use("b", "a")

    asyncio.run(run())
    assert scripted.events == ["+a", "+b", "-b", "+b"]


def test_a_canceled_request_leaves_everything_as_it_was(scripted: Scripted) -> None:
    async def run() -> None:
        async with scripted.pool.use("a"), scripted.pool.use("b"):
            waiting = asyncio.create_task(scripted.use("c"))
            await until(lambda: any(one.is_leaving for one in scripted.pool._loaded.values()))
            later = asyncio.create_task(scripted.use("a"))  # waits: it is leaving
            await until(lambda: bool(scripted.pool._loading._waiters))
            waiting.cancel()
            await later
            assert waiting.cancelled() or await asyncio.wait([waiting])

    asyncio.run(run())
    assert scripted.events == ["+a", "+b"]


def test_an_engine_for_a_canceled_request_ends(scripted: Scripted) -> None:
    async def run() -> None:
        scripted.may_start.clear()
        waiting = asyncio.create_task(scripted.use("a"))
        await until(lambda: scripted.events == ["+a"])
        waiting.cancel()
        await asyncio.sleep(0)
        scripted.may_start.set()
        await asyncio.wait([waiting])
        assert waiting.cancelled() and scripted.events == ["+a", "-a"]
        await scripted.use("a")

    asyncio.run(run())
    assert scripted.events == ["+a", "-a", "+a"]


def test_chats_keep_their_models(scripted: Scripted) -> None:
    async def run() -> None:
        await scripted.use("a", "b")
        scripted.chats = {"a": 1}
        await scripted.use("c")
        scripted.chats = {"a": 1, "c": 2}
        with pytest.raises(ApiError, match="chats use all loaded models"):
            await scripted.use("b")
        await scripted.use("a")

    asyncio.run(run())
    assert scripted.events == ["+a", "+b", "-b", "+c"]


def test_an_ended_engine_leaves_first(scripted: Scripted) -> None:
    async def run() -> None:
        await scripted.use("a", "b")
        scripted.pool._loaded["b"].chat_model.engine.has_ended = True  # type: ignore[misc]
        await scripted.use("c")

    asyncio.run(run())
    assert scripted.events == ["+a", "+b", "-b", "+c"]
