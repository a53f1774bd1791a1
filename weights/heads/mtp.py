"""The multi-token prediction layer that ships with a model.

DeepSeek-AI, 2024 (arXiv:2412.19437). It is behind the last layer, or with Qwen beside the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from swiftchat.errors import BadModelFile, UsageError
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.parts.mixers import GatedDelta
from swiftchat.weights.architectures.tensors import tensor_name
from swiftchat.weights.formats.arrays import Floats
from swiftchat.weights.formats.tensor_info import TensorInfo
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.quantization.stored_tensor import as_float32

# What `--draft` is for the model's own layer.
MTP = "mtp"


@dataclass(frozen=True)
class _Form:
    """Names of the layer's tensors: `prefix` precedes all of them, `layer` those of the layer.

    After the prefix come the norms and the projection that join embeddings and hidden states, and
    `own` tensors outside attention and MLP by their canonical names in a model of one layer.
    """

    prefix: str
    layer: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    own: Mapping[str, str]


def _behind(prefix: str) -> _Form:
    """Return the form of DeepSeek and GLM: the layer has the number after the last one's."""
    own = {
        "embed": "embed_tokens.weight",
        "final_norm": "shared_head.norm.weight",
        "lm_head": "shared_head.head.weight",
    }
    return _Form(prefix, prefix, "enorm.weight", "hnorm.weight", "eh_proj.weight", own)


# The form of Qwen3-Next and Qwen3.5.
_BESIDE = _Form(
    prefix="mtp.",
    layer="mtp.layers.0.",
    embedding_norm="pre_fc_norm_embedding.weight",
    hidden_norm="pre_fc_norm_hidden.weight",
    projection="fc.weight",
    own={"final_norm": "norm.weight"},
)


@dataclass(frozen=True)
class MtpFiles:
    """The layer as a model of one layer, and the checked tensors of that model.

    `form` names the other tensors, which join embeddings and hidden states. Where the layer has no
    embeddings or LM head of its own, those of the model are used.
    """

    config: ModelConfig
    checkpoint: Checkpoint
    form: _Form

    @classmethod
    def open(
        cls, model: Checkpoint, config: ModelConfig, settings: Mapping[str, Any] | None
    ) -> Self:
        """Check the layer's tensors; `settings` are those of a quantized model.

        Raises `UsageError` for a model without such a layer, `BadModelFile` as `Checkpoint.check`.
        """
        is_beside = isinstance(config.mixer, GatedDelta)
        if config.norm.kind != "rms" or (config.norm.unit_offset and not is_beside):
            raise UsageError(
                f"{config.architecture} has no multi-token prediction layer of a known form",
                "leave out --draft mtp",
            )
        one = _one_layer(config)
        first = tensor_name(config, "attn_norm", 0).partition("0.")[0]
        form = _BESIDE if is_beside else _behind(f"{first}{config.num_layers}.")
        if f"{form.prefix}{form.projection}" not in model.tensors:
            raise UsageError(
                f"{model.path} has no multi-token prediction layer "
                f"({form.prefix}{form.projection})",
                "leave out --draft mtp, or choose a draft model",
            )
        tensors = _renamed(model.tensors, config, one, first, form)
        checkpoint = Checkpoint(model.path, tensors)
        if settings is None:
            checkpoint.check(one)
        else:
            checkpoint.check_quantized(one, settings)
        width = config.hidden_size
        shapes = {
            form.embedding_norm: (width,),
            form.hidden_norm: (width,),
            form.projection: (width, 2 * width),
        }
        for name, shape in shapes.items():
            checkpoint.require(form.prefix + name, shape)
        return cls(one, checkpoint, form)

    @property
    def chains_normed(self) -> bool:
        """Whether the layer continues its hidden states after its last norm, not before it."""
        return self.form is _BESIDE

    @property
    def num_bytes(self) -> int:
        """The stored bytes of the layer."""
        tensors = self.checkpoint.tensors.items()
        return sum(info.nbytes for name, info in tensors if name.startswith(self.form.prefix))

    def read(self, name: str) -> Floats:
        """Read one of the tensors that `form` names; raises `BadModelFile` as `TensorFile` does."""
        full = self.form.prefix + name
        values = as_float32(self.checkpoint.read(full), self.checkpoint.tensors[full].dtype)
        if not np.isfinite(values).all():
            raise BadModelFile(f"{self.checkpoint.path}: tensor {full} has NaN or infinity")
        return values


def _one_layer(config: ModelConfig) -> ModelConfig:
    """Return the config of a model of this layer: with attention, and experts if there are some."""
    layer = next((layer for layer in config.layers if layer.moe is not None), config.layers[-1])
    rotated = [each for each in config.attentions if each.rope is not None]
    windowed = [each for each in rotated if each.scores.window is not None]
    attention = (windowed or rotated or [config.attention])[0]
    # The layer reads each token with the hidden state before it, which the first one has not.
    attention = replace(attention, scores=replace(attention.scores, first_key=1))
    own = replace(layer, attention=attention, mixer=None, is_shortcut=False, file_layer=0)
    return replace(config, layers=(own,), head=replace(config.head, tied=False))


def _renamed(
    tensors: Mapping[str, TensorInfo],
    config: ModelConfig,
    one: ModelConfig,
    first: str,
    form: _Form,
) -> dict[str, TensorInfo]:
    """Return the tensors under the names that they have in a model of this layer alone."""
    found = {}
    for name, info in tensors.items():
        if name.startswith(form.layer):
            found[f"{first}0.{name.removeprefix(form.layer)}"] = info
        if name.startswith(form.prefix) or not name.startswith(first):
            found[name] = info
    head = tensor_name(one, "lm_head")
    if config.head.tied and head not in found:
        found[head] = tensors[tensor_name(config, "embed")]
    for canonical, own in form.own.items():
        if form.prefix + own in tensors:
            found[tensor_name(one, canonical)] = tensors[form.prefix + own]
    return found
