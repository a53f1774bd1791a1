"""Models with states: reuse, forks, preemption and failures change no token.

Expected ids and scores are those of transformers on the same weights. Tolerance of scores 1e-4
relative: sums of fp32 logprobs in another order.
"""

from pathlib import Path

import pytest
import torch
import transformers

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Beam, Tokens
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.model.memory import plan_shard_cache
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.errors import OutOfMemory, UsageError
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import Shard, shard_of
from tests.support import reference, tiny

GREEDY = SamplingParams(temperature=0, max_tokens=6)
PROMPT = tiny.random_ids(22, seed=1)


@pytest.fixture(
    scope="module",
    # One of each mixer; Mamba-2 is beside attention.
    params=[
        "qwen3_next",
        "kimi_linear",
        "falcon_h1",
        "jamba",
        "minimax",
    ],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp(request.param)
    return folder, reference.make_reference(request.param, folder)


@torch.inference_mode()
def all_logits(model: transformers.PreTrainedModel, ids: list[int]) -> torch.Tensor:
    return model(torch.tensor([ids]), use_cache=False).logits[0]


def is_greedy(model: transformers.PreTrainedModel, prompt: list[int], answer: list[int]) -> bool:
    """Return whether each token of an answer is the most likely one after those before it."""
    assert len(answer) == GREEDY.max_tokens
    chosen = all_logits(model, [*prompt, *answer[:-1]])[len(prompt) - 1 :].argmax(-1)
    return chosen.tolist() == answer


def generate(engine: Engine, prompt: list[int]) -> tuple[list[int], int]:
    """Return the answer and the number of cached tokens."""
    ids, ends = tiny.run(engine, {1: prompt}, GREEDY)
    return ids[1], ends[1].cached_tokens


def test_rows_of_different_lengths_in_one_batch_equal_transformers(model) -> None:
    folder, expected = model
    bench = tiny.Bench(folder)
    prompts = {i: tiny.random_ids(length, seed=i) for i, length in enumerate((1, 2, 9, 22))}
    sequences = {i: TokenSequence(i, list(ids), SamplingParams()) for i, ids in prompts.items()}
    for sequence in sequences.values():
        bench.scheduler.add(sequence)
    found: dict[int, torch.Tensor] = {}
    for _ in range(4):  # some rows decode while others are prompts
        for i, logits in bench.step().items():
            exact = all_logits(expected, sequences[i].tokens)[-1]
            assert (logits - exact).abs().max() <= 1e-4 * exact.abs().max()
            sequences[i].tokens.append(int(exact.argmax()))
            found[i] = logits
    assert found.keys() == prompts.keys()


def test_turns_regeneration_and_undo_reuse_states(model) -> None:
    folder, expected = model
    engine = tiny.engine(folder, chunk_tokens=7)
    answer, cached = generate(engine, PROMPT)
    assert cached == 0 and is_greedy(expected, PROMPT, answer)
    second = PROMPT + answer + tiny.random_ids(9, seed=8)
    found, cached = generate(engine, second)
    # The answer's last token was sampled but never computed.
    assert cached == len(PROMPT) + len(answer) - 1 and is_greedy(expected, second, found)
    found, cached = generate(engine, second)
    assert cached == (len(second) - 1) // tiny.BLOCK_SIZE * tiny.BLOCK_SIZE
    assert is_greedy(expected, second, found)
    undone = PROMPT + answer + tiny.random_ids(5, seed=9)
    found, cached = generate(engine, undone)
    assert cached == len(PROMPT) + len(answer) - 1 and is_greedy(expected, undone, found)
    edited = [*PROMPT[:-1], PROMPT[-1] ^ 1, 7]
    found, cached = generate(engine, edited)
    assert cached == (len(PROMPT) - 1) // tiny.BLOCK_SIZE * tiny.BLOCK_SIZE
    assert is_greedy(expected, edited, found)
    early = PROMPT[:11] + tiny.random_ids(8, seed=10)  # there is no state in the middle
    found, cached = generate(engine, early)
    assert cached == 0 and is_greedy(expected, early, found)


def test_preemption_in_a_small_cache_changes_no_token(model) -> None:
    folder, expected = model
    prompts = {i: tiny.random_ids(20 + i, seed=i) for i in range(4)}
    small = tiny.engine(folder, ctx_size_tokens=32, cache_tokens=52, chunk_tokens=16)
    together, _ = tiny.run(small, prompts, GREEDY)
    assert together.keys() == prompts.keys()
    assert all(is_greedy(expected, prompt, together[i]) for i, prompt in prompts.items())


def test_answers_to_one_prompt_are_those_alone(model) -> None:
    folder, _ = model
    params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=6) for seed in range(3)]
    alone = [tiny.run(tiny.engine(folder), {1: PROMPT}, each)[0][1] for each in params]
    engine = tiny.engine(folder)
    found: dict[int, list[int]] = {key: [] for key in range(3)}
    for key, each in enumerate(params):
        engine.add(key, PROMPT, each)
    while engine.has_work:
        for key, event in engine.step():
            engine.scheduler.check_integrity()
            if isinstance(event, Tokens):
                found[key] += event.ids
    assert list(found.values()) == alone


def test_beams_have_the_scores_of_transformers(model) -> None:
    folder, expected = model
    engine = tiny.engine(folder)
    params = SamplingParams(temperature=0, beams=4, returned_beams=4, max_tokens=6)
    engine.add(1, PROMPT, params)
    beams: list[Beam] = []
    while engine.has_work:
        beams += [event for _, event in engine.step() if isinstance(event, Beam)]
        engine.scheduler.check_integrity()
    assert len(beams) == 4
    for beam in beams:
        logits = all_logits(expected, [*PROMPT, *beam.ids[:-1]])[len(PROMPT) - 1 :]
        score = float(logits.log_softmax(-1).gather(1, torch.tensor([beam.ids]).t()).sum())
        assert beam.score == pytest.approx(score / len(beam.ids), rel=1e-4)


def test_a_failed_step_leaves_no_state(model, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, expected = model
    engine = tiny.engine(folder)
    answer, _ = generate(engine, PROMPT)
    second = [*PROMPT, *answer, 5, 6]
    forward = engine.decoder.forward

    def fails(*args: object) -> None:
        forward(*args)  # the states have advanced
        raise MemoryError

    engine.add(2, second, GREEDY)
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(engine.decoder, "forward", fails)
        engine.step()
    engine.abort_all(OutOfMemory("no memory"))
    engine.scheduler.check_integrity()
    found, cached = generate(engine, second)
    assert cached == 0 and is_greedy(expected, second, found)


def test_a_sliding_context_equals_a_prompt_of_what_stays(model) -> None:
    folder, expected = model
    engine = tiny.engine(folder, ctx_size_tokens=28)
    params = SamplingParams(temperature=0, max_tokens=12, overflow_keep=4)
    ids, _ = tiny.run(engine, {1: PROMPT}, params)
    tokens = list(PROMPT)
    for found in ids[1]:
        assert found == int(all_logits(expected, tokens)[-1].argmax())
        tokens.append(found)
        if len(tokens) >= 28:
            del tokens[4 : 4 + (len(tokens) - 4 + 1) // 2]


def test_what_states_exclude_is_refused(model, tmp_path: Path) -> None:
    folder, _ = model
    config = Model.open(folder).config
    with pytest.raises(UsageError, match="pipeline parallelism"):
        shard_of(config, 1, 0, 0, 2)
    engine = build_engine(folder, EngineConfig(device="cpu"), kv_folder=tmp_path / "kv")
    assert not engine.store.has_tiers
    with pytest.raises(UsageError, match="soft prompts"):
        engine.tune(Tuning(soft_prompt="prompt"))


def test_the_memory_plan_has_room_for_states(model) -> None:
    folder, _ = model
    shard = Shard(Model.open(folder).config)
    plan = plan_shard_cache(EngineConfig(max_num_seqs=4), shard, torch.float32, 0, 10**9)
    assert plan.num_states == 4 + 16 + 8
    plan = plan_shard_cache(
        EngineConfig(max_num_seqs=4), shard, torch.float32, 0, 10**9, has_spares=True
    )
    assert plan.num_states == 2 * 4 + 16 + 8
    plan = plan_shard_cache(EngineConfig(max_num_seqs=9999), shard, torch.float32, 0, 10**7)
    assert 2 <= plan.num_states <= 10**6 // (4 * 3 * 48 * 2)
