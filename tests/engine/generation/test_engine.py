"""The generation loop on a tiny model: batching, prefix reuse, cancel, limits; memory plans."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Finished, Prefill, Tokens
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.model.memory import plan_cache
from swiftchat.errors import BadModelFile, ContextOverflow, DeviceError, OutOfMemory, UsageError
from tests.support import tiny

GREEDY = SamplingParams(temperature=0, max_tokens=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny.make("llama", path)
    return path


def generate(engine: Engine, prompt: list[int], params: SamplingParams = GREEDY) -> list[int]:
    ids, _ = tiny.run(engine, {1: prompt}, params)
    return ids[1]


@tiny.each_backend
def test_batched_equals_alone(folder: Path, native: bool) -> None:
    prompts = {i: tiny.random_ids(1 + 13 * i, seed=i) for i in range(5)}
    alone = {
        i: generate(tiny.engine(folder, kernels=native), prompt) for i, prompt in prompts.items()
    }
    together, ends = tiny.run(tiny.engine(folder, kernels=native, chunk_tokens=16), prompts, GREEDY)
    assert together == alone
    assert {end.reason for end in ends.values()} == {"length"}


@tiny.each_backend
def test_preemption_in_a_small_cache_changes_no_token(folder: Path, native: bool) -> None:
    prompts = {i: tiny.random_ids(30, seed=i) for i in range(4)}
    alone = {
        i: generate(tiny.engine(folder, kernels=native), prompt) for i, prompt in prompts.items()
    }
    small = tiny.engine(folder, kernels=native, ctx_size_tokens=64, cache_tokens=72)
    together, _ = tiny.run(small, prompts, GREEDY)
    assert together == alone


@tiny.each_backend
def test_a_second_turn_prefills_only_new_tokens(folder: Path, native: bool) -> None:
    engine = tiny.engine(folder, kernels=native)
    first = tiny.random_ids(30)
    answer = generate(engine, first)
    second = first + answer + tiny.random_ids(9, seed=8)
    computed = engine.stats()["computed_tokens"]
    ids, ends = tiny.run(engine, {2: second}, GREEDY)
    assert ids[2] == generate(tiny.engine(folder, kernels=native), second)
    # The answer's last token was sampled but never computed, so it is new as well.
    assert ends[2].cached_tokens == len(first) + len(answer) - 1
    assert engine.stats()["computed_tokens"] - computed == 1 + 9 + len(ids[2]) - 1


@given(st.integers(0, 45), st.booleans())
@settings(max_examples=25, deadline=None)
def test_cancel_after_any_step_leaves_a_valid_cache(
    folder: Path, num_steps: int, other: bool
) -> None:
    engine = tiny.engine(folder, chunk_tokens=4)
    prompt = tiny.random_ids(40, seed=3)
    engine.add(1, prompt, SamplingParams(temperature=0, max_tokens=40))
    if other:
        engine.add(2, prompt[:11], GREEDY)
    generated: list[int] = []
    for _ in range(num_steps):
        for key, event in engine.step():
            if key == 1 and isinstance(event, Tokens):
                generated += event.ids
    engine.cancel(1)
    ends = [e for key, e in engine.step() if key == 1]
    assert isinstance(ends[-1], Finished) and ends[-1].reason == "interrupt"
    engine.scheduler.check_integrity()
    following = prompt + generated + tiny.random_ids(5, seed=9)
    expected = generate(tiny.engine(folder), following)
    ids, _ = tiny.run(engine, {3: following}, GREEDY)
    assert ids[3] == expected
    while engine.has_work:
        engine.step()
    assert engine.allocator.num_used == 0


def test_cancel_of_an_ended_generation_does_nothing(folder: Path) -> None:
    engine = tiny.engine(folder)
    generate(engine, [5, 6])
    engine.cancel(1)
    assert not engine.has_work


def test_a_stop_id_ends_the_answer_and_is_not_returned(folder: Path) -> None:
    ids = generate(tiny.engine(folder), [5, 6, 7])
    stop = SamplingParams(temperature=0, max_tokens=20, stop_ids=(ids[4],))
    got, ends = tiny.run(tiny.engine(folder), {1: [5, 6, 7]}, stop)
    assert got[1] == ids[: ids.index(ids[4])]
    assert ends[1].reason == "stop"
    assert ends[1].completion_tokens == len(got[1])


def test_max_tokens_0_generates_nothing(folder: Path) -> None:
    ids, ends = tiny.run(tiny.engine(folder), {1: [5]}, SamplingParams(max_tokens=0))
    assert ids[1] == [] and ends[1].reason == "length"


def test_the_context_is_filled_exactly(folder: Path) -> None:
    engine = tiny.engine(folder, ctx_size_tokens=30)
    unlimited = SamplingParams(temperature=0)
    ids, ends = tiny.run(engine, {1: tiny.random_ids(29)}, unlimited)
    assert len(ids[1]) == 1 and ends[1].reason == "length"
    for length in (30, 31):
        with pytest.raises(ContextOverflow, match=f"{length} tokens"):
            engine.add(2, tiny.random_ids(length), unlimited)
    assert not engine.has_work


@pytest.mark.parametrize("prompt", [[], [-1], [tiny.VOCAB_SIZE], [3, 10**12]])
def test_invalid_prompts_raise(folder: Path, prompt: list[int]) -> None:
    engine = tiny.engine(folder)
    with pytest.raises(UsageError):
        engine.add(1, prompt, GREEDY)
    assert not engine.has_work


@tiny.each_backend
def test_a_seed_gives_the_same_answer_alone_and_batched(folder: Path, native: bool) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=20, seed=42)
    alone, ends = tiny.run(tiny.engine(folder, kernels=native), {1: [5, 6, 7]}, params)
    many, _ = tiny.run(tiny.engine(folder, kernels=native), {1: [5, 6, 7], 2: [8, 9]}, params)
    assert many[1] == alone[1]
    assert ends[1].seed == 42


def test_the_reported_seed_repeats_the_answer(folder: Path) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=20)
    ids, ends = tiny.run(tiny.engine(folder), {1: [5, 6]}, params)
    again = SamplingParams(temperature=1.0, max_tokens=20, seed=ends[1].seed)
    assert generate(tiny.engine(folder), [5, 6], again) == ids[1]


@pytest.mark.fault(19)
def test_non_finite_logits_end_the_generation_with_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny.engine(folder)
    forward = engine.decoder.forward
    engine.add(1, [5], GREEDY)
    with monkeypatch.context() as patch:
        patch.setattr(engine.decoder, "forward", lambda *args: forward(*args) * torch.nan)
        [(key, error)] = engine.step()
    assert key == 1 and isinstance(error, BadModelFile)
    assert engine.allocator.num_used == 0
    assert len(generate(engine, [9, 8])) == 20


@pytest.mark.fault(17)
def test_pending_events_survive_a_failed_step(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tiny.engine(folder)
    engine.add(1, [5], GREEDY)
    engine.add(2, [6], GREEDY)
    engine.cancel(1)

    def fails(*args: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(engine.decoder, "forward", fails)
        engine.step()
    [(key, error)] = engine.abort_all(OutOfMemory("no memory"))
    assert key == 2 and isinstance(error, OutOfMemory)
    [(key, event)] = engine.step()
    assert key == 1 and isinstance(event, Finished) and event.reason == "interrupt"
    assert engine.allocator.num_used == 0
    assert len(generate(engine, [9, 8])) == 20


@pytest.mark.fault(50)
def test_prefill_progress_counts_up_to_the_prompt(folder: Path) -> None:
    engine = tiny.engine(folder, chunk_tokens=8)
    engine.add(1, tiny.random_ids(30), GREEDY)
    events = [event for _ in range(4) for _, event in engine.step()]
    assert events[:3] == [Prefill(8, 30), Prefill(16, 30), Prefill(24, 30)]
    assert isinstance(events[3], Tokens)


def test_500_start_and_cancel_cycles_leak_no_block(folder: Path) -> None:
    engine = tiny.engine(folder)
    for i in range(500):
        engine.add(i, tiny.random_ids(1 + i % 37, seed=i), GREEDY)
        for _ in range(i % 4):
            engine.step()
        engine.cancel(i)
        engine.step()
    assert engine.allocator.num_used == 0
    engine.scheduler.check_integrity()
    assert generate(engine, [5, 6]) == generate(tiny.engine(folder), [5, 6])


def test_a_missing_gpu_is_an_error_with_a_hint(folder: Path) -> None:
    with pytest.raises(DeviceError, match="cuda:99"):
        tiny.engine(folder, device="cuda:99")


PLAN = {"max_context_tokens": 8192, "bytes_per_token": 1000, "weights_bytes": 10**9}


def test_plan_uses_the_full_context_if_it_fits() -> None:
    plan = plan_cache(EngineConfig(), **PLAN, available_bytes=10**10)
    assert plan.ctx_size_tokens == 8192 and plan.num_blocks == 2 * 8192 // 64


def test_plan_shrinks_the_default_context_to_fit() -> None:
    plan = plan_cache(EngineConfig(), **PLAN, available_bytes=1_180_000_000)
    assert 256 <= plan.ctx_size_tokens < 8192
    assert plan.num_blocks * 64 >= plan.ctx_size_tokens


@pytest.mark.fault(16)
def test_plan_error_names_the_largest_context_that_fits() -> None:
    with pytest.raises(OutOfMemory, match="GB needed") as caught:
        plan_cache(EngineConfig(ctx_size_tokens=8192), **PLAN, available_bytes=1_180_000_000)
    fitting = int(caught.value.hint.split()[-1])
    plan_cache(EngineConfig(ctx_size_tokens=fitting), **PLAN, available_bytes=1_180_000_000)


@pytest.mark.fault(16)
def test_plan_raises_for_weights_that_do_not_fit() -> None:
    with pytest.raises(OutOfMemory, match=r"weights 1\.00 GB"):
        plan_cache(EngineConfig(), **PLAN, available_bytes=10**9)


def test_plan_raises_beyond_the_context_of_the_model() -> None:
    with pytest.raises(UsageError, match="8192"):
        plan_cache(EngineConfig(ctx_size_tokens=8193), **PLAN, available_bytes=10**10)


def test_chosen_chunks_are_not_changed(folder: Path) -> None:
    for chunk_tokens, expected in ((100, 100), (None, 64)):
        engine = tiny.engine(folder, chunk_tokens=chunk_tokens)
        engine.add(1, tiny.random_ids(200), GREEDY)
        engine.step()
        assert engine.stats()["computed_tokens"] == expected


@pytest.fixture
def poisoned(tmp_path: Path) -> Callable[[str, int, int, float], Path]:
    """Makes a model with this value at a row and a column of a weight."""

    def make(name: str, row: int, column: int, value: float) -> Path:
        tiny.make("llama", tmp_path)
        file = tmp_path / "model.safetensors"
        weights = load_file(file)
        weights[name][row, column] = value
        save_file(weights, file, {"format": "pt"})
        return tmp_path

    return make


@pytest.mark.fault(19)
@pytest.mark.parametrize("kernels", [False, True])
def test_the_first_layer_that_is_not_finite_is_named(
    poisoned: Callable[..., Path], kernels: bool
) -> None:
    folder = poisoned("model.layers.1.self_attn.k_proj.weight", 5, 7, math.nan)
    ends = tiny.run(tiny.engine(folder, kernels=kernels), {1: [5, 6]}, GREEDY)[1]
    assert isinstance(ends[1], BadModelFile) and ends[1].exit_code == 7
    assert "not finite" in ends[1].message and "from layer 1 on" in ends[1].message


@pytest.mark.fault(19)
def test_only_the_poisoned_token_ends_an_answer(poisoned: Callable[..., Path]) -> None:
    engine = tiny.engine(poisoned("model.embed_tokens.weight", 70, 3, math.inf))
    once = SamplingParams(temperature=0, max_tokens=1)
    ends = tiny.run(engine, {1: [70], 2: [71]}, once)[1]
    assert isinstance(ends[1], BadModelFile) and "from layer 0 on" in ends[1].message
    assert isinstance(ends[2], Finished)
