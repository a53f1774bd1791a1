"""Properties of a model, for `swiftchat show` and `/show info`."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from swiftchat.chat.terminal.amounts import format_bytes
from swiftchat.chat.terminal.sanitize import sanitize

if TYPE_CHECKING:
    from swiftchat.tokenizer import Tokenizer
    from swiftchat.weights.architectures.parts.model import ModelConfig
    from swiftchat.weights.model.directory import Model


def _describe_quantization(model: "Model") -> str:
    """Return the quantization method, and the types of quantized activations."""
    if model.quantization_config is None:
        return "no"
    packed = model.checkpoint().quantized.values()
    inputs = {tensor.activations.dtype for tensor in packed if tensor.activations is not None}
    also = f", activations too ({', '.join(sorted(inputs))})" if inputs else ""
    return f"{model.quantization_config.get('quant_method')}{also}"


def describe(model: "Model", tokenizer: "Tokenizer", kv_dtype: str = "auto") -> dict[str, object]:
    """Return the properties that `show` and `/show info` print."""
    from swiftchat.chat.model.memory import dequantized_note, describe_memory
    from swiftchat.chat.model.template_choice import describe_template
    from swiftchat.weights.architectures.registry import ARCHITECTURES
    from swiftchat.weights.hub.cached_models import name_at

    config = model.config
    notes = [*model.notes, *filter(None, [dequantized_note(model)])]
    model_type = ARCHITECTURES[config.architecture].model_type
    return {
        "name": name_at(model.location),
        "path": str(model.location),
        "family": config.family,
        "architecture": config.architecture,
        "parameters": model.num_parameters,
        "dtype": config.dtype,
        "quantized": _describe_quantization(model),
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "heads": describe_heads(config),
        "context_tokens": config.max_context_tokens,
        "vocabulary": tokenizer.vocab_size,
        "tokenizer": tokenizer.kind,
        "chat_template": describe_template(tokenizer, model_type),
        "license": model.license or "not stated",
        **describe_memory(model, kv_dtype),
        **({"notes": notes} if notes else {}),
    }


def describe_heads(config: "ModelConfig") -> str:
    """Return the numbers of attention heads and KV heads and their size, or those of latents."""
    latent = config.attention.latent
    if latent is None:
        shapes = config.attentions if config.has_attention else (config.attention,)
        counts = Counter((each.num_kv_heads, each.head_dim) for each in shapes)
        return "; ".join(
            f"{config.attention.num_heads} ({kv_heads} KV heads), head_dim {head_dim}"
            + (f" in {count} layers" if len(counts) > 1 else "")
            for (kv_heads, head_dim), count in counts.items()
        )
    return (
        f"{config.attention.num_heads}, head_dim {latent.head_dim}, of values {latent.value_dim}; "
        f"KV latent {latent.kv_rank} and {latent.rope_dim} for RoPE"
    )


def property_label(key: str) -> str:
    """Return the label of a property."""
    if key == "each_of_several_gpus":
        return "each GPU"
    return key.removesuffix("_bytes").replace("_bytes_", "_").replace("_", " ")


def property_text(key: str, value: object) -> str:
    """Format a property of `describe`."""
    match key, value:
        case "weights_bytes_by_dtype", dict():
            return sanitize(
                ", ".join(f"{dtype} {format_bytes(count)}" for dtype, count in value.items())
            )
        case "memory_at_context", list():
            return _at_contexts_text(value)
        case "notes", list():
            return "\n".join(map(sanitize, value))
        case "each_of_several_gpus", list():
            return "\n".join(map(_parallel_text, value))
        case "fits", list():
            return sanitize("; ".join(map(_fit_text, value)))
        case _, int():
            return format_bytes(value) if key.endswith("_bytes") else f"{value:,}"
    return sanitize(str(value))


def _at_contexts_text(rows: list[dict[str, int]]) -> str:
    return ", ".join(
        f"{format_bytes(row['bytes'])} at {row['context_tokens']:,} tokens" for row in rows
    )


def _parallel_text(row: dict[str, Any]) -> str:
    tokens, count = row["largest_context_tokens"], row["tp"] * row["pp"]
    if tokens is None:
        fit = f"needs {count} GPUs" if count > 1 else "needs a GPU"
    else:
        fit = f"up to {tokens:,} tokens here" if tokens else "too small here"
    needed = _at_contexts_text(row["memory_at_context"])
    stage = ""
    if row["pp"] > 1:
        first, end = row["layers"]
        stage = f" --pp {row['pp']}, layers {first} to {end - 1}"
    return f"--tp {row['tp']}{stage}: {format_bytes(row['weights_bytes'])} weights, {needed}; {fit}"


def _fit_text(row: dict[str, Any]) -> str:
    free, total = format_bytes(row["free_bytes"]), format_bytes(row["total_bytes"])
    tokens = row["largest_context_tokens"]
    limit = f"up to {tokens:,} tokens" if tokens else "too small"
    if (in_memory := row.get("expert_layers_in_main_memory")) is not None:
        limit = f"with the experts of {in_memory} of {row['expert_layers']} layers in main memory"
    return f"{row['name']}, {free} of {total} free: {limit}"
