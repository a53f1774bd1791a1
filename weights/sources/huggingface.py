"""Hugging Face directories, quantized or not, as sources of a conversion."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from swiftchat.weights.architectures.multimodal import language_model
from swiftchat.weights.architectures.tensors import expected_tensors, tensor_name
from swiftchat.weights.files.reading import encode_json, read_json, read_side_file
from swiftchat.weights.formats.arrays import Floats
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.model.directory import Model
from swiftchat.weights.quantization.rounding import DTYPE_NAMES
from swiftchat.weights.quantization.settings_files import split_settings
from swiftchat.weights.sources.plan import GENERATION_CONFIG, Arrival, Plan
from swiftchat.weights.sources.sharded import chunks_of_rows

_COPIED = (
    GENERATION_CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "tekken.json",
    "tokenizer.model",
    "tiktoken.model",
    "spiece.model",
    "ice_text.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "README.md",
    "LICENSE",
    "LICENSE.txt",
)
_TEMPLATES = "additional_chat_templates"


def plan(source: Path, dtype: str | None, arrival: Arrival = nullcontext) -> Plan:
    """Plan the conversion of the directory `source`; a quantized model is dequantized.

    Of the weight files both ends must be there; `arrival` brings the rest of one.
    """
    model = Model.open(source)
    checkpoint = model.checkpoint()
    if dtype is None and model.quantization_config is not None:
        dtype = model.config.dtype
    dtype = dtype or DTYPE_NAMES[checkpoint.tensors[tensor_name(model.config, "embed")].dtype]
    config_json, _ = split_settings(source, read_json(source / "config.json"))
    config_json = {**language_model(config_json)}
    if model.has_separate_head:
        config_json["tie_word_embeddings"] = False
    files, sources = _small_files(source, config_json, dtype, checkpoint)

    def chunks(name: str) -> Iterator[Floats]:
        quantized = checkpoint.quantized.get(name)
        return chunks_of_rows([checkpoint.read(name)]) if quantized is None else quantized.chunks()

    @contextmanager
    def mapped(file: Path | None) -> Iterator[None]:
        with arrival(file):
            yield
            if file is not None:
                checkpoint.unmap(file)

    shapes = expected_tensors(model.config)
    return Plan(
        files,
        shapes,
        dtype,
        chunks,
        sources,
        checkpoint.release_pages,
        file_of=checkpoint.file_of,
        arrival=mapped,
    )


def _small_files(
    source: Path, config_json: dict[str, Any], dtype: str, checkpoint: Checkpoint
) -> tuple[dict[str, bytes], list[Path]]:
    """Return the small files of the destination, and all files that the conversion reads."""
    # Both spellings exist. Every version of transformers reads the older one.
    spellings = {"dtype", "torch_dtype"} & config_json.keys() or {"torch_dtype"}
    config_json |= dict.fromkeys(spellings, dtype)
    ranks = sorted(path.name for path in source.glob("*.tiktoken"))
    templates = (f"{_TEMPLATES}/{path.name}" for path in source.glob(f"{_TEMPLATES}/*.jinja"))
    names = [*_COPIED, *ranks, *templates]
    copied = [name for name in names if (source / name).is_file()]
    files = {name: read_side_file(source / name) for name in copied}
    files["config.json"] = encode_json(config_json)
    weight_files = {info.file for info in checkpoint.tensors.values()}
    return files, [source / name for name in ("config.json", *copied)] + sorted(weight_files)
