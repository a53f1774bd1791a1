"""The inputs of prefill chunks that are padded to one of a few sizes."""

from array import array
from collections.abc import Mapping

import torch
from torch import Tensor

from swiftchat.cuda.ops.mixers.scans import ScanRows
from swiftchat.engine.gpu.attention import DecodeRows, PrefillRows
from swiftchat.engine.gpu.mixers.mix import StatePlan
from swiftchat.engine.gpu.ops import CudaPlan
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.schedule.batch import Batch
from swiftchat.weights.architectures.config import ModelConfig

_ALIGNED = 4  # int32 elements: kernels read their inputs from multiples of 16 bytes


class PrefillInputs:
    """A chunk of one sequence in tensors whose addresses never change, as graphs need them.

    All are parts of one int32 tensor, which one copy from pinned memory fills. Padding tokens have
    no slot and are no queries, and states do not advance with them.
    """

    def __init__(
        self,
        config: ModelConfig,
        cache: KVCache,
        max_tokens: int,
        max_blocks: int,
        device: torch.device,
    ) -> None:
        """Allocate the inputs of chunks of at most `max_tokens` after at most `max_blocks`."""
        self._config, self._cache = config, cache
        lengths = {
            **dict.fromkeys(("ids", "positions", "slot_mapping"), max_tokens),
            **dict.fromkeys(
                ("query_starts", "context_len", "logits_index", "state_slots"), _ALIGNED
            ),
            "block_table": -(-max_blocks // _ALIGNED) * _ALIGNED,
        }
        self._on_device = torch.zeros(sum(lengths.values()), dtype=torch.int32, device=device)
        self._on_host = self._on_device.cpu().pin_memory()
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's stubs
        self._inputs = _parts(self._on_device, lengths)
        self._host_inputs = _parts(self._on_host, lengths)

    def load(self, batch: Batch | None, size: int) -> None:
        """Copy a batch of one sequence to the device, or padding only, for `plan(size)`."""
        self._copied.synchronize()  # the copy before has read the host's buffer
        host = self._host_inputs
        num_tokens = len(batch.ids) if batch else 0
        for name, padding in (("ids", 0), ("positions", 0), ("slot_mapping", -1)):
            host[name][num_tokens:size] = padding
        host["query_starts"][1] = num_tokens
        host["context_len"][0] = host["logits_index"][0] = 0
        if batch is not None:
            (span,) = batch.spans
            used = span.block_table[: -(-span.context_len // self._cache.block_size)]
            host["context_len"][0], host["logits_index"][0] = span.context_len, num_tokens - 1
            for name, values in (
                ("ids", batch.ids),
                ("positions", batch.positions),
                ("slot_mapping", batch.slot_mapping),
                ("block_table", used),
                ("state_slots", [span.state_slot, span.next_state_slot]),
            ):
                host[name][: len(values)] = torch.frombuffer(array("i", values), dtype=torch.int32)
        self._on_device.copy_(self._on_host, non_blocking=True)
        self._copied.record()

    def plan(self, size: int, max_context: int) -> CudaPlan:
        """Return the inputs as `size` tokens, whose context has at most `max_context` tokens.

        A captured step must include this call.
        """
        inputs, cache = self._inputs, self._cache
        ids, positions, slot_mapping = (
            inputs[name][:size] for name in ("ids", "positions", "slot_mapping")
        )
        query_starts, max_blocks = inputs["query_starts"][:2], -(-max_context // cache.block_size)
        table = inputs["block_table"][:max_blocks].view(1, -1)
        decode, prefill, states = None, None, None
        if self._config.attention.latent is None:
            prefill = PrefillRows(table, inputs["context_len"][:1], query_starts, size)
        else:  # the kernels attend to latents one query at a time
            context_lens = torch.where(slot_mapping >= 0, positions + 1, 0)
            decode = DecodeRows(table.expand(size, -1).contiguous(), context_lens)
        if self._config.mixer is not None:
            slots = inputs["state_slots"][:2].view(2, 1)
            scans = ScanRows(query_starts, slots, positions, size)
            states = StatePlan(cache.states.layers, scans=scans)
        return CudaPlan(
            *(ids, positions, slot_mapping, decode, prefill),
            logits_indices=inputs["logits_index"][:1],
            states=states,
        )


def _parts(packed: Tensor, lengths: Mapping[str, int]) -> dict[str, Tensor]:
    return dict(zip(lengths, torch.split(packed, list(lengths.values())), strict=True))
