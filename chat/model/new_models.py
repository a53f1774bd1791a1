"""What the hub has beyond the table of known models: its most downloaded ones that run here."""

import math
from collections.abc import Mapping

from swiftchat.engine.api.memory_estimate import kv_bytes_per_token
from swiftchat.errors import BadModelFile, DownloadError, ModelNotFound
from swiftchat.weights.architectures.config import class_name, read_model_config
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import canonical_tensors, shape_by_place
from swiftchat.weights.files.disk import Progress
from swiftchat.weights.files.reading import parse_json
from swiftchat.weights.hub.client import Hub, HubUnreachable
from swiftchat.weights.hub.known_models import keep_new_models, known_models
from swiftchat.weights.hub.listing import Listing

_NUM_ASKED = 60
_MAX_FILE_BYTES = 16 * 1024 * 1024
_TEMPLATES = ("chat_template.jinja", "tokenizer_config.json")


def refresh_models(hub: Hub, progress: Progress | None) -> int:
    """Keep the most downloaded models that run and that the table lacks; return their number.

    Models that cannot be read (gated, or of other formats) are left out. Raises `HubUnreachable`
    without a network, and `DownloadError` if the hub answers otherwise.
    """
    known = {
        form.source.partition(":")[0].lower()
        for model in known_models().values()
        for form in model.forms
    }
    asked = [(repo, month) for repo, month in hub.popular(_NUM_ASKED) if repo.lower() not in known]
    rows = []
    for number, (repo, month) in enumerate(asked):
        if progress:
            progress(f"asking the hub about {repo}", number, len(asked))
        try:
            rows.append(_row(hub, hub.listing(repo, None), month))
        except HubUnreachable:
            raise
        except (BadModelFile, DownloadError, ModelNotFound):
            continue
    keep_new_models(rows)
    return len(rows)


def _row(hub: Hub, listing: Listing, month: str) -> Mapping[str, str]:
    """Return a row of the table; `BadModelFile` for a model that does not run."""
    fields = _json(hub, listing, "config.json")
    config = read_model_config(fields)
    size_bytes = sum(
        file.size_bytes
        for name, file in listing.files.items()
        if name.endswith(".safetensors") and "/" not in name
    )
    if not size_bytes:
        raise BadModelFile(f"{listing.repo} has no safetensors files")
    parameters, active = _parameters(config)
    template = "".join(_text(hub, listing, name) for name in _TEMPLATES if name in listing.files)
    is_yes = {True: "yes", False: "no"}
    return {
        "name": listing.repo,
        "repository": listing.repo,
        "bits": str(round(8 * size_bytes / parameters)),
        "size_bytes": str(size_bytes),
        "architecture": class_name(fields),
        "parameters": f"{parameters / 1e9:.4g}",
        "active": f"{active / 1e9:.4g}",
        "kv_bytes": str(kv_bytes_per_token(config, 2)),
        "context": str(config.max_context_tokens),
        "tools": is_yes["tools" in template],
        "thinking": is_yes["<think" in template or "enable_thinking" in template],
        "images": is_yes["vision_config" in fields],
        "license": listing.license or "not stated",
        "date": month,
    }


def _parameters(config: ModelConfig) -> tuple[int, int]:
    """Return the number of all parameters, and of those that a token uses."""
    shape_of = shape_by_place(config)
    total = of_experts = 0
    for name, layer, index in canonical_tensors(config):
        shape = shape_of(name, layer)
        total += math.prod(shape)
        of_experts += math.prod(shape) if index is not None or len(shape) > 2 else 0
    moe = config.moe
    unused = of_experts * (1 - moe.experts_per_token / moe.num_experts) if moe else 0
    return total, total - int(unused)


def _json(hub: Hub, listing: Listing, name: str) -> dict[str, object]:
    try:
        parsed = parse_json(_text(hub, listing, name).encode())
    except (ValueError, RecursionError) as error:
        raise BadModelFile(f"{name} of {listing.repo} is not valid JSON") from error
    if not isinstance(parsed, dict):
        raise BadModelFile(f"{name} of {listing.repo} is not a JSON object")
    return parsed


def _text(hub: Hub, listing: Listing, name: str) -> str:
    file = listing.files.get(name)
    if file is None:
        raise BadModelFile(f"{listing.repo} has no {name}")
    return hub.content(listing, file, _MAX_FILE_BYTES).decode(errors="replace")
