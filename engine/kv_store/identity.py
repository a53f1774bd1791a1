"""What KV blocks on disk depend on besides tokens: the key of their folder."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.kv_store.run_file import RunLayout
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.formats.safetensors import TensorSpec
from swiftchat.weights.heads.mtp import MTP
from swiftchat.weights.heads.open import are_heads
from swiftchat.weights.model.digest import model_digest

_VERSION = "2"  # of the layout of blocks and files
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

    `model` and `digest` are those of `ModelFiles`. An adapter belongs to the digests of blocks:
    `engine.schedule.content.root_of`.
    """

    model: str
    digest: str
    dtype: str
    layout: RunLayout
    details: str

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
            details=f"{config!r} {engine.dtype} {is_longrope and is_long} {_heads_digest(engine)}",
        )

    @property
    def key(self) -> str:
        """The name of the folder of this cache's files."""
        parts = [_VERSION, self.digest, self.dtype, repr(self.layout), self.details]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:_KEY_DIGITS]

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
