"""The multi-token prediction layer that ships with a model, behind its last layer.

DeepSeek-AI, 2024 (arXiv:2412.19437).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from swiftchat.errors import BadModelFile, UsageError
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.tensors import tensor_name
from swiftchat.weights.formats.tensor_info import TensorInfo
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.quantization.stored_tensor import Floats, as_float32

__all__ = ["MTP", "MtpFiles"]

# What `--draft` is for the model's own layer.
MTP = "mtp"

EMBEDDING_NORM, HIDDEN_NORM, PROJECTION = "enorm.weight", "hnorm.weight", "eh_proj.weight"
# The layer's own tensors outside attention and MLP, by the canonical names in a model of one layer.
_OWN = {
    "embed": "embed_tokens.weight",
    "final_norm": "shared_head.norm.weight",
    "lm_head": "shared_head.head.weight",
}


@dataclass(frozen=True)
class MtpFiles:
    """The layer as a model of one layer, and the checked tensors of that model.

    `prefix` precedes the names of the other tensors, which join embeddings and hidden states. Where
    the layer has no embeddings or LM head of its own, those of the model are used.
    """

    config: ModelConfig
    checkpoint: Checkpoint
    prefix: str

    @classmethod
    def open(
        cls, model: Checkpoint, config: ModelConfig, settings: Mapping[str, Any] | None
    ) -> Self:
        """Check the layer's tensors; `settings` are those of a quantized model.

        Raises `UsageError` for a model without such a layer, `BadModelFile` as `Checkpoint.check`.
        """
        if config.norm != "rms" or config.norm_unit_offset:
            raise UsageError(
                f"{config.architecture} has no multi-token prediction layer of a known form",
                "leave out --draft mtp",
            )
        one = _one_layer(config)
        first = tensor_name(config, "attn_norm", 0).partition("0.")[0]
        prefix = f"{first}{config.num_layers}."
        if f"{prefix}{PROJECTION}" not in model.tensors:
            raise UsageError(
                f"{model.path} has no multi-token prediction layer ({prefix}{PROJECTION})",
                "leave out --draft mtp, or choose a draft model",
            )
        tensors = _renamed(model.tensors, config, one, first, prefix)
        checkpoint = Checkpoint(model.path, tensors)
        if settings is None:
            checkpoint.check(one)
        else:
            checkpoint.check_quantized(one, settings)
        width = config.hidden_size
        shapes = {
            EMBEDDING_NORM: (width,),
            HIDDEN_NORM: (width,),
            PROJECTION: (width, 2 * width),
        }
        for name, shape in shapes.items():
            checkpoint.require(prefix + name, shape)
        return cls(one, checkpoint, prefix)

    @property
    def num_bytes(self) -> int:
        """The stored bytes of the layer."""
        tensors = self.checkpoint.tensors.items()
        return sum(info.nbytes for name, info in tensors if name.startswith(self.prefix))

    def read(self, name: str) -> Floats:
        """Read one of the tensors behind `prefix`; raises `BadModelFile` as `TensorFile` does."""
        full = self.prefix + name
        values = as_float32(self.checkpoint.read(full), self.checkpoint.tensors[full].dtype)
        if not np.isfinite(values).all():
            raise BadModelFile(f"{self.checkpoint.path}: tensor {full} has NaN or infinity")
        return values


def _one_layer(config: ModelConfig) -> ModelConfig:
    """Return the config of a model of this layer; all layers behind the first ones are alike."""
    none = frozenset[int]()
    return replace(
        config,
        num_layers=1,
        full_layers=none,
        unrotated_layers=none,
        dense_layers=none,
        tied_embeddings=False,
    )


def _renamed(
    tensors: Mapping[str, TensorInfo],
    config: ModelConfig,
    one: ModelConfig,
    first: str,
    prefix: str,
) -> dict[str, TensorInfo]:
    """Return the tensors under the names that they have in a model of this layer alone."""
    found = {}
    for name, info in tensors.items():
        if name.startswith(prefix):
            found[f"{first}0.{name.removeprefix(prefix)}"] = info
            found[name] = info
        elif not name.startswith(first):
            found[name] = info
    head = tensor_name(one, "lm_head")
    if config.tied_embeddings and head not in found:
        found[head] = tensors[tensor_name(config, "embed")]
    for canonical, own in _OWN.items():
        if prefix + own in tensors:
            found[tensor_name(one, canonical)] = tensors[prefix + own]
    return found
