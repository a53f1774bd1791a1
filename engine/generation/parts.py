"""The parts of an engine."""

from dataclasses import dataclass

import torch

from swiftchat.engine.adapters.tunings import Tunings
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import EngineInfo
from swiftchat.engine.generation.back_end import BackEnd
from swiftchat.engine.generation.forced_tokens import ForcedTokens
from swiftchat.engine.generation.grammars import Grammars
from swiftchat.engine.gpu.steps.graphs import Graphs
from swiftchat.engine.kv_store.block_store import BlockStore
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.engine.speculation.speculation import Speculation
from swiftchat.weights.model.checkpoint import Checkpoint


@dataclass(frozen=True)
class EngineParts:
    """The parts that `build_engine` makes an engine of.

    The checkpoint is held because weights may be views of its mapped files.
    """

    config: EngineConfig
    info: EngineInfo
    device: torch.device
    back_end: BackEnd
    decoder: Decoder
    cache: KVCache
    scheduler: Scheduler
    speculation: Speculation
    graphs: Graphs
    checkpoint: Checkpoint | None
    grammars: Grammars
    forced: ForcedTokens
    store: BlockStore
    tunings: Tunings
