"""The decoder against transformers on the same random weights, in fp32.

Tolerance 1e-4 relative to the largest logit: fp32 sums of up to 80 products in another order.
"""

from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.model.rope import cos_sin_table
from swiftchat.engine.model.weights import resident_bytes
from swiftchat.weights.architectures.parts.rope import RopeConfig
from tests.support import tiny

NUM_TOKENS = 70


@pytest.fixture(scope="module", params=list(tiny.VARIANTS))
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp(request.param)
    return folder, tiny.make_with_reference(request.param, folder)


# For what does not depend on biases, sizes of heads, or angles.
with_and_without_window = pytest.mark.parametrize(
    "variant", ["llama", "mistral-window"], indirect=True
)


def assert_close(ours: torch.Tensor, reference: torch.Tensor) -> None:
    assert ours.isfinite().all()
    assert (ours - reference).abs().max() <= 1e-4 * reference.abs().max()


@with_and_without_window
@tiny.each_backend
@pytest.mark.parametrize("length", [1, 2, tiny.BLOCK_SIZE, tiny.BLOCK_SIZE + 1])
def test_a_short_prefill_equals_transformers(variant, length: int, native: bool) -> None:
    folder, reference = variant
    ids = tiny.random_ids(length)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0, -1]
    assert_close(tiny.Bench(folder, native=native).last_logits(ids), expected)


@tiny.each_backend
def test_prefill_and_token_by_token_equal_transformers(variant, native: bool) -> None:
    folder, reference = variant
    ids = tiny.random_ids(NUM_TOKENS, seed=1)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    assert_close(tiny.Bench(folder, native=native).last_logits(ids), expected[-1])
    assert_close(tiny.Bench(folder, native=native).logits(ids), expected)


@with_and_without_window
@tiny.each_backend
@pytest.mark.parametrize("chunk_tokens", [1, 3, 16, 33])
def test_prefill_in_chunks_equals_whole(variant, chunk_tokens: int, native: bool) -> None:
    folder, _ = variant
    ids = tiny.random_ids(NUM_TOKENS, seed=2)
    whole = tiny.Bench(folder, native=native).last_logits(ids)
    chunked = tiny.Bench(folder, chunk_tokens=chunk_tokens, native=native).last_logits(ids)
    assert_close(chunked, whole)


@with_and_without_window
@tiny.each_backend
@pytest.mark.parametrize("shared", [3, tiny.BLOCK_SIZE, 21, NUM_TOKENS - 1])
def test_reused_prefix_equals_recomputed_prefix(variant, shared: int, native: bool) -> None:
    folder, _ = variant
    first = tiny.random_ids(NUM_TOKENS, seed=3)
    second = first[:shared] + tiny.random_ids(NUM_TOKENS - shared, seed=4)
    bench = tiny.Bench(folder, native=native)
    bench.last_logits(first)
    whole = tiny.Bench(folder, native=native).last_logits(second)
    assert_close(bench.last_logits(second), whole)


@with_and_without_window
@tiny.each_backend
def test_scattered_context_equals_contiguous_context(variant, native: bool) -> None:
    folder, _ = variant
    ids = tiny.random_ids(NUM_TOKENS, seed=5)
    bench = tiny.Bench(folder, native=native)
    taken = [bench.allocator.allocate() for _ in range(bench.allocator.num_blocks)]
    bench.allocator.release(taken[::2])  # every second block is free: no two blocks are adjacent
    bench.held = [taken[1::2]]
    contiguous = tiny.Bench(folder, native=native).last_logits(ids)
    assert_close(bench.last_logits(ids), contiguous)


@tiny.each_backend
def test_weights_are_views_of_the_file(tmp_path: Path, native: bool) -> None:
    tiny.make("llama", tmp_path)
    loaded = build_engine(tmp_path, EngineConfig(device="cpu", kernels=native))
    mapped = loaded.checkpoint.map(tmp_path / "model.safetensors")
    start = torch.frombuffer(mapped, dtype=torch.uint8).data_ptr()
    layer = loaded.decoder.weights.layers[0]
    for weight in (loaded.decoder.weights.embed, layer.o, layer.gate_up, layer.down):
        (tensor,) = weight.tensors
        assert start <= tensor.data_ptr() < start + len(mapped)
    assert resident_bytes(loaded.decoder.weights) == loaded.info.weights_bytes


def test_rope_angles_are_exact_at_long_positions() -> None:
    table = cos_sin_table(RopeConfig(theta=500_000.0), 128, 100_001, torch.device("cpu"))
    position = torch.tensor(100_000, dtype=torch.float64)
    speeds = 500_000.0 ** (-torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    assert torch.equal(table[100_000, :64], (position * speeds).cos().float())
    assert torch.equal(table[100_000, 64:], (position * speeds).sin().float())
