"""How much memory a model needs, and how long a context fits into this machine's."""

import shutil
import subprocess
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from swiftchat.weights.model import Model

_CONTEXTS = (4096, 32768)
_KEEP_FREE = 0.15  # what the engine leaves alone: `engine.memory`, which needs torch
_NVIDIA_SMI_TIMEOUT_S = 10


@dataclass(frozen=True)
class Place:
    """The CPU's memory or a GPU's, in bytes."""

    name: str
    total_bytes: int
    free_bytes: int


def memory_facts(model: "Model") -> dict[str, Any]:
    """Weights by dtype, cache for each token, and both together at several contexts, in bytes."""
    by_dtype: dict[str, int] = {}
    for tensor in model.checkpoint().tensors.values():
        by_dtype[tensor.dtype] = by_dtype.get(tensor.dtype, 0) + tensor.nbytes
    per_token = cache_bytes_per_token(model)
    longest = model.config.max_context_tokens
    contexts = [context for context in _CONTEXTS if context < longest] + [longest]
    return {
        "weights_bytes": model.weights_bytes,
        "weights_bytes_by_dtype": dict(sorted(by_dtype.items())),
        "cache_per_token_bytes": per_token,
        "memory_at_context": [
            {"context_tokens": context, "bytes": model.weights_bytes + context * per_token}
            for context in contexts
        ],
    }


def cache_bytes_per_token(model: "Model") -> int:
    return model.kv_bytes_per_token(4 if model.config.dtype == "float32" else 2)


def fits(model: "Model", places: list[Place]) -> list[dict[str, Any]]:
    """For each place the longest context that fits beside the weights, 0 where they do not.

    The engine's workspace, some hundred MB for large models, is not counted.
    """
    rows = []
    for place in places:
        room_bytes = int(place.free_bytes * (1 - _KEEP_FREE)) - model.weights_bytes
        longest = max(0, room_bytes // cache_bytes_per_token(model))
        tokens = min(longest, model.config.max_context_tokens)
        rows.append({**asdict(place), "largest_context_tokens": tokens})
    return rows


def places() -> list[Place]:
    """The memory of this machine and of the NVIDIA GPUs that their driver's own tool lists."""
    memory = psutil.virtual_memory()
    return [Place("CPU", memory.total, memory.available), *_gpus()]


def _gpus() -> list[Place]:
    # torch would know too, but takes seconds to import. Without a driver there is no such tool,
    # and what is wrong with one is for `swiftchat doctor` to tell.
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = "--query-gpu=index,name,memory.total,memory.free"
    try:
        done = subprocess.run(
            [tool, query, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_NVIDIA_SMI_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode != 0:
        return []
    rows = [row.split(", ") for row in done.stdout.decode(errors="replace").splitlines()]
    return [
        Place(f"GPU {index} ({name})", int(total) << 20, int(free) << 20)
        for index, name, total, free in (row for row in rows if len(row) == 4)
        if total.isdecimal() and free.isdecimal()
    ]
