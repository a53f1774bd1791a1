"""Tensor names of files that say where in a larger model the language model is."""

from collections.abc import Iterable, Mapping

from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import expected_tensors, tensor_name
from swiftchat.weights.formats.tensor_info import TensorInfo

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


class ModulePrefix:
    """How the names of an adapter's modules begin, which may be those of a multimodal model.

    `names` are those of its tensors.
    """

    def __init__(self, config: ModelConfig, names: Iterable[str]) -> None:
        self._own = ARCHITECTURES[config.architecture].prefix or "model."
        firsts = (each for name in names for each in _PREFIXES if name.startswith(each))
        self._theirs = next(firsts, self._own)

    def standard(self, name: str) -> str:
        """Return the name of a module or tensor in the language model's own class."""
        is_own = self._theirs == self._own
        return name if is_own else _renamed(name, self._theirs, self._own)

    def named(self, module: str) -> str:
        """Return the adapter's name of a module inside the layers, given its standard name."""
        is_inside = module.startswith(self._own)
        return self._theirs + module.removeprefix(self._own) if is_inside else module


def _renamed(name: str, prefix: str, own: str) -> str:
    if name.startswith(prefix):
        return own + name.removeprefix(prefix)
    for outside in _OUTSIDE:
        name = name.removeprefix(outside)
    return name
