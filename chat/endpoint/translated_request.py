"""Requests of other protocols, each of which becomes one for a chat completion."""

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from swiftchat.chat.endpoint.body import validated
from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.endpoint.fields import FieldTable
from swiftchat.chat.endpoint.requests import PARAMETER_FIELDS, ChatCompletionRequest


class StrictFields(BaseModel):
    """A part of a request, which has no other fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TranslatedRequest(BaseModel):
    """The fields that the protocols have in common, and the table of those that are not honored.

    All numbers and choices of an answer may be given by our names too. `NAMES` are the protocol's
    names of fields of chat completions.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    TABLE: ClassVar[FieldTable]
    NAMES: ClassVar[Mapping[str, str]]

    model: str
    stream: bool | None = None

    @abstractmethod
    def fields(self) -> dict[str, Any]:
        """Return the fields of the chat completion; raises `ApiError`."""

    def chat_request(self) -> ChatCompletionRequest:
        """Return the request for a chat completion; raises `ApiError`."""
        others = self.model_extra or {}
        parameters = {name: others[name] for name in PARAMETER_FIELDS & others.keys()}
        self.TABLE.check({name: value for name, value in others.items() if name not in parameters})
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
            raise error.renamed(self.NAMES) from error
