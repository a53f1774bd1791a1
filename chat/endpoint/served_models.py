"""The models that the API serves, and the one model of `swiftchat serve MODEL`."""

import contextlib
from collections.abc import AsyncGenerator
from typing import Protocol

from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.model.chat_model import ChatModel


class ServedModels(Protocol):
    """Models by name. `names` and `full_name` may read folders, so they run on threads."""

    def names(self) -> list[str]:
        """List the full names of the models."""

    def full_name(self, name: str) -> str:
        """Return the name that a model is listed by; raises `ApiError` 404 for an unknown one."""

    def parent(self, name: str) -> str | None:
        """Return the base model of a model by its full name; None if it is one."""

    def use(self, name: str) -> contextlib.AbstractAsyncContextManager[ChatModel]:
        """Yield a model that is ready, and keep it loaded meanwhile.

        Raises `ApiError` 404 for an unknown name, and the error of loading the model.
        """

    def wait_ended(self) -> None:
        """Wait until nothing can be served any more, on any thread."""


class OneModel:
    """The only model of a server, which ends with its engine; MODEL:ADAPTER is one with an adapter.

    Without the name of an adapter it is the base model.
    """

    def __init__(self, chat_model: ChatModel) -> None:
        self._chat_model = chat_model
        chat_model.prepare()

    def names(self) -> list[str]:
        return served_names(self._chat_model)

    def full_name(self, name: str) -> str:
        return served_name(self._chat_model, name)

    def parent(self, name: str) -> str | None:
        return None if named_adapter(self._chat_model, name) is None else self._chat_model.name

    @contextlib.asynccontextmanager
    async def use(self, name: str) -> AsyncGenerator[ChatModel]:
        self.full_name(name)
        yield self._chat_model

    def wait_ended(self) -> None:
        self._chat_model.engine.wait_ended()


def served_names(chat_model: ChatModel) -> list[str]:
    """Return the full names of a model, alone and with each of its adapters."""
    adapters = chat_model.adapters.loaded
    return [chat_model.name, *(f"{chat_model.name}:{adapter}" for adapter in adapters)]


def served_name(chat_model: ChatModel, name: str) -> str:
    """Return the full name of a model, with the adapter in MODEL:ADAPTER.

    Raises `ApiError` 404 for that of another model.
    """
    adapter = named_adapter(chat_model, name)
    if adapter is not None:
        return f"{chat_model.name}:{adapter}"
    if name not in _own_names(chat_model):
        only = f"is not served, only {', '.join(map(repr, served_names(chat_model)))}"
        raise unknown_model(name, only)
    return chat_model.name


def named_adapter(chat_model: ChatModel, name: str) -> str | None:
    """Return the adapter in MODEL:ADAPTER, None for a name of the model itself."""
    names = {
        f"{own}:{adapter}": adapter
        for own in _own_names(chat_model)
        for adapter in chat_model.adapters.loaded
    }
    return names.get(name)


def _own_names(chat_model: ChatModel) -> tuple[str | None, ...]:
    return chat_model.name, chat_model.config.model


def unknown_model(name: str, reason: str) -> ApiError:
    """Return the error of a request for a model that is not there."""
    return ApiError(404, f"the model {name!r:.200} {reason}", "model_not_found", "model")
