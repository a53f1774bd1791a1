"""Embeddings of pieces and questions, by a model that loads when the first text comes."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from swiftchat.chat.model.chat_model import chat_model_for
from swiftchat.chat.options.config import ChatConfig
from swiftchat.engine.api.embed import embed, normalized

if TYPE_CHECKING:
    from swiftchat.chat.model.chat_model import ChatModel

_CONTEXT_TOKENS = 2048  # longer than every piece


class Embedder:
    """Computes embeddings in 16 bits with a model of its own, which `close` ends."""

    def __init__(self, config: ChatConfig, model: str) -> None:
        self._pooling = config.knowledge_pooling or "mean"
        self._config = replace(
            ChatConfig(model=model, device=config.device, threads=config.threads),
            offline=config.offline,
            quiet=config.quiet,
            no_attach=config.no_attach,
            ctx_size=_CONTEXT_TOKENS,
        )
        self._chat_model: ChatModel | None = None

    @property
    def name(self) -> str:
        """The model and the pooling: embeddings of others cannot be compared."""
        return f"{self._config.model}, {self._pooling}"

    def __call__(self, texts: Sequence[str]) -> list[bytes]:
        """Return the embedding of each text, divided by its length, as float16.

        Of a text that is longer than the model's context the beginning counts.
        """
        import numpy as np

        if self._chat_model is None:
            self._chat_model = chat_model_for(self._config)
        model = self._chat_model
        context = model.wait_ready().ctx_size_tokens
        ids = [model.prompts.encode_plain(text).ids[:context] for text in texts]
        vectors = embed(model.engine, ids, self._pooling)
        return [np.asarray(normalized(vector), np.float16).tobytes() for vector in vectors]

    def close(self) -> None:
        """End the engine of the model."""
        if self._chat_model is not None:
            self._chat_model.close()
            self._chat_model = None
