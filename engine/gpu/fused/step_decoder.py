"""The decoder of captured steps, which computes with `FusedOps`."""

from torch import Tensor

from swiftchat.engine.gpu.fused.deltas import FusedDeltas
from swiftchat.engine.gpu.fused.ops import FusedOps
from swiftchat.engine.gpu.fused.ranks import FusedRanks
from swiftchat.engine.gpu.inputs.device_batch import DeviceBatch
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.linear.adapted import Selection
from swiftchat.engine.model.adapted_weights import adapted_weights
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.hidden_states import HiddenStates
from swiftchat.engine.model.kv_cache import KVCache


class StepDecoder(Decoder):
    """Computes decode rows as `base` does, from their embeddings to their logits.

    `residual` fp32 [max_rows, hidden_size] receives the residual stream. Rows may be tokens of one
    sequence only with `shares_blocks`. `deltas` are the adapters of the rows.
    """

    def __init__(
        self,
        base: Decoder,
        ops: CudaOps,
        residual: Tensor,
        *,
        shares_blocks: bool = False,
        deltas: FusedDeltas | None = None,
    ) -> None:
        weights = base.weights
        if deltas is not None:  # the kernels find the sets of rows by themselves
            weights = adapted_weights(weights, Selection([]))
        self._fused = FusedOps(ops, residual, shares_blocks=shares_blocks, deltas=deltas)
        self._fused_ranks = FusedRanks(ops.gpu, base.ranks, base.config.hidden_size)
        super().__init__(base.config, weights, self._fused, self._fused_ranks, base.stages)
        self.head = base.head

    @property
    def exchanges_directly(self) -> bool:
        """Whether there is one rank, or ranks add up their branches through peer buffers."""
        return self._fused_ranks.sends

    def launch(
        self, batch: DeviceBatch, cache: KVCache, logits: Tensor, hidden: HiddenStates | None = None
    ) -> None:
        """Launch the kernels of this stage.

        All but the first stage read the stream from `residual`, all but the last write it there.
        The last stage writes `logits` fp32 [n, vocab_size], those of all ranks. `hidden` receives
        hidden states, on one rank and stage.
        """
        n, stages, kept = len(batch.ids), self.stages, self.kept(hidden)
        self._fused.begin()
        self._fused_ranks.begin(n)
        x = self.embed(batch) if stages.is_first else self._fused.stream(n)
        normed = self.forward_layers(batch, x, cache, kept)
        if stages.is_last:
            self._fused_ranks.write_logits(self.raw_logits(batch, normed, kept), logits)
            self.softcap_(logits)
        else:
            self._fused.write_stream(x)
        self._fused.end()
        self.store_for_head(batch, kept)
