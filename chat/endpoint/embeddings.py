"""`POST /v1/embeddings`: embeddings of texts or token ids."""

import base64
import struct
import threading
from functools import partial
from typing import Any, Literal

from pydantic import Field

from swiftchat.chat.endpoint.answers import Answers, Post, posted
from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.endpoint.fields import OTHER_FIELDS
from swiftchat.chat.endpoint.requests import ModelRequest, refuse, texts_or_ids
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.engine.api.embed import check_prompts, embed, normalized

_MAX_INPUTS = 2048  # as in OpenAI's API


class EmbeddingsRequest(ModelRequest):
    """The fields of a request; `pooling` is our own."""

    input: str | list[str] | list[int] | list[list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(default=None, ge=1)
    pooling: Literal["mean", "last", "sum"] = "mean"

    @property
    def inputs(self) -> list[str | list[int]]:
        """The texts, or the token ids of each; raises `ApiError` for none and for too many.

        Also for fields that may change the embeddings.
        """
        OTHER_FIELDS.check(self.model_extra or {})
        found = texts_or_ids(self.input, "input")
        if not 1 <= len(found) <= _MAX_INPUTS:
            raise ApiError(400, f"input: between 1 and {_MAX_INPUTS} texts", None, "input")
        return found


class EmbeddingJob:
    """The embeddings of one request, and the engine that computes them."""

    def __init__(self, chat_model: ChatModel, body: EmbeddingsRequest) -> None:
        self._chat_model, self._body = chat_model, body
        self._is_canceled = threading.Event()

    def cancel(self) -> None:
        """End the computation after the text that is being computed."""
        self._is_canceled.set()

    async def response(self, answers: Answers) -> dict[str, Any]:
        """Compute the embeddings; return the object of the answer.

        The texts are encoded one by one, so that other requests come in between. Raises `ApiError`
        and `SwiftchatError` for inputs that have no embedding.
        """
        inputs = self._body.inputs
        param = "lora" if self._body.lora else "model"
        is_tuned = self._body.tuning(self._chat_model) is not None
        refuse(is_tuned, param, f"{param}: embeddings are those of the base model")
        prompts = [await answers.encoded(partial(_ids, self._chat_model, one)) for one in inputs]
        names = [f"input {i}" for i in range(len(prompts))]
        info = await answers.encoded(self._chat_model.wait_ready)
        check_prompts(prompts, info.ctx_size_tokens, names if len(names) > 1 else ["the input"])
        found = posted([partial(self._compute, prompts)])
        vectors = [vector async for vector in found if vector is not None]
        width, wanted = len(vectors[0]), self._body.dimensions
        rule = f"the embeddings of this model have {width} dimensions and cannot be shortened"
        refuse(wanted not in (None, width), "dimensions", rule)
        num_tokens = sum(map(len, prompts))
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": i, "embedding": self._encoded(vector)}
                for i, vector in enumerate(vectors)
            ],
            "model": self._chat_model.name,
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
        }

    def _compute(self, prompts: list[tuple[int, ...]], post: Post[list[float]]) -> None:
        """Post embeddings of length 1, as OpenAI's are; fewer than prompts if canceled."""
        for values in embed(self._chat_model.engine, prompts, self._body.pooling):
            post(normalized(values))
            if self._is_canceled.is_set():
                return

    def _encoded(self, vector: list[float]) -> list[float] | str:
        if self._body.encoding_format != "base64":
            return vector
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _ids(chat_model: ChatModel, text_or_ids: str | list[int]) -> tuple[int, ...]:
    if not isinstance(text_or_ids, str):
        return tuple(text_or_ids)
    if not text_or_ids:
        return ()  # without the control token that begins texts
    return tuple(chat_model.prompts.encode_plain(text_or_ids).ids)
