"""Short prefill chunks as CUDA graphs: captured while the engine is idle, replayed for prompts."""

from array import array
from collections.abc import Collection

import torch
from torch import Tensor

from swiftchat.engine.device.capture import capture
from swiftchat.engine.model.cuda_attention import PrefillRows
from swiftchat.engine.model.cuda_ops import CudaOps, CudaPlan
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.hidden_states import HiddenStates
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.schedule.batch import Batch
from swiftchat.errors import KernelCompileError, OutOfMemory

# Numbers of tokens with a graph of their own; others are padded to the next one. Longer chunks
# keep the GPU busy for longer than the host needs to launch their kernels.
GRAPH_TOKENS = (16, 32, 64, 128, 256, 512)
_ALIGNED = 4  # int32 elements: kernels read their inputs from multiples of 16 bytes


def computes_experts(decoder: Decoder, ops: CudaOps) -> bool:
    """Return whether all ranks and stages compute the experts of their layers in kernels."""
    own = ops.computes_experts(decoder.weights.layers)
    everywhere = decoder.ranks.min_across_ranks(int(own))
    return min(decoder.stages.gather_from_stages(everywhere)) > 0


class PrefillGraphs:
    """Captures and replays the forward pass of one sequence's chunk, from its ids to the logits.

    Launching the kernels of a short chunk one by one takes the host several times as long as the
    GPU computes. Padding tokens have no slot and are no queries; nothing else mixes tokens. Chunks
    are padded without a graph as well: a GEMM of another size may round differently, and an answer
    must not depend on what has been captured.
    """

    def __init__(
        self,
        decoder: Decoder,
        ops: CudaOps,
        cache: KVCache,
        max_tokens: int,
        max_blocks: int,
        hidden_layers: Collection[int] = (),
    ) -> None:
        """Prepare for chunks of at most `max_tokens` and contexts of at most `max_blocks`.

        Graphs keep the hidden states of `hidden_layers`, as `HiddenStates`.
        """
        self._hidden_layers = hidden_layers
        self._hidden: dict[int, HiddenStates] = {}
        self._decoder, self._ops, self._cache = decoder, ops, cache
        self._sizes = [size for size in GRAPH_TOKENS if size <= max_tokens]
        # Stages exchange the residual stream outside graphs.
        self._to_capture = list(self._sizes) if decoder.stages.size == 1 else []
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        most = max(self._sizes, default=0)
        max_blocks = -(-max_blocks // _ALIGNED) * _ALIGNED
        # All inputs share one tensor, which one copy from pinned memory fills.
        self._lengths = [most, most, most, _ALIGNED, _ALIGNED, _ALIGNED, max_blocks]
        self._inputs = torch.zeros(sum(self._lengths), dtype=torch.int32, device=ops.gpu.device)
        self._host_inputs = self._inputs.cpu().pin_memory()
        self._pool = torch.cuda.graph_pool_handle()  # graphs never run at the same time
        self._logits: dict[int, Tensor] = {}

    @classmethod
    def supports(cls, decoder: Decoder, ops: CudaOps) -> bool:
        """Return whether a decoder's chunks can be padded, on all ranks.

        States would advance with the padding. Latent attention of prompts needs the host.
        """
        config = decoder.config
        if config.mixer is not None or config.latent is not None:
            return False
        return computes_experts(decoder, ops)

    @property
    def can_capture(self) -> bool:
        return bool(self._to_capture)

    def is_captured(self, num_tokens: int) -> bool:
        """Return whether a chunk of so many tokens has a graph."""
        size = next((size for size in self._sizes if size >= num_tokens), None)
        return size in self._graphs

    def capture_next(self) -> None:
        """Capture the smallest size without a graph, on all ranks; no sequence may be running.

        Without memory for it on some rank, this size and larger ones get none.
        """
        size = self._to_capture.pop(0)
        graph: torch.cuda.CUDAGraph | None
        try:
            graph = self._capture(size)
        except (OutOfMemory, KernelCompileError, torch.OutOfMemoryError):
            graph = None  # without it, the chunk reports the error if that happens there as well
        # Ranks launch the same collective operations, all from graphs or none.
        if self._decoder.ranks.min_across_ranks(int(graph is not None)) and graph is not None:
            self._graphs[size] = graph
        else:
            self._to_capture = []

    def forward(self, batch: Batch, hidden: HiddenStates | None = None) -> Tensor | None:
        """As `Decoder.forward`; from a graph, logits are valid until the next call."""
        num_tokens = len(batch.ids)
        size = next((size for size in self._sizes if size >= num_tokens), None)
        has_last_logits = batch.logits_indices == [num_tokens - 1]
        is_chunk = len(batch.spans) == 1 and has_last_logits and num_tokens > 1
        if not is_chunk or size is None:
            return self._decoder.forward(batch, self._cache, hidden)
        self._load(batch, size)
        graph = self._graphs.get(size)
        if graph is None:
            padded = None if hidden is None else HiddenStates(hidden.layers)
            logits = self._decoder.forward_plan(self._plan(size), self._cache, padded)
        else:
            graph.replay()
            logits, padded = self._logits[size], self._hidden.get(size)
        if hidden is not None and padded is not None:
            hidden.found.update(padded.copied(num_tokens, 1).found)
        return logits

    def _capture(self, size: int) -> torch.cuda.CUDAGraph:
        """Compile the kernels of a chunk, compute padding once to load them, and capture it."""
        self._load(None, size)
        plan = self._plan(size)
        hidden = HiddenStates(self._hidden_layers) if self._hidden_layers else None

        def launch() -> Tensor | None:
            return self._decoder.forward_plan(plan, self._cache, hidden)

        with self._ops.gpu.collecting() as specs:
            launch()
        self._ops.gpu.compile(specs)
        launch()
        torch.cuda.synchronize(self._ops.gpu.device)
        graph, logits = capture(launch, self._pool)
        assert logits is not None  # there is one stage
        self._logits[size] = logits
        if hidden is not None:
            self._hidden[size] = hidden
        return graph

    def _plan(self, size: int) -> CudaPlan:
        """Return the inputs as a batch of `size` tokens."""
        parts = torch.split(self._inputs, self._lengths)
        ids, positions, slot_mapping = (part[:size] for part in parts[:3])
        query_starts, context_lens, logits_indices, block_table = parts[3:]
        rows = PrefillRows(block_table.view(1, -1), context_lens[:1], query_starts[:2], size)
        return CudaPlan(
            ids, positions, slot_mapping, prefill=rows, logits_indices=logits_indices[:1]
        )

    def _load(self, batch: Batch | None, size: int) -> None:
        """Copy a batch of one sequence to the device, or padding only.

        The device must be idle, because this overwrites the host buffer of earlier copies.
        """
        host = torch.split(self._host_inputs, self._lengths)
        ids, positions, slot_mapping, query_starts, context_lens, logits_indices, table = host
        num_tokens = len(batch.ids) if batch else 0
        for part, padding in ((ids, 0), (positions, 0), (slot_mapping, -1)):
            part[num_tokens:size] = padding
        query_starts[1] = num_tokens
        context_lens[0] = logits_indices[0] = 0
        if batch is not None:
            (span,) = batch.spans
            used = span.block_table[: -(-span.context_len // self._cache.block_size)]
            context_lens[0], logits_indices[0] = span.context_len, num_tokens - 1
            for part, values in (
                (ids, batch.ids),
                (positions, batch.positions),
                (slot_mapping, batch.slot_mapping),
                (table, used),
            ):
                part[: len(values)] = torch.frombuffer(array("i", values), dtype=torch.int32)
        self._inputs.copy_(self._host_inputs, non_blocking=True)
