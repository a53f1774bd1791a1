"""A model whose prompts and fused decode steps run on emulated kernels, beside its reference."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.steps import StepSlots
from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.gpu.fused.step_decoder import StepDecoder
from swiftchat.engine.gpu.inputs.device_batch import DeviceBatch, Rows
from swiftchat.engine.gpu.linear.factory import KernelWeights
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.load.loader import load_weights
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.hidden_states import HiddenStates
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import Row, TokenSequence
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import shard_of
from tests.support import reference, tiny
from tests.support.emulated.kernels import aligned, emulated_gpu

if TYPE_CHECKING:
    import transformers

BLOCK_SIZE = 4
NUM_TOKENS = 24


class KernelBench:
    """A model on emulated kernels, with its reference, which is saved in `folder`.

    With `ranks` it is the part of one rank.
    """

    def __init__(
        self,
        model: "transformers.PreTrainedModel",
        folder: Path,
        gpu: Gpu | None = None,
        ranks: Communicator | None = None,
    ) -> None:
        self.reference = model
        directory, cpu = Model.open(folder), torch.device("cpu")
        size, rank = (1, 0) if ranks is None else (ranks.size, ranks.rank)
        shard = shard_of(directory.config, size, rank)
        self.config: ModelConfig = shard.local_config
        self.vocab_size = directory.config.vocab_size
        self.gpu = emulated_gpu() if gpu is None else gpu
        kernels = LinearKernels(self.gpu, self.config.hidden_size)
        weights = load_weights(
            *(directory.config, directory.checkpoint(shard), torch.float32, cpu),
            *(lambda done, total: None, shard),
            factory=KernelWeights(kernels),
        )
        self.weights = aligned(weights)
        self.ops = CudaOps(kernels, shard, 64, 4)
        self.decoder = Decoder(self.config, self.weights, self.ops, ranks)
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

    def sequence(self, num_computed: int) -> TokenSequence:
        sequence = TokenSequence(0, list(self.ids), tiny.SamplingParams())
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

    def check_fused_steps(self, hidden: HiddenStates | None = None) -> Tensor:
        """Two rows with different numbers of tokens, of the same sequence; return the last logits.

        Of a model with states a single row. `hidden` receives those of the last step.
        """
        self.forward(0, 18)
        decoder = StepDecoder(self.decoder, self.ops, self.residual())
        behind = [0, 9] if self.config.mixer is None else [0]
        logits = torch.empty(len(behind), self.vocab_size)
        self.launched.clear()
        for position in range(18, NUM_TOKENS):
            plan = self.plan([position - distance for distance in behind])
            decoder.launch(plan, self.cache, logits, hidden)
            self._state_slots.reverse()
            for row, place in zip(logits, plan.positions.tolist(), strict=True):
                self.check(row, place)
        return logits

    def residual(self) -> Tensor:
        """Return the memory of the stream of a few rows."""
        return torch.zeros(4, self.config.hidden_size)

    def plan(self, positions: list[int]) -> DeviceBatch:
        """Return the rows of a step that compute these tokens of the prompt."""
        table = torch.tensor(self.sequence(0).block_table, dtype=torch.int32)
        block_tables = torch.zeros(len(positions), 8, dtype=torch.int32)
        block_tables[:, : len(table)] = table
        places = torch.tensor(positions, dtype=torch.int32)
        ids = torch.tensor([self.ids[at] for at in positions], dtype=torch.int32)
        slots = table[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE
        return DeviceBatch(
            *(ids, places, slots.int(), Rows(block_tables, places + 1)),
            states=self.cache.states.layers,
            steps=self._steps(places),
        )

    def _steps(self, positions: Tensor) -> StepSlots | None:
        """Return the slots before and after a step of one row, for a model with states."""
        if self.config.mixer is None:
            return None
        slots = torch.tensor(self._state_slots, dtype=torch.int32).view(2, 1)
        return StepSlots(slots, positions)
