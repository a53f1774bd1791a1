"""What an adapter is, without its base model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swiftchat.weights.adapters.files import (
    CONFIG_FILE,
    AdapterFiles,
    adapter_directory,
    find_adapter,
    read_config,
)
from swiftchat.weights.adapters.gguf import is_gguf_adapter
from swiftchat.weights.adapters.mlx import is_mlx
from swiftchat.weights.formats.gguf import GgufFile

_MAX_SHOWN = 200


def is_adapter(path: Path) -> bool:
    """Return whether `path` is an adapter's directory or GGUF file, rather than a model."""
    if path.is_file() and path.suffix == ".gguf":
        return is_gguf_adapter(GgufFile.open(path))
    return path.is_dir() and (
        adapter_directory(path)
        or (not (path / "config.json").is_file() and any(path.glob(f"*/{CONFIG_FILE}")))
    )


def describe_adapter(path: Path) -> dict[str, Any]:
    """Return the properties of an adapter or soft prompt. Raises as `open_adapter` does."""
    found = find_adapter(path)
    if found.is_file():
        file = GgufFile.open(found)
        shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
        kind, base = "LoRA", file.metadata.get("general.base_model.0.name")
        files, modules = [found], None
    else:
        settings, tensors = read_config(found), AdapterFiles(found)
        shapes = {name: info.shape for name, info in tensors.tensors.items()}
        kind, base = _kind(settings), settings.get("base_model_name_or_path", settings.get("model"))
        files, modules = [found / CONFIG_FILE, tensors.file], settings.get("target_modules")
    properties: dict[str, Any] = {"adapter": found.name, "kind": kind, "base_model": base}
    ranks = sorted({_rank(name, shape) for name, shape in shapes.items()} - {0})
    if ranks:
        properties["ranks"] = ranks
    if modules:
        names = ", ".join(map(str, modules)) if isinstance(modules, list) else str(modules)
        properties["modules"] = names[:_MAX_SHOWN]
    properties["tensors"] = len(shapes)
    properties["stored_bytes"] = sum(file.stat().st_size for file in files)
    return properties


def _kind(settings: Mapping[str, Any]) -> str:
    if is_mlx(settings):
        return "DoRA" if settings.get("fine_tune_type") == "dora" else "LoRA"
    kind = str(settings.get("peft_type"))[:40]
    if kind == "LORA":
        return "DoRA" if settings.get("use_dora") else "LoRA"
    return kind.lower().replace("_", " ")


def _rank(name: str, shape: tuple[int, ...]) -> int:
    """Return the rank that a tensor's shape shows, 0 if it is no low-rank matrix."""
    if len(shape) != 2:
        return 0
    return min(shape) if any(part in name.lower() for part in (".lora_a", ".lora_emb")) else 0
