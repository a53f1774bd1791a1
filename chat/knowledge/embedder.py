"""Embeddings of pieces and questions, by a model that loads when the first text comes."""

from collections.abc import Sequence
from dataclasses import replace

from swiftchat.chat.model.chat_model import ChatModel, chat_model_for
from swiftchat.chat.model.find import find_model
from swiftchat.chat.options.config import ChatConfig
from swiftchat.engine.api.embed import embed, normalized
from swiftchat.weights.model.directory import Model

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

        self._chat_model = model = self._chat_model or self._loaded()
        context = model.wait_ready().ctx_size_tokens
        ids = [model.prompts.encode_plain(text).ids[:context] for text in texts]
        vectors = embed(model.engine, ids, self._pooling)
        return [np.asarray(normalized(vector), np.float16).tobytes() for vector in vectors]

    def _loaded(self) -> ChatModel:
        """Start the engine, with a context that pieces need: the model's own may be much larger."""
        config = self._config
        path = find_model(config.model, offline=config.offline, quiet=config.quiet)
        context = min(_CONTEXT_TOKENS, Model.open(path).config.longest_context_tokens)
        return chat_model_for(replace(config, ctx_size=context))

    def close(self) -> None:
        """End the engine of the model."""
        if self._chat_model is not None:
            self._chat_model.close()
            self._chat_model = None
