"""A model whose prompts and fused decode steps run on emulated kernels, beside its reference."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from swiftchat.cuda.ops.mixers.steps import StepSlots
from swiftchat.engine.gpu.fused.decoder import FusedDecoder
from swiftchat.engine.gpu.inputs.device_batch import DeviceBatch, Rows
from swiftchat.engine.gpu.linear.factory import KernelWeights
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.load.loader import load_weights
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.scheduler import Row, Sequence
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.model.directory import Model
from tests.support import reference, tiny
from tests.support.emulated.kernels import aligned, emulated_gpu

if TYPE_CHECKING:
    import transformers

BLOCK_SIZE = 4
NUM_TOKENS = 24


class KernelBench:
    """A model on emulated kernels, with its reference, which is saved in `folder`."""

    def __init__(self, model: "transformers.PreTrainedModel", folder: Path) -> None:
        self.reference = model
        directory, cpu = Model.open(folder), torch.device("cpu")
        self.config: ModelConfig = directory.config
        gpu = self.gpu = emulated_gpu()
        kernels = LinearKernels(gpu, self.config.hidden_size)
        weights = load_weights(
            *(self.config, directory.checkpoint(), torch.float32, cpu, lambda done, total: None),
            factory=KernelWeights(kernels),
        )
        self.weights = aligned(weights)
        shard = tiny.Shard(self.config)
        self.ops = CudaOps(kernels, shard, 64, 4)
        self.decoder = Decoder(self.config, self.weights, self.ops)
        sizes, first = (32, BLOCK_SIZE, torch.float32, cpu), self.ops.heads_first
        self.cache = KVCache(self.config, *sizes, heads_first=first, num_states=2)
        self._state_slots = [0, 1]
        for tensor in (*self.cache.tensors, *self.cache.states.tensors):
            tensor.fill_(float("nan"))
        self.expected = reference.reference_logits(self.reference, reference.prompt_ids())
        self.ids = list(reference.prompt_ids())

    @property
    def launched(self) -> list[str]:
        """The names of the kernels so far."""
        names: list[str] = self.gpu.launched  # type: ignore[attr-defined]
        return names

    def sequence(self, num_computed: int) -> Sequence:
        sequence = Sequence(0, list(self.ids), tiny.SamplingParams())
        sequence.block_table = [3, 1, 7, 0, 2, 9, 4][: -(-NUM_TOKENS // BLOCK_SIZE)]
        sequence.num_computed = num_computed
        sequence.state_slot, sequence.spare_slot = self._state_slots
        return sequence

    def forward(self, first: int, num_tokens: int) -> Tensor:
        """Return the logits after a chunk of the prompt."""
        sequence = self.sequence(first)
        sequence.tokens = sequence.tokens[: first + num_tokens]
        batch = Batch.pack([Row(sequence, num_tokens)], BLOCK_SIZE)
        logits = self.decoder.forward(batch, self.cache)
        if num_tokens == 1:  # the states after it are in the other slot
            self._state_slots.reverse()
        assert logits is not None
        return logits[0]

    def check(self, logits: Tensor, position: int) -> None:
        scale = self.expected.abs().max()
        assert (logits - self.expected[position]).abs().max() <= 1e-4 * scale

    def check_prompt_and_steps(self) -> None:
        """A long chunk, a short one, which the kernels for few rows compute, and single tokens."""
        self.check(self.forward(0, 18), 17)
        self.check(self.forward(18, 3), 20)
        for position in range(21, NUM_TOKENS):
            self.check(self.forward(position, 1), position)

    def check_fused_steps(self) -> None:
        """Two rows with different numbers of tokens, of the same sequence.

        Of a model with states a single row.
        """
        self.forward(0, 18)
        table = torch.tensor(self.sequence(0).block_table, dtype=torch.int32)
        fused = FusedDecoder(self.decoder, self.ops, self.cache, 4)
        behind = [0, 9] if self.config.mixer is None else [0]
        logits = torch.empty(len(behind), self.config.vocab_size)
        self.launched.clear()
        for position in range(18, NUM_TOKENS):
            places = position - torch.tensor(behind, dtype=torch.int32)
            ids = [self.ids[at] for at in places.tolist()]
            slots = table[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE
            batch = DeviceBatch(
                torch.tensor(ids, dtype=torch.int32),
                places,
                slots.int(),
                Rows(table.repeat(len(behind), 1), places + 1),
                states=self.cache.states.layers,
                steps=self._steps(places),
            )
            assert fused.supports(len(behind))
            x = torch.empty(len(behind), self.config.hidden_size)
            fused.launch(batch, x, logits)
            self._state_slots.reverse()
            for row, place in zip(logits, places.tolist(), strict=True):
                self.check(row, place)

    def _steps(self, positions: Tensor) -> StepSlots | None:
        """Return the slots before and after a step of one row, for a model with states."""
        if self.config.mixer is None:
            return None
        slots = torch.tensor(self._state_slots, dtype=torch.int32).view(2, 1)
        return StepSlots(slots, positions)
