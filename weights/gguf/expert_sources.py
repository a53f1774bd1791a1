"""Where a GGUF file has tensors with all experts of a layer."""

from collections.abc import Mapping

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.formats.gguf_header import GgufTensor
from swiftchat.weights.gguf.gguf_architecture import GgufArchitecture
from swiftchat.weights.gguf.tensor_source import FlatExperts, StackedExperts


def flat_experts(
    file: GgufFile,
    architecture: GgufArchitecture,
    config: ModelConfig,
    canonical: str,
    layer: int | None,
) -> FlatExperts:
    """Return the source of a matrix that has the experts one below the other."""
    is_down, moe = canonical == "experts_down", config.moe
    assert moe is not None
    shape = (moe.expert_size, config.hidden_size)
    name = architecture.tensor_name(config, canonical.replace("experts", "expert"))
    whole = (moe.num_experts, *(shape[::-1] if is_down else shape))
    return FlatExperts((checked_tensor(file, name.format(i=layer), whole),), is_down)


def stacked_experts(
    file: GgufFile,
    architecture: GgufArchitecture,
    config: ModelConfig,
    shapes: Mapping[str, tuple[int, ...]],
    canonical: str,
    layer: int | None,
) -> StackedExperts:
    """Return the source of a tensor with all experts of a layer."""
    matrix, shape = canonical.removesuffix("_bias"), shapes[canonical]
    kinds = ("gate", "up") if matrix == "experts_gate_up" else ("down",)
    names = [architecture.tensor_name(config, f"expert_{kind}") for kind in kinds]
    merged = architecture.tensor_name(config, "expert_gate_up")
    if len(kinds) > 1 and merged.format(i=layer) in file.tensors:
        kinds, names = ("gate_up",), [merged]
    if matrix != canonical:
        names = [name.replace(".weight", ".bias") for name in names]
    part = (shape[0], shape[1] // len(kinds), *shape[2:])
    tensors = [checked_tensor(file, name.format(i=layer), part) for name in names]
    is_transposed = canonical in architecture.target.transposed
    return StackedExperts(tuple(tensors), config.activation.interleaved, is_transposed)


def checked_tensor(file: GgufFile, name: str, shape: tuple[int, ...]) -> GgufTensor:
    """Return a tensor of the file; `BadModelFile` if it is missing or has another shape."""
    tensor = file.tensors.get(name)
    if tensor is None or tensor.shape != shape:
        found = "nothing" if tensor is None else str(list(tensor.shape))
        raise BadModelFile(f"{file.path}: tensor {name}: expected {list(shape)}, found {found}")
    return tensor
