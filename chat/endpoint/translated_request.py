"""Requests of other protocols, each of which becomes one for a chat completion."""

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from swiftchat.chat.endpoint.body import validated
from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.endpoint.fields import check_refused
from swiftchat.chat.endpoint.requests import PARAMETER_FIELDS, ChatCompletionRequest, refuse


class StrictFields(BaseModel):
    """A part of a request, which has no other fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True)
class FieldTable:
    """Fields of a protocol, besides those that its request honors.

    Those of `refused` would change the answer, unless they have a value of `defaults`; those of
    `without_effect` do not. `names` are the protocol's names of fields of chat completions.
    """

    refused: Mapping[str, str]
    defaults: Mapping[str, tuple[Any, ...]]
    without_effect: tuple[str, ...]
    names: Mapping[str, str]


class TranslatedRequest(BaseModel):
    """The fields that the protocols have in common, and the table of the others.

    All numbers and choices of an answer may be given by our names too. Fields that are neither
    here nor in the table are refused.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    TABLE: ClassVar[FieldTable]

    model: str
    stream: bool | None = None

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """Return the fields of the chat completion; raises `ApiError`."""

    def chat_request(self) -> ChatCompletionRequest:
        """Return the request for a chat completion; raises `ApiError`."""
        others = self.model_extra or {}
        for name, value in others.items():
            if value is not None:
                check_refused(name, value, self.TABLE.refused, self.TABLE.defaults)
            is_listed = name in self.TABLE.refused or name in self.TABLE.without_effect
            is_known = is_listed or name in PARAMETER_FIELDS
            refuse(not is_known, name, f"{name} is an unknown field")
        parameters = {name: others[name] for name in PARAMETER_FIELDS & others.keys()}
        common = {"model": self.model, "stream": self.stream}
        with self.errors():
            fields = {**common, **parameters, **self.fields()}
            return validated(ChatCompletionRequest, fields)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raise errors about a chat completion in the words of the protocol."""
        try:
            yield
        except ApiError as error:
            raise error.renamed(self.TABLE.names) from error
