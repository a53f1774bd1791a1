"""The decoder against transformers on the same random weights, in fp32.

Tolerance 1e-4 relative to the largest logit: fp32 sums of up to 80 products in another order.
"""

from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.model.decoder import resident_bytes
from swiftchat.engine.model.rope import cos_sin_table
from swiftchat.weights.architectures.config import RopeConfig
from tests.support import tiny

NUM_TOKENS = 70


@pytest.fixture(scope="module", params=list(tiny.VARIANTS))
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp(request.param)
    return folder, tiny.make(request.param, folder)


def assert_close(ours: torch.Tensor, reference: torch.Tensor) -> None:
    assert ours.isfinite().all()
    assert (ours - reference).abs().max() <= 1e-4 * reference.abs().max()


@pytest.mark.parametrize("length", [1, 2, tiny.BLOCK_SIZE, tiny.BLOCK_SIZE + 1, NUM_TOKENS])
def test_prefill_equals_transformers(variant, length: int) -> None:
    folder, reference = variant
    ids = tiny.random_ids(length)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0, -1]
    assert_close(tiny.Bench(folder).last_logits(ids), expected)


def test_token_by_token_equals_transformers(variant) -> None:
    folder, reference = variant
    ids = tiny.random_ids(NUM_TOKENS, seed=1)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    assert_close(tiny.Bench(folder).logits(ids), expected)


@pytest.mark.parametrize("chunk_tokens", [1, 3, 16, 33])
def test_prefill_in_chunks_equals_whole(variant, chunk_tokens: int) -> None:
    folder, _ = variant
    ids = tiny.random_ids(NUM_TOKENS, seed=2)
    whole = tiny.Bench(folder).last_logits(ids)
    assert_close(tiny.Bench(folder, chunk_tokens=chunk_tokens).last_logits(ids), whole)


@pytest.mark.parametrize("shared", [3, tiny.BLOCK_SIZE, 21, NUM_TOKENS - 1])
def test_reused_prefix_equals_recomputed_prefix(variant, shared: int) -> None:
    folder, _ = variant
    first = tiny.random_ids(NUM_TOKENS, seed=3)
    second = first[:shared] + tiny.random_ids(NUM_TOKENS - shared, seed=4)
    bench = tiny.Bench(folder)
    bench.last_logits(first)
    assert_close(bench.last_logits(second), tiny.Bench(folder).last_logits(second))


def test_scattered_context_equals_contiguous_context(variant) -> None:
    folder, _ = variant
    ids = tiny.random_ids(NUM_TOKENS, seed=5)
    bench = tiny.Bench(folder)
    taken = [bench.allocator.allocate() for _ in range(bench.allocator.num_blocks)]
    bench.allocator.release(taken[::2])  # every second block is free: no two blocks are adjacent
    bench.held = [taken[1::2]]
    assert_close(bench.last_logits(ids), tiny.Bench(folder).last_logits(ids))


def test_weights_are_views_of_the_file(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    loaded = build_engine(tmp_path, EngineConfig(device="cpu"))
    mapped = loaded._checkpoint.map(tmp_path / "model.safetensors")
    start = torch.frombuffer(mapped, dtype=torch.uint8).data_ptr()
    layer = loaded.decoder.weights.layers[0]
    for weight in (loaded.decoder.weights.embed, layer.o, layer.gate_up, layer.down):
        assert start <= tiny.plain_tensor(weight).data_ptr() < start + len(mapped)
    assert resident_bytes(loaded.decoder.weights) == loaded.info.weights_bytes


def test_rope_angles_are_exact_at_long_positions() -> None:
    table = cos_sin_table(RopeConfig(theta=500_000.0), 128, 100_001, torch.device("cpu"))
    position = torch.tensor(100_000, dtype=torch.float64)
    speeds = 500_000.0 ** (-torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    assert torch.equal(table[100_000, :64], (position * speeds).cos().float())
    assert torch.equal(table[100_000, 64:], (position * speeds).sin().float())
