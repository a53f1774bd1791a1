"""Short prefill chunks as CUDA graphs: captured while the engine is idle, replayed for prompts."""

from collections.abc import Collection

import torch
from torch import Tensor

from swiftchat.engine.gpu.capture import capture
from swiftchat.engine.gpu.graph_sizes import prefill_sizes
from swiftchat.engine.gpu.ops import CudaOps, CudaPlan
from swiftchat.engine.gpu.steps.prefill_inputs import PrefillInputs
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.hidden_states import HiddenStates
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.schedule.batch import Batch
from swiftchat.errors import KernelCompileError, OutOfMemory

# Queries times cached tokens times heads for which latent attention takes one query at a time, as
# graphs need it: with 16 heads, 512 queries and 6,144 tokens. Torch's operators read the latents
# once for all queries, but need the host.
_MAX_LATENT_SCORES = 3 * 2**24


def computes_experts(decoder: Decoder, ops: CudaOps) -> bool:
    """Return whether all ranks and stages compute the experts of their layers in kernels."""
    own = ops.computes_experts(decoder.weights.layers)
    everywhere = decoder.ranks.min_across_ranks(int(own))
    return min(decoder.stages.gather_from_stages(everywhere)) > 0


class PrefillGraphs:
    """Captures and replays the forward pass of one sequence's chunk, from its ids to the logits.

    Launching the kernels of a short chunk one by one takes the host several times as long as the
    GPU computes. A chunk before the end of a prompt has no logits; they are computed in any case.
    Padding tokens have no slot and are no queries; nothing else mixes tokens. Chunks are padded
    without a graph as well: a GEMM of another size may round differently, and an answer must not
    depend on what has been captured.
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
        sizes = (size for size in prefill_sizes(decoder.config) if size <= max_tokens)
        contexts = {size: self._max_context(size, max_blocks) for size in sizes}
        # The most tokens of a context by the size of its chunk, which is longer than half of that;
        # in ascending order of sizes.
        self._max_contexts = {size: most for size, most in contexts.items() if most > size // 2}
        # Stages exchange the residual stream outside graphs.
        self._to_capture = list(self._max_contexts) if decoder.stages.size == 1 else []
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        most = max(self._max_contexts, default=0)
        self._inputs = PrefillInputs(decoder.config, cache, most, max_blocks, ops.gpu.device)
        self._pool = torch.cuda.graph_pool_handle()  # graphs never run at the same time
        self._logits: dict[int, Tensor] = {}

    @classmethod
    def supports(cls, decoder: Decoder, ops: CudaOps) -> bool:
        """Return whether the kernels compute a decoder's chunks without the host, on all ranks."""
        if decoder.config.mixer is not None and not ops.mixers.scans:
            return False
        return computes_experts(decoder, ops)

    @property
    def can_capture(self) -> bool:
        return bool(self._to_capture)

    def is_captured(self, num_tokens: int) -> bool:
        """Return whether a chunk of so many tokens has a graph."""
        return self._padded(num_tokens) in self._graphs

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
        num_tokens, num_logits = len(batch.ids), len(batch.logits_indices)
        size = self._size_for(batch)
        if size is None:
            return self._decoder.forward(batch, self._cache, hidden)
        self._inputs.load(batch, size)
        graph = self._graphs.get(size)
        if graph is None:
            padded = None if hidden is None else HiddenStates(hidden.layers)
            logits = self._decoder.forward_plan(self._plan(size), self._cache, padded)
        else:
            graph.replay()
            logits, padded = self._logits[size], self._hidden.get(size)
        if hidden is not None and padded is not None:
            hidden.found.update(padded.copied(num_tokens, num_logits).found)
        return None if logits is None else logits[:num_logits]

    def _max_context(self, size: int, max_blocks: int) -> int:
        """Return the most tokens of a context after which a padded chunk is computed."""
        most = max_blocks * self._cache.block_size
        if self._decoder.config.attention.latent is None:
            return most
        heads = -self._decoder.ranks.min_across_ranks(-self._decoder.config.attention.num_heads)
        return min(most, _MAX_LATENT_SCORES // (size * heads))

    def _size_for(self, batch: Batch) -> int | None:
        """Return the padded number of tokens of a batch; None if it is not one short chunk."""
        num_tokens = len(batch.ids)
        is_chunk = len(batch.spans) == 1 and batch.logits_indices in ([], [num_tokens - 1])
        if not is_chunk or num_tokens == 1:
            return None
        size = self._padded(num_tokens)
        if size is None or batch.spans[0].context_len > self._max_contexts[size]:
            return None
        return size

    def _padded(self, num_tokens: int) -> int | None:
        """Return the smallest size for so many tokens; None if they are too many."""
        return next((size for size in self._max_contexts if size >= num_tokens), None)

    def _plan(self, size: int) -> CudaPlan:
        return self._inputs.plan(size, self._max_contexts[size])

    def _capture(self, size: int) -> torch.cuda.CUDAGraph:
        """Compile the kernels of a chunk, compute padding once to load them, and capture it."""
        self._inputs.load(None, size)
        hidden = HiddenStates(self._hidden_layers) if self._hidden_layers else None

        def launch() -> Tensor | None:
            return self._decoder.forward_plan(self._plan(size), self._cache, hidden)

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
