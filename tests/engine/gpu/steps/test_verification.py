"""Verification steps: the rows that they load, and on a GPU the ids of plain decoding."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.gpu.inputs.decode_batch import DecodeBatch
from swiftchat.engine.schedule.sequence import Row, TokenSequence
from tests.support import tiny
from tests.support.speculation import use_oracle

GREEDY = SamplingParams(temperature=0, max_tokens=40, speculate="off")


@pytest.fixture
def batch(monkeypatch: pytest.MonkeyPatch) -> DecodeBatch:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self.clone())
    gpu: Any = SimpleNamespace(device=torch.device("cpu"))
    return DecodeBatch(gpu, 8, 8, 4, 97)


def test_rows_of_proposed_tokens_follow_each_other(batch: DecodeBatch) -> None:
    first = TokenSequence(1, [5, 6, 7, 8, 9, 10], SamplingParams(temperature=0.5))
    second = TokenSequence(2, [3, 4], SamplingParams())
    first.num_computed, first.block_table = 5, [7, 2, 6]
    second.num_computed, second.block_table = 1, [4]
    batch.load_rows([Row(first, 1, (11, 12, 13)), Row(second, 1)], [21, 22])
    assert batch.ids[:5].tolist() == [10, 11, 12, 13, 4]
    assert batch.positions[:5].tolist() == [5, 6, 7, 8, 1]
    assert batch.context_lens.tolist() == [6, 7, 8, 9, 2, 0, 0, 0]
    assert batch.slot_mapping.tolist() == [9, 10, 11, 24, 17, -1, -1, -1]
    assert batch.block_tables[:4, :3].tolist() == [[7, 2, 6]] * 4
    assert batch.seeds[:5].tolist() == [21, 21, 21, 21, 22]
    assert batch.temperature[:5].tolist() == pytest.approx([0.5] * 4 + [0.7])


@pytest.mark.parametrize("num_steps", [6, 7])
def test_rows_read_the_states_that_the_rows_before_them_write(
    batch: DecodeBatch, num_steps: int
) -> None:
    """One sequence has slot 0."""
    batch.num_steps = num_steps
    first, second = (TokenSequence(i, [3, 4, 5], SamplingParams()) for i in (1, 2))
    for sequence in (first, second):
        sequence.num_computed, sequence.block_table = 2, [3, 4]
    first.state_slot, first.spare_slot, first.verified_slots = 5, 2, [2, 8, 7]
    second.state_slot, second.spare_slot = 0, 3
    batch.load_rows([Row(first, 1, (11, 12)), Row(second, 1)], [1, 2])
    reads, writes = batch.state_slots.flip(0) if num_steps % 2 else batch.state_slots
    assert reads.tolist() == [5, 2, 8, 0, -1, -1, -1, -1]
    assert writes.tolist() == [2, 8, 7, 3, -1, -1, -1, -1]
    batch.load([first], [1])
    assert batch.state_slots[:, 1:].eq(-1).all()


MODELS = ("llama", "mistral-window", "qwen3", "gemma2", "gpt2", "bloom", "phi3", "qwen3-moe-mixed")


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    tiny.make(request.param, path)
    return path


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


def gpu_engine(folder: Path, cubins: Path, **config: Any) -> Engine:
    settings = {"device": "cuda", "dtype": "float32", "block_size": tiny.BLOCK_SIZE, **config}
    return build_engine(folder, EngineConfig(**settings), cubins=cubins)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        replace(GREEDY, temperature=1.0, seed=5),
        replace(GREEDY, temperature=0.8, top_k=20, top_p=0.9, seed=2**63 + 5),
    ],
    ids=["greedy", "sampled", "filters"],
)
def test_verified_ids_are_those_of_plain_decoding(
    folder: Path, cubins: Path, params: SamplingParams
) -> None:
    """Alone and three together; logits of fp32 models differ in their last bits only."""
    prompts = {i: tiny.random_ids(3 + 9 * i, seed=i) for i in range(3)}
    plain = {
        i: tiny.run(gpu_engine(folder, cubins), {i: p}, params)[0][i] for i, p in prompts.items()
    }
    engine = use_oracle(gpu_engine(folder, cubins), plain, most=15)
    assert engine.graphs.verification is not None
    verified = replace(params, speculate="auto")
    for key, prompt in prompts.items():
        ids, ends = tiny.run(engine, {key: prompt}, verified)
        assert ids[key] == plain[key]
        assert ends[key].speculated.num_accepted > 8
    ids, _ = tiny.run(use_oracle(gpu_engine(folder, cubins), plain, most=4), prompts, verified)
    assert ids == plain


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int5"])
def test_verified_rows_read_a_quantized_cache(tmp_path: Path, cubins: Path, kv_dtype: str) -> None:
    tiny.make("llama-wide-heads", tmp_path, **({"head_dim": 64} if kv_dtype == "int5" else {}))
    config = {"dtype": "bfloat16", "kv_dtype": kv_dtype}
    prompt = {1: tiny.random_ids(20, seed=5)}
    plain, _ = tiny.run(gpu_engine(tmp_path, cubins, **config), prompt, GREEDY)
    engine = use_oracle(gpu_engine(tmp_path, cubins, **config), plain, most=7)
    ids, ends = tiny.run(engine, prompt, replace(GREEDY, speculate="auto"))
    # Rounding to bf16 may decide between two ids with nearly equal logits.
    assert ids[1][:10] == plain[1][:10]
    assert ends[1].speculated.num_accepted > 5


@pytest.mark.gpu
def test_an_answer_that_loops_is_verified_between_async_steps(folder: Path, cubins: Path) -> None:
    """With the product's own proposer; canceled and batched with an answer without proposals."""
    loop = [5, 6, 7, 8, 9, 10, 11, 12] * 6
    params = replace(GREEDY, max_tokens=60)
    prompts = {1: loop, 2: tiny.random_ids(30, seed=2)}
    plain, _ = tiny.run(gpu_engine(folder, cubins), prompts, params)
    engine = gpu_engine(folder, cubins)
    ids, _ = tiny.run(engine, prompts, replace(params, speculate="auto"))
    assert ids == plain
    assert engine.allocator.num_used == 0
