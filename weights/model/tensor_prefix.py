"""Tensor names of files that say where in a larger model the language model is."""

from collections.abc import Mapping

from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import expected_tensors, tensor_name
from swiftchat.weights.formats.tensor_info import TensorInfo

__all__ = ["with_standard_names"]

# What stands before the names of a language model in multimodal files.
_PREFIXES = (
    *("language_model.model.", "model.language_model.", "model.text_model.", "thinker.model."),
    "llm.model.",
)
# What stands before the output matrix.
_OUTSIDE = ("language_model.", "thinker.", "llm.")


def with_standard_names(
    config: ModelConfig, tensors: Mapping[str, TensorInfo]
) -> dict[str, TensorInfo]:
    """Return the tensors under the names of `config`'s architecture.

    Multimodal files have another prefix before the names of the language model, and files of a
    model without its output matrix have none.
    """
    if any(".lora_A.vision." in name for name in tensors):  # Phi-4-multimodal; text has no adapter
        tensors = {name.replace(".base_layer.", "."): info for name, info in tensors.items()}
    embed = tensor_name(config, "embed")
    own = ARCHITECTURES[config.architecture].prefix or "model."
    short = embed.removeprefix(own)
    if embed in tensors or short == embed:
        return dict(tensors)
    for prefix in _PREFIXES:
        if prefix + short in tensors:
            return {_renamed(name, prefix, own): info for name, info in tensors.items()}
    if any(name.startswith(own) for name in tensors):
        return dict(tensors)
    full_names = {name.removeprefix(own): name for name in expected_tensors(config)}
    return {full_names.get(name, name): info for name, info in tensors.items()}


def _renamed(name: str, prefix: str, own: str) -> str:
    if name.startswith(prefix):
        return own + name.removeprefix(prefix)
    for outside in _OUTSIDE:
        name = name.removeprefix(outside)
    return name
