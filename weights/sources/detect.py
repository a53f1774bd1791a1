"""The kinds of sources a conversion reads, each told by its files and made into a plan."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.tensors import expected_tensors, tensor_name
from swiftchat.weights.files.reading import read_json
from swiftchat.weights.formats.gguf import open_gguf
from swiftchat.weights.gguf import architectures, tensors
from swiftchat.weights.gguf import config as gguf_config
from swiftchat.weights.gguf.tokenizer import tokenizer_files
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.model.directory import Model
from swiftchat.weights.quantization import checkpoint as quantized_checkpoint
from swiftchat.weights.sources import gguf_quantized, llama_original, megatron, openai_gpt2
from swiftchat.weights.sources.merging import by_rows
from swiftchat.weights.sources.plan import GENERATION, WIRE_NAMES, Floats, Plan, json_bytes

__all__ = ["plan_of"]

_COPIED = (
    GENERATION,
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


def plan_of(source: Path, dtype: str | None, *, packed: bool = False) -> Plan:
    """What a conversion of `source` to `dtype` would write; `packed` is as for `convert`.

    `source` is a GGUF file (the first, where it is split), a Hugging Face directory, Meta's
    (`params.json`, `consolidated.*.pth`), Megatron-LM's (`mp_rank_*` below) or OpenAI's of GPT-2
    (`hparams.json`, `model.ckpt.*`). Raises `BadModelFile` when headers, configs or tables of
    tensors cannot be true.
    """
    if source.is_file():
        return _gguf(source, dtype, packed)
    if not (source / "config.json").is_file():
        if llama_original.is_meta(source):
            return llama_original.plan(source, dtype)
        if megatron.is_megatron(source):
            return megatron.plan(source, dtype)
        if openai_gpt2.is_openai_gpt2(source):
            return openai_gpt2.plan(source, dtype)
    return _directory(source, dtype)


def _gguf(source: Path, dtype: str | None, packed: bool) -> Plan:
    file = open_gguf(source)
    kept = {"F16": "float16", "F32": "float32"}
    types = {tensor.type_name for tensor in file.tensors.values() if len(tensor.shape) > 1}
    if dtype is None:
        dtype = kept.get(types.pop(), "bfloat16") if len(types) == 1 else "bfloat16"
    config_json = gguf_config.model_config_json(file, dtype)
    config = ModelConfig.from_hf(config_json)
    sources = tensors.tensor_sources(file, architectures.gguf_architecture(file)[0], config)
    as_it_is = gguf_quantized.as_they_are(file, config, sources) if packed else {}
    if as_it_is:
        config_json["quantization_config"] = gguf_quantized.SETTINGS
    vocabulary = tokenizer_files(file.metadata)
    num_tokens = len(file.metadata["tokenizer.ggml.tokens"])
    if num_tokens > config.vocab_size:
        raise BadModelFile(f"{source}: {num_tokens} tokens, but {config.vocab_size} embeddings")
    files = {
        "config.json": json_bytes(config_json),
        GENERATION: json_bytes(gguf_config.generation_config_json(file)),
        "tokenizer_config.json": json_bytes(gguf_config.tokenizer_config_json(file)),
        **vocabulary,
    }
    card = gguf_config.model_card(file)
    if card:
        files["README.md"] = card.encode()

    def values(name: str) -> Iterator[Floats]:
        return tensors.dequantized_chunks(file, sources[name])

    return Plan(
        files,
        expected_tensors(config),
        dtype,
        values,
        file.paths,
        file.release_pages,
        packed=as_it_is,
    )


def _directory(source: Path, dtype: str | None) -> Plan:
    settings = quantized_checkpoint.read_settings(source)
    if settings is not None:
        return _quantized(source, dtype, settings)
    model = Model.open(source)
    checkpoint = model.checkpoint()
    own = {wire: name for name, wire in WIRE_NAMES.items()}
    dtype = dtype or own[checkpoint.tensors[tensor_name(model.config, "embed")].dtype]
    files, sources = _small_files(source, read_json(source / "config.json"), dtype, checkpoint)

    def values(name: str) -> Iterator[Floats]:
        return by_rows([checkpoint.read(name)])

    shapes = expected_tensors(model.config)
    return Plan(files, shapes, dtype, values, sources, checkpoint.release_pages)


def _quantized(source: Path, dtype: str | None, settings: Mapping[str, Any]) -> Plan:
    config_json = read_json(source / "config.json")
    for field in quantized_checkpoint.CONFIG_FIELDS:
        config_json.pop(field, None)
    config = ModelConfig.from_hf(config_json)
    checkpoint = Checkpoint.open(source)
    plain = quantized_checkpoint.model_tensors(settings, checkpoint.tensors, checkpoint.read)
    chosen = quantized_checkpoint.select_expected(plain, expected_tensors(config))
    dtype = dtype or config.dtype
    files, sources = _small_files(source, config_json, dtype, checkpoint)
    shapes = {name: tensor.shape for name, tensor in chosen.items()}
    return Plan(
        files, shapes, dtype, lambda name: chosen[name].chunks(), sources, checkpoint.release_pages
    )


def _small_files(
    source: Path, config_json: dict[str, Any], dtype: str, checkpoint: Checkpoint
) -> tuple[dict[str, bytes], list[Path]]:
    """What is copied, with a config that says `dtype`; and all files that a conversion reads."""
    # Both spellings exist; where there is none, the older one is read by every version.
    spellings = {"dtype", "torch_dtype"} & config_json.keys() or {"torch_dtype"}
    config_json |= dict.fromkeys(spellings, dtype)
    names = [*_COPIED, *(f"{_TEMPLATES}/{p.name}" for p in source.glob(f"{_TEMPLATES}/*.jinja"))]
    copied = [name for name in names if (source / name).is_file()]
    files = {name: (source / name).read_bytes() for name in copied}
    files["config.json"] = json_bytes(config_json)
    weight_files = {info.file for info in checkpoint.tensors.values()}
    return files, [source / name for name in ("config.json", *copied)] + sorted(weight_files)
