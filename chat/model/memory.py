"""How much memory a model needs, and how long a context fits into this machine's."""

import itertools
import shutil
import subprocess
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import psutil

from swiftchat.engine.api.memory_estimate import gpu_weight_bytes, packed_schemes
from swiftchat.engine.api.params import kv_row_bytes
from swiftchat.weights.parallel.tensor_parallel import Shard, shard_of, tp_choices

if TYPE_CHECKING:
    from swiftchat.weights.model.directory import Model

_CONTEXTS = (4096, 32768)
_MOST_RANKS = 8  # of one machine
_KEEP_FREE = 0.15  # what the engine leaves alone: `engine.model.memory`, which needs torch
_NVIDIA_SMI_TIMEOUT_S = 10


@dataclass(frozen=True)
class Place:
    """The CPU's memory or a GPU's, in bytes."""

    name: str
    total_bytes: int
    free_bytes: int


def memory_facts(model: "Model", kv_dtype: str = "auto") -> dict[str, Any]:
    """Weights by dtype, cache for each token, and both together at several contexts, in bytes."""
    by_dtype: dict[str, int] = {}
    for dtype, nbytes in model.stored.values():
        by_dtype[dtype] = by_dtype.get(dtype, 0) + nbytes
    per_token = cache_bytes_per_token(model, kv_dtype)
    return {
        "weights_bytes": model.weights_bytes,
        "weights_bytes_by_dtype": dict(sorted(by_dtype.items())),
        "cache_per_token_bytes": per_token,
        "memory_at_context": _at_contexts(model, model.weights_bytes, per_token),
    }


def _at_contexts(model: "Model", weights_bytes: int, per_token: int) -> list[dict[str, int]]:
    longest = model.config.max_context_tokens
    contexts = [context for context in _CONTEXTS if context < longest] + [longest]
    return [
        {"context_tokens": context, "bytes": weights_bytes + context * per_token}
        for context in contexts
    ]


def cache_bytes_per_token(model: "Model", kv_dtype: str = "auto") -> int:
    """Bytes of keys and values one token of context keeps, over all layers."""
    config = model.config
    row_bytes = kv_row_bytes(config.head_dim, _item_bytes(model), kv_dtype)
    return 2 * config.num_layers * config.num_kv_heads * row_bytes


def _item_bytes(model: "Model") -> int:
    return 4 if model.config.dtype == "float32" else 2


def bytes_on_gpu(model: "Model", share: Shard) -> int:
    """What a rank's weights take on a GPU; quantized ones as far as they stay so."""
    if model.quantized_tensors:
        return gpu_weight_bytes(share, packed_schemes(model.quantized_tensors), _item_bytes(model))
    return share.weights_bytes({name: nbytes for name, (_, nbytes) in model.stored.items()})


def fits(
    model: "Model", cpu: Place, gpus: list[Place], kv_dtype: str = "auto"
) -> list[dict[str, Any]]:
    """For each place the longest context that fits beside the weights, 0 where they do not.

    The engine's workspace, some hundred MB for large models, is not counted.
    """
    per_token = cache_bytes_per_token(model, kv_dtype)
    on_gpu = bytes_on_gpu(model, Shard(model.config)) if gpus else 0
    return [
        {
            **asdict(place),
            "largest_context_tokens": _longest(model, place, weights_bytes, per_token),
        }
        for place, weights_bytes in [(cpu, model.weights_bytes), *((gpu, on_gpu) for gpu in gpus)]
    ]


def fits_divided(
    model: "Model", gpus: list[Place], tp: int | None = None, pp: int = 1, kv_dtype: str = "auto"
) -> list[dict[str, Any]]:
    """For each number of ranks, or `tp` alone, what each GPU holds and what fits in this machine's.

    A row for each of `pp` stages. The longest context is None where there are not so many GPUs,
    and 0 where they are too small. Raises `UsageError` when the model cannot be divided so.
    """
    config = model.config
    most = max(_MOST_RANKS, len(gpus))
    choices = [n for n in tp_choices(config) if n == 1 or n * pp <= most] if tp is None else [tp]
    roomiest = sorted(gpus, key=lambda place: -place.free_bytes)
    rows = []
    of_head = cache_bytes_per_token(model, kv_dtype) // (config.num_kv_heads * config.num_layers)
    for n, stage in itertools.product(choices, range(pp)):
        share = shard_of(config, n, 0, stage, pp)  # of which no other rank has more
        weights_bytes = bytes_on_gpu(model, share)
        per_token = of_head * share.local_config.num_kv_heads * share.local_config.num_layers
        fitting = None
        if n * pp <= len(gpus):
            fitting = _longest(model, roomiest[n * pp - 1], weights_bytes, per_token)
        rows.append(
            {
                "tp": n,
                "pp": pp,
                "stage": stage,
                "layers": list(share.layers),
                "weights_bytes": weights_bytes,
                "cache_per_token_bytes": per_token,
                "memory_at_context": _at_contexts(model, weights_bytes, per_token),
                "largest_context_tokens": fitting,
            }
        )
    return rows


def _longest(model: "Model", place: Place, weights_bytes: int, per_token: int) -> int:
    room_bytes = int(place.free_bytes * (1 - _KEEP_FREE)) - weights_bytes
    return min(max(0, room_bytes // per_token), model.config.max_context_tokens)


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
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_NVIDIA_SMI_TIMEOUT_S,
        )
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
