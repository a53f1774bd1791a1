"""Hugging Face directories, quantized or not, as sources of a conversion."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.multimodal import language_model
from swiftchat.weights.architectures.tensors import expected_tensors, tensor_name
from swiftchat.weights.files.reading import encode_json, read_json, read_side_file
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.model.directory import Model
from swiftchat.weights.quantization.methods import model_tensors, select_expected
from swiftchat.weights.quantization.rounding import DTYPE_NAMES
from swiftchat.weights.quantization.settings_files import CONFIG_FIELDS, read_settings
from swiftchat.weights.sources.plan import GENERATION_CONFIG, Floats, Plan
from swiftchat.weights.sources.sharded import chunks_of_rows

__all__ = ["plan"]

_COPIED = (
    GENERATION_CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "qwen.tiktoken",
    "chat_template.jinja",
    "chat_template.json",
    "README.md",
    "LICENSE",
    "LICENSE.txt",
)
_TEMPLATES = "additional_chat_templates"


def plan(source: Path, dtype: str | None) -> Plan:
    """Plan the conversion of the directory `source`; a quantized model is dequantized."""
    settings = read_settings(source)
    if settings is not None:
        return _quantized(source, dtype, settings)
    model = Model.open(source)
    checkpoint = model.checkpoint()
    dtype = dtype or DTYPE_NAMES[checkpoint.tensors[tensor_name(model.config, "embed")].dtype]
    config_json = {**language_model(read_json(source / "config.json"))}
    if model.has_separate_head:
        config_json["tie_word_embeddings"] = False
    files, sources = _small_files(source, config_json, dtype, checkpoint)

    def chunks(name: str) -> Iterator[Floats]:
        return chunks_of_rows([checkpoint.read(name)])

    shapes = expected_tensors(model.config)
    return Plan(files, shapes, dtype, chunks, sources, checkpoint.release_pages)


def _quantized(source: Path, dtype: str | None, settings: Mapping[str, Any]) -> Plan:
    config_json = read_json(source / "config.json")
    for field in CONFIG_FIELDS:
        config_json.pop(field, None)
    config = ModelConfig.from_hf(config_json)
    config_json = {**language_model(config_json)}
    checkpoint = Checkpoint.open(source)
    checkpoint.use_standard_names(config)
    stored = model_tensors(settings, checkpoint.tensors, checkpoint.read)
    tensors = select_expected(stored, expected_tensors(config))
    dtype = dtype or config.dtype
    files, sources = _small_files(source, config_json, dtype, checkpoint)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    return Plan(
        files,
        shapes,
        dtype,
        lambda name: tensors[name].chunks(),
        sources,
        checkpoint.release_pages,
    )


def _small_files(
    source: Path, config_json: dict[str, Any], dtype: str, checkpoint: Checkpoint
) -> tuple[dict[str, bytes], list[Path]]:
    """Return the small files of the destination, and all files that the conversion reads."""
    # Both spellings exist. Every version of transformers reads the older one.
    spellings = {"dtype", "torch_dtype"} & config_json.keys() or {"torch_dtype"}
    config_json |= dict.fromkeys(spellings, dtype)
    names = [*_COPIED, *(f"{_TEMPLATES}/{p.name}" for p in source.glob(f"{_TEMPLATES}/*.jinja"))]
    copied = [name for name in names if (source / name).is_file()]
    files = {name: read_side_file(source / name) for name in copied}
    files["config.json"] = encode_json(config_json)
    weight_files = {info.file for info in checkpoint.tensors.values()}
    return files, [source / name for name in ("config.json", *copied)] + sorted(weight_files)
