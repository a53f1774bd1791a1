"""Gemma 4 by the launches of `CudaOps` and `FusedDecoder`, whose kernels torch emulates on the CPU.

Against transformers in fp32, relative to the largest logit. The kernels themselves have tests of
their own on a GPU.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from swiftchat.engine.decode.coverage import fused_kernels_cover
from swiftchat.engine.decode.fused_decoder import FusedDecoder
from swiftchat.engine.linear.factory import KernelWeights
from swiftchat.engine.linear.plain_gpu import LinearKernels
from swiftchat.engine.load.loader import load_weights
from swiftchat.engine.model.coverage import kernels_cover
from swiftchat.engine.model.cuda_ops import CudaOps
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.per_layer import PerLayerTable, per_layer_embeddings
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.scheduler import Row, Sequence
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.model.directory import Model
from tests.support import gemma4, reference, tiny
from tests.support.emulated_kernels import aligned, emulated_gpu

BLOCK_SIZE = 4
NUM_TOKENS = 24
MODELS = [(name, heads) for name in gemma4.VARIANTS for heads in (False, True)]


class KernelBench:
    """A model on emulated kernels, with its reference."""

    def __init__(self, name: str, folder: Path, **changes: Any) -> None:
        self.reference = gemma4.make(name, folder, **changes)
        model, cpu = Model.open(folder), torch.device("cpu")
        self.config: ModelConfig = model.config
        gpu = self.gpu = emulated_gpu()
        kernels = LinearKernels(gpu, self.config.hidden_size)
        weights = load_weights(
            *(self.config, model.checkpoint(), torch.float32, cpu, lambda done, total: None),
            factory=KernelWeights(kernels),
        )
        self.weights = aligned(weights)
        shard = tiny.Shard(self.config)
        self.ops = CudaOps(kernels, shard, 64, 4)
        self.decoder = Decoder(self.config, self.weights, self.ops)
        self.cache = KVCache(self.config, 32, BLOCK_SIZE, torch.float32, cpu, heads_first=True)
        for tensor in self.cache.tensors:
            tensor.fill_(float("nan"))
        self.expected = reference.reference_logits(self.reference, reference.prompt_ids())
        self.ids = list(reference.prompt_ids())

    def sequence(self, num_computed: int) -> Sequence:
        sequence = Sequence(0, list(self.ids), tiny.SamplingParams())
        sequence.block_table = [3, 1, 7, 0, 2, 9, 4][: -(-NUM_TOKENS // BLOCK_SIZE)]
        sequence.num_computed = num_computed
        return sequence

    def forward(self, first: int, num_tokens: int) -> Tensor:
        """Return the logits after a chunk of the prompt."""
        sequence = self.sequence(first)
        sequence.tokens = sequence.tokens[: first + num_tokens]
        batch = Batch.pack([Row(sequence, num_tokens)], BLOCK_SIZE)
        logits = self.decoder.forward(batch, self.cache)
        assert logits is not None
        return logits[0]

    def check(self, logits: Tensor, position: int) -> None:
        scale = self.expected.abs().max()
        assert (logits - self.expected[position]).abs().max() <= 1e-4 * scale


@pytest.fixture(params=MODELS, ids=lambda pair: pair[0] + ("-wide" if pair[1] else ""))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> KernelBench:
    """A model with tiny heads, or with those of the published models."""
    name, is_wide = request.param
    return KernelBench(name, tmp_path, **(gemma4.HEADS if is_wide else {}))


@torch.inference_mode()
def test_prompts_and_steps_equal_transformers(bench: KernelBench) -> None:
    """A long chunk, a short one, which the kernels for few rows compute, and single tokens."""
    assert kernels_cover(bench.config, torch.float32)
    bench.check(bench.forward(0, 18), 17)
    bench.check(bench.forward(18, 3), 20)
    for position in range(21, NUM_TOKENS):
        bench.check(bench.forward(position, 1), position)
    launched = bench.gpu.launched  # type: ignore[attr-defined]
    assert ("expert_down" in launched) == ("grouped_down" in launched)
    assert ("route" in launched) == (bench.config.num_experts > 0)


@torch.inference_mode()
def test_fused_steps_equal_transformers(bench: KernelBench) -> None:
    """Two rows with different numbers of tokens, of the same sequence."""
    assert fused_kernels_cover(bench.config)
    bench.forward(0, 18)
    table = torch.tensor(bench.sequence(0).block_table, dtype=torch.int32)
    batch = SimpleNamespace(max_rows=4, block_tables=torch.zeros(4, 8, dtype=torch.int32))
    batch.block_tables[:, : len(table)] = table
    fused = FusedDecoder(bench.decoder, bench.ops, bench.cache, batch)  # type: ignore[arg-type]
    logits = torch.empty(2, bench.config.vocab_size)
    bench.gpu.launched.clear()  # type: ignore[attr-defined]
    for position in range(18, NUM_TOKENS):
        places = torch.tensor([position, position - 9], dtype=torch.int32)
        batch.tokens = torch.tensor([bench.ids[at] for at in places.tolist()], dtype=torch.int32)
        batch.positions, batch.context_lens = places, places + 1
        slots = table[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE
        batch.slot_mapping = slots.int()
        assert fused.supports(2)
        fused.launch(torch.empty(2, bench.config.hidden_size), logits)
        for row, place in zip(logits, places.tolist(), strict=True):
            bench.check(row, place)
    launched = bench.gpu.launched  # type: ignore[attr-defined]
    assert "norm" not in launched or bench.config.per_layer_embeddings is not None
    assert ("router" in launched) == (bench.config.num_experts > 0)


@torch.inference_mode()
def test_ids_without_an_embedding_for_the_layers_have_that_of_id_0(tmp_path: Path) -> None:
    bench = KernelBench("all", tmp_path)
    whole = bench.weights.per_layer
    rows = whole.embed.tensor[:50].clone()
    embed = KernelWeights(LinearKernels(bench.gpu, 48)).plain(rows)
    table = PerLayerTable(embed, whole.project, whole.norm)
    ids, x = torch.tensor([3, 49, 50, 96], dtype=torch.int32), torch.randn(4, 48)
    found = bench.ops.per_layer.embeddings(ids, x, table)
    expected = per_layer_embeddings(ids, x, table, bench.config.norm_eps)
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
