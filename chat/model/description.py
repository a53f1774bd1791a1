"""Facts about a model, for `swiftchat show` and `/show info`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from swiftchat.chat.terminal.sanitize import sanitize

if TYPE_CHECKING:
    from swiftchat.tokenizer import Tokenizer
    from swiftchat.weights.model.directory import Model


def _quantized(model: "Model") -> str:
    """Who quantized the weights, and what is rounded beside them."""
    if model.quantization_config is None:
        return "no"
    packed = model.checkpoint().quantized.values()
    inputs = {tensor.activations.dtype for tensor in packed if tensor.activations is not None}
    also = f", inputs of matrices too ({', '.join(sorted(inputs))})" if inputs else ""
    return f"{model.quantization_config.get('quant_method')}{also}"


def describe(model: "Model", tokenizer: "Tokenizer", kv_dtype: str = "auto") -> dict[str, object]:
    """The facts that `show` and `/show info` print."""
    from swiftchat.chat.model.memory import memory_facts
    from swiftchat.chat.model.template_choice import template_fact
    from swiftchat.weights.architectures.registry import architecture_of

    config = model.config
    return {
        "name": _name_of(model.path),
        "path": str(model.path),
        "family": config.family,
        "architecture": config.architecture,
        "parameters": model.num_parameters,
        "dtype": config.dtype,
        "quantized": _quantized(model),
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "heads": f"{config.num_heads} ({config.num_kv_heads} for keys and values) "
        f"of {config.head_dim}",
        "context_tokens": config.max_context_tokens,
        "vocabulary": tokenizer.vocab_size,
        "tokenizer": tokenizer.kind,
        "chat_template": template_fact(tokenizer, architecture_of(config.architecture).model_type),
        "license": model.license or "not stated",
        **memory_facts(model, kv_dtype),
    }


def _name_of(path: Path) -> str:
    """A model's name from its directory; in the hub's cache that is called like the commit."""
    folder = path.parent.parent.name
    if path.parent.name == "snapshots" and folder.startswith("models--"):
        return folder.removeprefix("models--").replace("--", "/")
    return path.name


def label(key: str) -> str:
    """A fact's name for people."""
    return key.removesuffix("_bytes").replace("_bytes_", "_").replace("_", " ")


def fact_text(key: str, value: object) -> str:
    """A fact of `describe` for people."""
    match key, value:
        case "weights_bytes_by_dtype", dict():
            return sanitize(", ".join(f"{dtype} {size(count)}" for dtype, count in value.items()))
        case "memory_at_context", list():
            return _at_contexts_text(value)
        case "each_of_several_gpus", list():
            return "\n".join(map(_divided_text, value))
        case "fits", list():
            return sanitize("; ".join(map(_fit_text, value)))
        case _, int():
            return size(value) if key.endswith("_bytes") else f"{value:,}"
    return sanitize(str(value))


def _at_contexts_text(rows: list[dict[str, int]]) -> str:
    return ", ".join(f"{size(row['bytes'])} at {row['context_tokens']:,} tokens" for row in rows)


def _divided_text(row: dict[str, Any]) -> str:
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
    return f"--tp {row['tp']}{stage}: {size(row['weights_bytes'])} weights, {needed}; {fit}"


def _fit_text(row: dict[str, Any]) -> str:
    free = f"{row['name']}, {size(row['free_bytes'])} of {size(row['total_bytes'])} free"
    tokens = row["largest_context_tokens"]
    return f"{free}: {f'up to {tokens:,} tokens' if tokens else 'too small'}"


def size(num_bytes: float) -> str:
    """Bytes for people, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
