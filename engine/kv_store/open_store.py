"""Open the tiers below the device that an engine can have."""

from dataclasses import dataclass
from pathlib import Path

from swiftchat.cuda.gpu import Gpu
from swiftchat.engine.api.kv_folder import KVFolder
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.kv_store.block_copies import block_bytes, copy_by
from swiftchat.engine.kv_store.block_store import BlockStore
from swiftchat.engine.kv_store.disk import Disk
from swiftchat.engine.kv_store.host_memory import HostMemory
from swiftchat.engine.kv_store.identity import CacheIdentity, ModelFiles
from swiftchat.engine.kv_store.staging import CopiedStaging, CpuStaging, Staging
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.schedule.blocks import BlockAllocator
from swiftchat.errors import FileSystemError
from swiftchat.weights.architectures.parts.model import ModelConfig


@dataclass(frozen=True)
class DeviceCache:
    """The KV cache of an engine of one rank; `gpu` is None unless our kernels compute."""

    cache: KVCache
    allocator: BlockAllocator
    gpu: Gpu | None


def open_store(
    model: ModelFiles,
    engine: EngineConfig,
    config: ModelConfig,
    ctx_size_tokens: int,
    device: DeviceCache,
    folder: Path | None,
) -> BlockStore:
    """Return the tiers below the device, if it has some; without `folder` none is on the disk.

    The cached blocks of a CPU are in main memory already, so it has no swap. A GPU without our
    kernels has only its own blocks. If the folder cannot be used, the engine works without it; the
    first answer has a warning.
    """
    tensors, host, disk = device.cache.tensors, None, None
    warnings = []
    staging: Staging | None = None
    if device.gpu is not None:
        if engine.swap_bytes >= block_bytes(tensors):
            host = HostMemory(tensors, engine.swap_bytes, copy_by(device.gpu), pinned=True)
        staging = CopiedStaging(tensors)
    elif tensors[0].device.type == "cpu":
        staging = CpuStaging(tensors)
    if staging is not None and folder is not None and engine.cache_max_bytes != 0:
        try:
            identity = CacheIdentity.of(model, engine, config, device.cache, ctx_size_tokens)
            disk = Disk(KVFolder(folder, engine.cache_max_bytes), identity, staging)
        except (FileSystemError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.message
            warnings.append(f"there is no KV cache on disk: {reason}")
    return BlockStore(device.allocator, block_bytes(tensors), host, disk, warnings)
