"""All installed models behind one API: loaded on demand, as many as memory holds."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.endpoint.served_models import unknown_model
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.model.fit import CONTEXT_TOKENS
from swiftchat.chat.model.memory import fits_beside
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.terminal.output import print_notice
from swiftchat.engine.api.attach import attach_or_serve, num_terminals
from swiftchat.errors import OutOfMemory
from swiftchat.weights.hub.known_models import nearest
from swiftchat.weights.model.directory import Model
from swiftchat.weights.store import Store

_LIST_HINT = "GET /v1/models lists the installed ones"


@dataclass
class _Loaded:
    """A model with an engine. While it is leaving, new requests wait until it is loaded again."""

    chat_model: ChatModel
    num_requests: int = 0
    is_leaving: bool = False
    checking: asyncio.Lock = field(default_factory=asyncio.Lock)


class InstalledModels:
    """`ServedModels` of a store, with the engine options of a config, at most `max_models` at once.

    Requests that need a model which is not loaded wait in their order: one model is loaded at a
    time. If there is no room for it, the model that was least recently used leaves, once it answers
    nothing; one that a chat is attached to stays. An engine that has ended starts again with the
    next request. `url` is shown by `swiftchat ps`. `close` ends all engines.
    """

    def __init__(self, store: Store, config: ChatConfig, max_models: int | None, url: str) -> None:
        self._store, self._config = store, config
        self._max_models, self._url = max_models, url
        self._loaded: dict[str, _Loaded] = {}  # by full name, the least recently used first
        self._loading = asyncio.Lock()
        self._request_ended = asyncio.Event()
        self._closed = threading.Event()

    def names(self) -> list[str]:
        return [model.name for model in self._store.list()]

    def full_name(self, name: str) -> str:
        if name in self._loaded:
            return name
        found = [model.name for model in self._store.stored(name)]
        if len(found) > 1:
            raise unknown_model(name, f"may be {' or '.join(found)}: use the full name")
        if not found:
            near = nearest(name, self._store.names())
            like = f" (similar: {', '.join(near)})" if near else ""
            raise unknown_model(name, f"is not installed{like}; {_LIST_HINT}")
        return found[0]

    def parent(self, name: str) -> None:
        return None

    @contextlib.asynccontextmanager
    async def use(self, name: str) -> AsyncGenerator[ChatModel]:
        full_name = await asyncio.to_thread(self.full_name, name)
        loaded = self._entered(full_name)
        if loaded is None:
            async with self._loading:
                loaded = self._entered(full_name) or await self._load(full_name)
        try:
            async with loaded.checking:  # so that an engine that has ended starts only once
                await asyncio.to_thread(loaded.chat_model.wait_ready)
            yield loaded.chat_model
        finally:
            loaded.num_requests -= 1
            self._request_ended.set()

    def wait_ended(self) -> None:
        self._closed.wait()

    def close(self) -> None:
        """End all engines; those that were attached to go on."""
        self._closed.set()
        while self._loaded:
            self._loaded.popitem()[1].chat_model.close()

    def _entered(self, full_name: str) -> _Loaded | None:
        """Count a request for a loaded model, the most recently used now; None without one."""
        loaded = self._loaded.get(full_name)
        if loaded is None or loaded.is_leaving:
            return None
        self._loaded[full_name] = self._loaded.pop(full_name)
        loaded.num_requests += 1
        return loaded

    async def _load(self, full_name: str) -> _Loaded:
        """Load a model for a request; unload others as long as there is no room for it."""
        path = await asyncio.to_thread(self._path, full_name)
        await self._make_room(path)
        while True:
            starting = asyncio.create_task(asyncio.to_thread(self._started, full_name, path))
            try:
                chat_model = await asyncio.shield(starting)
            except asyncio.CancelledError:  # the thread goes on: its engine must end
                await asyncio.to_thread((await starting).close)
                raise
            try:
                await asyncio.to_thread(chat_model.wait_ready)
            except BaseException as error:
                await asyncio.to_thread(chat_model.close)
                if not (isinstance(error, OutOfMemory) and self._loaded):
                    raise
                await self._unload_one()  # the estimate was too low
                continue
            loaded = self._loaded[full_name] = _Loaded(chat_model, 1)
            print_notice(f"{full_name} is loaded")
            return loaded

    def _path(self, full_name: str) -> Path:
        (model,) = self._store.stored(full_name)
        return self._store.resolve(str(model.path))

    def _started(self, full_name: str, path: Path) -> ChatModel:
        keep_alive_s = self._config.keep_alive
        start = partial(
            attach_or_serve, keep_alive_s=keep_alive_s, name=full_name, endpoint=self._url
        )
        config = replace(self._config, model=full_name)
        chat_model = ChatModel(path, config, start, name=full_name)
        chat_model.prepare()
        return chat_model

    async def _make_room(self, path: Path) -> None:
        """Unload models until the one at the path fits; first those whose engine has ended."""
        for name, loaded in list(self._loaded.items()):
            if loaded.chat_model.engine.has_ended and not loaded.num_requests:
                await self._unload(name)
        while self._loaded and not await asyncio.to_thread(self._has_room, path):
            await self._unload_one()

    def _has_room(self, path: Path) -> bool:
        if self._max_models is not None and len(self._loaded) >= self._max_models:
            return False
        engines = [loaded.chat_model.engine for loaded in list(self._loaded.values())]
        infos = [one.info for one in engines if one.info is not None and not one.has_ended]
        context = self._config.ctx_size or CONTEXT_TOKENS
        return not infos or fits_beside(Model.open(path), infos, self._config.kv_dtype, context)

    async def _unload_one(self) -> None:
        """Unload the model that was least recently used; if all answer, wait for its end.

        Raises `ApiError` 503 if chats are attached to all models.
        """
        engines = {name: loaded.chat_model.engine for name, loaded in self._loaded.items()}
        chats = {name: await asyncio.to_thread(num_terminals, engines[name]) for name in engines}
        free = [name for name in self._loaded if not chats.get(name)]
        if not free:
            raise ApiError(503, "there is no room: chats use all loaded models", "busy")
        idle = [name for name in free if not self._loaded[name].num_requests]
        name = (idle or free)[0]
        leaving = self._loaded[name]
        leaving.is_leaving = True
        if leaving.num_requests:
            print_notice(f"{name} leaves when it has answered")
        try:
            while leaving.num_requests:
                self._request_ended.clear()
                await self._request_ended.wait()
        except asyncio.CancelledError:
            leaving.is_leaving = False
            raise
        await self._unload(name)

    async def _unload(self, name: str) -> None:
        await asyncio.to_thread(self._loaded.pop(name).chat_model.close)
        print_notice(f"{name} is unloaded")
