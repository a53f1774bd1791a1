"""LoRA adapters in GGUF files, as llama.cpp's convert_lora_to_gguf.py writes them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.adapters.adapter import Adapter, LowRank, Read
from swiftchat.weights.adapters.files import OTHER_BASE
from swiftchat.weights.adapters.modules import model_tensors
from swiftchat.weights.adapters.peft import is_number
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.formats.arrays import Floats
from swiftchat.weights.formats.ggml_dequantize import BLOCK_TYPES, dequantize
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.gguf.architectures import gguf_architecture
from swiftchat.weights.gguf.gguf_architecture import GgufArchitecture
from swiftchat.weights.gguf.tensor_names import TENSORS
from swiftchat.weights.gguf.tensors import row_order

_ENDINGS = (".lora_a", ".lora_b")


def is_gguf_adapter(file: GgufFile) -> bool:
    return file.metadata.get("general.type") == "adapter"


def gguf_adapter(path: Path, config: ModelConfig) -> Adapter:
    """Return the adapter in a GGUF file for the model of `config`.

    Raises `BadModelFile` if it is no LoRA adapter, or does not fit the model.
    """
    file = GgufFile.open(path)
    kind = file.metadata.get("adapter.type")
    if not is_gguf_adapter(file) or kind != "lora":
        raise BadModelFile(
            f"{path} is not a LoRA adapter: general.type is "
            f"{str(file.metadata.get('general.type'))[:40]!r}, adapter.type {str(kind)[:40]!r}",
            "use -m for a model",
        )
    architecture = gguf_architecture(file)[0]
    alpha = file.metadata.get("adapter.lora.alpha")
    if not is_number(alpha):
        raise BadModelFile(f"{path}: adapter.lora.alpha: expected a number, found {alpha!r:.40}")
    unknown = next((name for name in file.tensors if not name.endswith(_ENDINGS)), None)
    if unknown is not None:
        raise BadModelFile(f"{path}: tensor {unknown[:200]} is of an unknown kind")
    names = {name.rpartition(".")[0] for name in file.tensors}
    places = _places(architecture, config)
    changes = []
    for name in sorted(names):
        if name not in places:
            raise BadModelFile(f"{path}: tensor {name[:200]}: not in this model", OTHER_BASE)
        changes.append(_change(file, name, places[name], architecture, config, float(alpha)))
    if not changes:
        raise BadModelFile(f"{path} has no tensors of an adapter")
    return Adapter(path=path, kind="LoRA", low_rank=tuple(changes), files=(path,))


def _places(architecture: GgufArchitecture, config: ModelConfig) -> dict[str, str]:
    """Return the Hugging Face name of each matrix by its name in GGUF files."""
    return {
        architecture.tensor_name(config, canonical).format(i=layer): name
        for name, ((canonical, layer, index), shape) in model_tensors(config).items()
        if index is None and len(shape) == 2 and canonical in TENSORS
    }


def _change(
    file: GgufFile,
    name: str,
    tensor: str,
    architecture: GgufArchitecture,
    config: ModelConfig,
    alpha: float,
) -> LowRank:
    key, shape = model_tensors(config)[tensor]
    if key[0] in ARCHITECTURES[config.architecture].transposed:
        shape = shape[::-1]
    for end in _ENDINGS:
        found = file.tensors.get(name + end)
        if found is None or len(found.shape) != 2:
            raise BadModelFile(f"{file.path}: tensor {name}{end}: expected a matrix")
        if found.type_name not in BLOCK_TYPES:
            raise BadModelFile(f"{file.path}: tensor {name}{end}: type {found.type_name}")
    if key[0] == "embed":  # A is looked up, so its rows are the vocabulary's
        rank = file.tensors[f"{name}.lora_a"].shape[1]
        a = _reader(file, f"{name}.lora_a", (shape[0], rank), lambda v: np.ascontiguousarray(v.T))
        b = _reader(file, f"{name}.lora_b", (shape[1], rank), lambda v: v)
        return LowRank(key, tensor, rank, alpha / rank, a, b)
    rank = file.tensors[f"{name}.lora_a"].shape[0]
    order = row_order(architecture, config, key[0], shape[0])
    a = _reader(file, f"{name}.lora_a", (rank, shape[1]), lambda v: v)
    b = _reader(file, f"{name}.lora_b", (shape[0], rank), lambda v: v[np.asarray(order)])
    return LowRank(key, tensor, rank, alpha / rank, a, b)


def _reader(
    file: GgufFile, name: str, shape: tuple[int, ...], change: Callable[[Floats], Floats]
) -> Read:
    found = file.tensors[name]
    if found.shape != shape:
        raise BadModelFile(
            f"{file.path}: tensor {name}: expected {list(shape)}, found {list(found.shape)}",
            OTHER_BASE,
        )

    def read() -> Floats:
        values = dequantize(file.rows(found), found.type_name).reshape(shape)
        if not np.isfinite(values).all():
            raise BadModelFile(f"{file.path}: tensor {name}: expected finite numbers")
        return change(values)

    return read
