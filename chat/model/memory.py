"""Memory needs of a model, and the largest context that fits the memory of this machine."""

import itertools
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import psutil

from swiftchat.engine.api.cpu_kernels import cpu_kernels
from swiftchat.engine.api.expert_placement import (
    PLACED_CONTEXT_TOKENS,
    ExpertPlacement,
    ExpertSizes,
    Room,
    place_experts,
    unplaced_reason,
)
from swiftchat.engine.api.memory_estimate import (
    RESERVED_FRACTION,
    cpu_tensor_bytes,
    cpu_weight_bytes,
    gpu_tensor_bytes,
    gpu_weight_bytes,
    kv_bytes_per_token,
    packed_schemes,
    plain_weight_bytes,
    rank_counts,
)
from swiftchat.engine.api.protocol import EngineInfo
from swiftchat.errors import OutOfMemory
from swiftchat.weights.parallel.tensor_parallel import Shard, shard_of, tp_choices

if TYPE_CHECKING:
    from swiftchat.weights.model.directory import Model

_CONTEXTS = (4096, 32768)
_MAX_RANKS = 8  # on one machine
_NVIDIA_SMI_TIMEOUT_S = 10


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of the CPU or of a GPU, in bytes."""

    name: str
    total_bytes: int
    free_bytes: int


def describe_memory(model: "Model", kv_dtype: str = "auto") -> dict[str, Any]:
    """Return the bytes of the weights in the files by dtype, and the memory at some contexts.

    The memory is that of a GPU if this machine has one, else of the CPU: weights that its kernels
    do not compute with as they are stored take more than in the files.
    """
    by_dtype: dict[str, int] = {}
    for dtype, nbytes in model.stored_tensors.values():
        by_dtype[dtype] = by_dtype.get(dtype, 0) + nbytes
    per_token = cache_bytes_per_token(model, kv_dtype)
    return {
        "weights_bytes": model.weights_bytes,
        "weights_bytes_by_dtype": dict(sorted(by_dtype.items())),
        "cache_per_token_bytes": per_token,
        "memory_at_context": _at_contexts(model, _weight_bytes_here(model), per_token),
    }


def _weight_bytes_here(model: "Model") -> int:
    _, *gpus = device_memory()
    return weight_bytes_on_gpu(model, Shard(model.config)) if gpus else weight_bytes_on_cpu(model)


def _at_contexts(model: "Model", weights_bytes: int, per_token: int) -> list[dict[str, int]]:
    longest = model.config.max_context_tokens
    contexts = [context for context in _CONTEXTS if context < longest] + [longest]
    return [
        {"context_tokens": context, "bytes": weights_bytes + context * per_token}
        for context in contexts
    ]


def cache_bytes_per_token(model: "Model", kv_dtype: str = "auto") -> int:
    """Return the bytes of the KV cache for one token, over all layers."""
    return kv_bytes_per_token(model.config, _item_bytes(model), kv_dtype)


def _item_bytes(model: "Model") -> int:
    return 4 if model.config.dtype == "float32" else 2


def weight_bytes_on_gpu(model: "Model", shard: Shard) -> int:
    """Return the bytes of a shard's weights on a GPU, quantized as far as kernels support it."""
    if model.quantized_tensors:
        schemes = packed_schemes(model.quantized_tensors)
        return gpu_weight_bytes(shard, schemes, _item_bytes(model))
    return shard.weights_bytes({name: nbytes for name, (_, nbytes) in model.stored_tensors.items()})


def weight_bytes_on_cpu(model: "Model") -> int:
    """Return about the bytes of the weights on the CPU, as the engine here computes with them.

    Raises as `cpu_kernels` does.
    """
    if not model.quantized_tensors:
        return model.weights_bytes
    shard, item_bytes = Shard(model.config), _item_bytes(model)
    if cpu_kernels().variant is None:  # torch's operators compute, with dequantized weights
        return plain_weight_bytes(shard, item_bytes)
    return cpu_weight_bytes(shard, model.quantized_tensors, item_bytes)


def dequantized_note(model: "Model") -> str | None:
    """Return why quantized weights do not stay quantized on the CPU of this machine, None if not.

    Raises as `cpu_kernels` does.
    """
    if not model.quantized_tensors or cpu_kernels().variant is not None:
        return None
    return (
        f"no CPU kernels: {cpu_kernels().reason}; on the CPU the quantized weights become "
        f"{model.config.dtype}"
    )


def context_limits(
    model: "Model", cpu: DeviceMemory, gpus: list[DeviceMemory], kv_dtype: str = "auto"
) -> list[dict[str, Any]]:
    """Return for each device the largest context that fits beside the weights, 0 for none.

    For a GPU also how many layers' experts must be in main memory, if some must. The engine's
    workspace, some hundred MB for large models, is not counted.
    """
    per_token = cache_bytes_per_token(model, kv_dtype)
    on_cpu = weight_bytes_on_cpu(model)
    on_gpu = weight_bytes_on_gpu(model, Shard(model.config)) if gpus else 0
    rows: list[dict[str, Any]] = [
        {
            **asdict(device),
            "largest_context_tokens": _largest_context(
                model, device.free_bytes, weights_bytes, per_token
            ),
        }
        for device, weights_bytes in [(cpu, on_cpu), *((gpu, on_gpu) for gpu in gpus)]
    ]
    for row, gpu in zip(rows[1:], gpus, strict=True):
        placement = _placement(model, cpu, gpu, per_token)
        if placement is not None and placement.host_layers:
            row["expert_layers"] = placement.num_layers
            row["expert_layers_in_main_memory"] = len(placement.host_layers)
    return rows


def _placement(
    model: "Model", cpu: DeviceMemory, gpu: DeviceMemory, per_token: int
) -> ExpertPlacement | None:
    """Return where a GPU's engine would have the experts; None: nowhere, or there are none."""
    moe = model.config.moe
    if moe is None or unplaced_reason(moe):
        return None
    shard, item_bytes = Shard(model.config), _item_bytes(model)
    stored, tokens = (
        model.quantized_tensors,
        min(PLACED_CONTEXT_TOKENS, model.config.max_context_tokens),
    )
    sizes = ExpertSizes.of(
        gpu_tensor_bytes(shard, packed_schemes(stored), item_bytes),
        cpu_tensor_bytes(shard, stored, item_bytes),
    )

    def fits(weights_bytes: int, num_tokens: int, free_bytes: int) -> bool:
        return weights_bytes + num_tokens * per_token <= int(free_bytes * (1 - RESERVED_FRACTION))

    try:
        return place_experts(
            sizes, Room(gpu.free_bytes, cpu.free_bytes, (tokens, tokens), fits), None
        )
    except OutOfMemory:
        return None


def fits_beside(
    model: "Model",
    loaded: Sequence[EngineInfo],
    kv_dtype: str = "auto",
    context_tokens: int | None = None,
) -> bool:
    """Return whether a model fits in the free memory beside loaded ones.

    Its context has `context_tokens`, or as many as that of the first loaded one. False for engines
    on several GPUs, because their memory is planned for one model.
    """
    first = loaded[0]
    if any(engine.tp * engine.pp > 1 for engine in loaded):
        return False
    cpu, *gpus = device_memory()
    wanted = min(context_tokens or first.ctx_size_tokens, model.config.max_context_tokens)
    # Weights that stay in mapped files do not count as memory in use.
    used_bytes = sum(e.weights_bytes + e.cache_bytes for e in loaded if e.device.startswith("cpu"))
    cpu = replace(cpu, free_bytes=min(cpu.free_bytes, cpu.total_bytes - used_bytes))
    on_cpu, *on_gpus = context_limits(model, cpu, gpus, kv_dtype)
    rows = [on_cpu] if first.device.startswith("cpu") else on_gpus
    return all(row["largest_context_tokens"] >= wanted for row in rows)


def parallel_memory(
    model: "Model",
    gpus: list[DeviceMemory],
    tp: int | None = None,
    pp: int = 1,
    kv_dtype: str = "auto",
) -> list[dict[str, Any]]:
    """Return the memory of each GPU for every possible `tp`, or for the given one, and `pp` stages.

    One row per stage. The largest context is None if this machine has too few GPUs, and 0 if they
    are too small. Raises `UsageError` if the model cannot be sharded in this way.
    """
    config = model.config
    max_ranks = max(_MAX_RANKS, len(gpus))
    choices = (
        [n for n in tp_choices(config) if n == 1 or n * pp <= max_ranks] if tp is None else [tp]
    )
    least_bytes = dict(rank_counts(choices, pp, len(gpus), lambda index: gpus[index].free_bytes))
    rows = []
    for n, stage in itertools.product(choices, range(pp)):
        shard = shard_of(config, n, 0, stage, pp)  # the largest shard
        weights_bytes = weight_bytes_on_gpu(model, shard)
        per_token = kv_bytes_per_token(shard.local_config, _item_bytes(model), kv_dtype)
        largest_context = None
        if n in least_bytes:
            largest_context = _largest_context(model, least_bytes[n], weights_bytes, per_token)
        rows.append(
            {
                "tp": n,
                "pp": pp,
                "stage": stage,
                "layers": list(shard.layers),
                "weights_bytes": weights_bytes,
                "cache_per_token_bytes": per_token,
                "memory_at_context": _at_contexts(model, weights_bytes, per_token),
                "largest_context_tokens": largest_context,
            }
        )
    return rows


def _largest_context(model: "Model", free_bytes: int, weights_bytes: int, per_token: int) -> int:
    room_bytes = int(free_bytes * (1 - RESERVED_FRACTION)) - weights_bytes
    if not per_token:  # states instead of keys and values
        return model.config.max_context_tokens if room_bytes >= 0 else 0
    return min(max(0, room_bytes // per_token), model.config.max_context_tokens)


def device_memory() -> list[DeviceMemory]:
    """Return the memory of this machine and of the NVIDIA GPUs that nvidia-smi lists."""
    memory = psutil.virtual_memory()
    return [DeviceMemory("CPU", memory.total, memory.available), *_gpus()]


def _gpus() -> list[DeviceMemory]:
    # Importing torch would take seconds. Without nvidia-smi there is no driver; `swiftchat doctor`
    # reports problems of the driver.
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
        DeviceMemory(f"GPU {index} ({name})", int(total) << 20, int(free) << 20)
        for index, name, total, free in (row for row in rows if len(row) == 4)
        if total.isdecimal() and free.isdecimal()
    ]
