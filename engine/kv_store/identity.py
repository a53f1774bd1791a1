"""What KV blocks on disk depend on besides tokens: the key of their folder."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.kv_store.run_file import RunLayout
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.stated import stated
from swiftchat.weights.formats.safetensors import TensorSpec
from swiftchat.weights.heads.mtp import MTP
from swiftchat.weights.heads.open import are_heads
from swiftchat.weights.model.digest import model_digest

# Of the layout of blocks and files, and of what a configuration means: a default that changes, or a
# part or field with another name, is another version.
_VERSION = "3"
_KEY_DIGITS = 32
_DTYPES: Mapping[str, str] = {
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int8": "I8",
}


@dataclass(frozen=True)
class ModelFiles:
    """The path of a model, or the name of a dummy model, and a digest of its weights."""

    name: str
    digest: str

    @classmethod
    def of(cls, path: Path, engine: EngineConfig, device: str) -> Self:
        """Read the state of the files, before the weights. Raises OSError."""
        if engine.dummy is not None:  # random numbers differ between kinds of devices
            return cls(f"dummy {engine.dummy}", f"dummy {engine.dummy} on {device}")
        return cls(str(path.resolve()), model_digest(path))


def _heads_digest(engine: EngineConfig) -> str:
    """Return a digest of prediction heads, which have a part of each block; "" without heads."""
    if engine.draft is None or not are_heads(engine.draft):
        return ""
    return engine.draft if engine.draft == MTP else model_digest(Path(engine.draft))


@dataclass(frozen=True)
class CacheIdentity:
    """The weights, data types and layout of a KV cache.

    `model` and `digest` are those of `ModelFiles`; `computed` is what keys and values depend on
    besides, as values of JSON. An adapter belongs to the digests of blocks:
    `engine.schedule.content.root_of`.
    """

    model: str
    digest: str
    dtype: str
    layout: RunLayout
    computed: Any

    @classmethod
    def of(
        cls,
        model: ModelFiles,
        engine: EngineConfig,
        config: ModelConfig,
        cache: KVCache,
        ctx_size_tokens: int,
    ) -> Self:
        """Describe an engine's cache."""
        rope = config.rope
        # The angles of longrope depend on whether the context is longer than the original one.
        is_long = rope is not None and ctx_size_tokens > rope.scaling.original_context_tokens
        is_longrope = rope is not None and rope.scaling.kind == "longrope"
        dtype = str(cache.tensors[0].dtype).removeprefix("torch.")
        shapes: list[TensorSpec] = []
        for index, tensor in enumerate(cache.tensors):
            shape = (tensor.shape[0], *tensor.shape[2:])
            name = str(tensor.dtype).removeprefix("torch.")
            shapes.append((f"kv{index}", _DTYPES[name], shape))
        return cls(
            model=model.name,
            digest=model.digest,
            dtype=dtype if engine.kv_dtype == "auto" else engine.kv_dtype,
            layout=RunLayout(cache.block_size, tuple(shapes)),
            computed={
                "config": stated(config),
                "dtype": engine.dtype,
                "long_angles": is_longrope and is_long,
                "heads": _heads_digest(engine),
            },
        )

    @property
    def key(self) -> str:
        """The name of the folder of this cache's files; later versions of the program find it."""
        parts = {
            "version": _VERSION,
            "digest": self.digest,
            "dtype": self.dtype,
            "layout": asdict(self.layout),
            "computed": self.computed,
        }
        text = json.dumps(parts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]

    @property
    def about(self) -> dict[str, str]:
        """Metadata of each file."""
        return {
            "format": f"swiftchat KV {_VERSION}",
            "key": self.key,
            "model": self.model,
            "model_digest": self.digest,
            "dtype": self.dtype,
        }
