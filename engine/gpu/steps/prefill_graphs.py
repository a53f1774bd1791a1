"""Short prefill chunks as CUDA graphs: captured while the engine is idle, replayed for prompts."""

from functools import partial

import torch
from torch import Tensor

from swiftchat.engine.gpu.capture import Captured, captured
from swiftchat.engine.gpu.graph_sizes import prefill_sizes
from swiftchat.engine.gpu.inputs.fixed_batch import FixedBatch
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.steps.runner import StepInputs, StepLogits
from swiftchat.errors import KernelCompileError, OutOfMemory

# Queries times cached tokens times heads for which latent attention takes one query at a time, as
# graphs need it: with 16 heads, 512 queries and 6,144 tokens. Torch's operators read the latents
# once for all queries, but need the host.
_MAX_LATENT_SCORES = 3 * 2**24


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
    ) -> None:
        """Prepare for chunks of at most `max_tokens` and contexts of at most `max_blocks`."""
        self._decoder, self._ops, self._cache = decoder, ops, cache
        lengths = (size for size in prefill_sizes(decoder.config) if size <= max_tokens)
        contexts = {size: self._max_context(size, max_blocks) for size in lengths}
        # The most tokens of a context by the size of its chunk, which is longer than half of that;
        # in ascending order of sizes.
        self._max_contexts = {size: most for size, most in contexts.items() if most > size // 2}
        # Stages exchange the residual stream outside graphs.
        self._to_capture = list(self._max_contexts) if decoder.stages.size == 1 else []
        self._graphs: dict[int, Captured[Tensor | None]] = {}
        most = max(self._max_contexts, default=0)
        sizes = most, 1, max_blocks, cache.block_size
        self._inputs = FixedBatch(ops.gpu.device, *sizes, cache.states.layers)
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's stubs
        self._pool = torch.cuda.graph_pool_handle()  # graphs never run at the same time

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
        graph: Captured[Tensor | None] | None
        try:
            graph = self._capture(size)
        except (OutOfMemory, KernelCompileError, torch.OutOfMemoryError):
            graph = None  # without it, the chunk reports the error if that happens there as well
        # Ranks launch the same collective operations, all from graphs or none.
        if self._decoder.ranks.min_across_ranks(int(graph is not None)) and graph is not None:
            self._graphs[size] = graph
        else:
            self._to_capture = []

    def compute(self, inputs: StepInputs) -> StepLogits | None:
        """Compute a short chunk of one sequence, padded; None for other steps.

        From a graph, the logits are valid until the next call.
        """
        size = self._size_for(inputs.batch)
        if size is None:
            return None
        return StepLogits(self.forward(inputs.batch, size))

    def forward(self, batch: Batch, size: int) -> Tensor | None:
        """As `Decoder.forward`, with a batch padded to `size` tokens."""
        self._load(batch, size)
        graph = self._graphs.get(size)
        logits = self._launch(size) if graph is None else graph.replay()
        return None if logits is None else logits[: len(batch.logits_indices)]

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

    def _load(self, batch: Batch | None, size: int) -> None:
        """Copy a chunk to the device, padded to a size; None: padding only."""
        self._copied.synchronize()  # the copy before has read the host's memory
        self._inputs.put_chunk(batch, size)
        self._inputs.copy(1)
        self._copied.record()

    def _launch(self, size: int) -> Tensor | None:
        """Launch the kernels of a chunk that is loaded; return its logits."""
        one_by_one = (
            self._decoder.config.attention.latent is not None
        )  # as the kernels attend to latents
        chunk = self._inputs.chunk(size, self._max_contexts[size], one_by_one=one_by_one)
        return self._decoder.forward_plan(chunk, self._cache)

    def _capture(self, size: int) -> Captured[Tensor | None]:
        """Capture a chunk after one of padding only."""
        self._load(None, size)
        return captured(partial(self._launch, size), gpu=self._ops.gpu, pool=self._pool)
