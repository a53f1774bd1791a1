"""Speculation for models with states: the ids of plain decoding, and exact states after it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Finished, Tokens
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.generation.speculation import draft_proposer, speculation_of
from swiftchat.engine.gpu.steps.graphs import Graphs
from swiftchat.engine.model.memory import plan_shard_cache
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.speculation.speculation import Speculation
from swiftchat.engine.speculation.step_costs import StepCosts
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import Shard
from tests.support import reference, tiny
from tests.support.speculation import use_oracle
from tests.support.thread_communicator import ThreadCommunicator, run_ranks

OFF = SamplingParams(temperature=0, max_tokens=16, speculate="off")
PROMPT = tiny.random_ids(9, seed=4)
# One of each kind of mixer, two of which have no native kernels.
KINDS = ("lfm2", "qwen3_next", "kimi_linear", "mamba2", "jamba")
# Also layers without a mixer, mixers beside attention, and convolutions of q, k and v apart.
TYPES = (*KINDS, "nemotron_h", "falcon_h1", "olmo_hybrid")
CONTROLS = {
    "greedy": OFF,
    "sampled": replace(OFF, temperature=0.9, seed=5),
    "penalties": replace(
        OFF, temperature=0.8, seed=6, repeat_penalty=1.3, dry_multiplier=0.8, no_repeat_ngram=3
    ),
}
_FOLDERS: dict[str, Path] = {}
_PLAIN: dict[Path, dict[int, list[int]]] = {}  # the answers of random schedules


@pytest.fixture
def folder_of(tmp_path_factory: pytest.TempPathFactory):
    def make(model_type: str) -> Path:
        if model_type not in _FOLDERS:
            _FOLDERS[model_type] = tmp_path_factory.mktemp(model_type)
            reference.copy_reference(model_type, _FOLDERS[model_type])
        return _FOLDERS[model_type]

    return make


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, folder_of) -> Path:
    return folder_of(request.param)


@tiny.each_backend
@pytest.mark.parametrize(
    ("model_type", "control"),
    [
        *((model_type, "greedy") for model_type in TYPES),
        *((model_type, control) for model_type in KINDS for control in ("sampled", "penalties")),
    ],
)
def test_ids_and_logprobs_equal_those_of_plain_decoding(
    folder_of, model_type: str, control: str, native: bool
) -> None:
    folder, params = folder_of(model_type), replace(CONTROLS[control], logprobs=2)
    plain, logprobs = tiny.logprobs(tiny.engine(folder, kernels=native), PROMPT, params)
    engine = use_oracle(tiny.engine(folder, kernels=native), {1: plain})
    ids, found = tiny.logprobs(engine, PROMPT, replace(params, speculate="auto"))
    assert ids == plain
    # More tokens than the answer: some were proposed and rejected.
    assert engine.stats()["computed_tokens"] > len(PROMPT) + 16
    if "torch" not in engine.info.device:
        assert found == logprobs
    else:  # torch's sums depend on the number of rows
        expected = [one.logprob for one in logprobs]
        assert [one.logprob for one in found] == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("model_type", ["lfm2", "qwen3_next", "olmo_hybrid", "mamba2", "jamba"])
def test_native_logits_are_bitwise_those_of_single_rows(folder_of, model_type: str) -> None:
    """So verified ids cannot differ from those of plain decoding."""
    folder, tokens = folder_of(model_type), tiny.random_ids(9, seed=3) * 4
    for dtype in (torch.float32, torch.bfloat16):
        bench = tiny.Bench(folder, native=True, dtype=dtype)
        bench.logits(tokens[:-9])
        sequence = TokenSequence(1, tokens[:-8], SamplingParams())
        bench.scheduler.add(sequence)
        sequence.proposed = tuple(tokens[-8:])
        step = bench.scheduler.schedule()
        bench.decoder.ops.copy_blocks(bench.cache, step.copies)
        bench.cache.states.copy(step.state_copies)
        (row,) = step.rows
        assert len(row.proposed) == 8
        together = bench.decoder.forward(Batch.pack([row], tiny.BLOCK_SIZE), bench.cache)
        assert together is not None
        alone = tiny.Bench(folder, native=True, dtype=dtype).logits(tokens)
        assert torch.equal(together, alone[-9:])


@tiny.each_backend
def test_turns_and_undo_after_accepted_tokens_are_exact(folder: Path, native: bool) -> None:
    def engine() -> Engine:
        return tiny.engine(folder, kernels=native, chunk_tokens=7)

    plain, _ = tiny.run(engine(), {1: PROMPT}, OFF)
    # An answer may end within accepted tokens: at a length, or at a token.
    other = engine()  # it verifies nothing
    for end in (11, 16):
        stop = replace(OFF, stop_ids=(plain[1][end],)) if end < 16 else OFF
        limit = replace(OFF, max_tokens=end)
        for params in dict.fromkeys((stop, limit)):  # once if equal
            verified = use_oracle(engine(), plain)
            ids, ends = tiny.run(verified, {1: PROMPT}, replace(params, speculate="auto"))
            assert ids[1] == plain[1][: len(ids[1])]
            if len(ids[1]) > 9:
                assert ends[1].speculated is not None and ends[1].speculated.num_accepted > 0
            for length, shortened in ((5, 0), (3, 2)):  # a further turn, an edited one
                answer = ids[1][: len(ids[1]) - shortened]
                turn = PROMPT + answer + tiny.random_ids(length, seed=8)
                expected, _ = tiny.run(other, {2: turn}, replace(OFF, max_tokens=9))
                found, turn_ends = tiny.run(verified, {2: turn}, replace(OFF, max_tokens=9))
                assert found == expected
                if not shortened:
                    assert turn_ends[2].cached_tokens >= len(PROMPT) + len(answer) - 9


def test_batches_of_sequences_share_the_states_of_a_step(folder: Path) -> None:
    prompts = {i: tiny.random_ids(1 + 6 * i, seed=i) for i in range(3)}
    plain, _ = tiny.run(tiny.engine(folder), prompts, OFF)
    engine = use_oracle(tiny.engine(folder), plain)
    ids, ends = tiny.run(engine, prompts, replace(OFF, speculate="auto"))
    assert ids == plain
    for end in ends.values():
        assert isinstance(end, Finished) and end.speculated is not None
        assert 0 < end.speculated.num_accepted < end.speculated.num_proposed


@given(
    st.integers(12, 40),
    st.integers(1, 8),
    st.integers(2, 9),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), max_size=2),
)
@settings(max_examples=10, deadline=None)
def test_random_schedules_with_preemption_and_cancel(
    num_blocks: int, most: int, num_states: int, cancels: list[tuple[int, int]]
) -> None:
    """With few slots, so that snapshots are dropped and proposals have none."""
    folder = _FOLDERS["qwen3_next"]
    prompts = {i: tiny.random_ids(7 + 9 * i, seed=i) for i in (1, 2, 3)}
    params = replace(OFF, max_tokens=12)
    if folder not in _PLAIN:
        one = tiny.engine(folder)
        _PLAIN[folder] = {i: tiny.run(one, {i: p}, params)[0][i] for i, p in prompts.items()}
    plain = _PLAIN[folder]
    engine = tiny.engine(
        folder, ctx_size_tokens=48, cache_tokens=num_blocks * tiny.BLOCK_SIZE, chunk_tokens=16
    )
    states = type(engine.scheduler.states)
    engine.scheduler.use_states(
        states(num_states, tiny.BLOCK_SIZE, num_verified=(num_states - 1) // 2)
    )
    use_oracle(engine, plain, most)
    for key, prompt in prompts.items():
        engine.add(key, prompt, replace(params, speculate="auto"))
    ids: dict[int, list[int]] = {key: [] for key in prompts}
    canceled, num_steps = set[int](), 0
    while engine.has_work:
        for step, key in cancels:
            if step == num_steps:
                engine.cancel(key)
                canceled.add(key)
        for key, event in engine.step():
            if isinstance(event, Tokens):
                ids[key] += event.ids
        engine.scheduler.check_integrity()
        num_steps += 1
    for key, expected in plain.items():
        assert ids[key] == expected[: len(ids[key])]
        assert key in canceled or len(ids[key]) == 12


@pytest.fixture(autouse=True)
def _made_before_hypothesis(folder_of) -> None:
    folder_of("qwen3_next")


@pytest.mark.parametrize("folder", ["qwen3_next", "mamba2", "jamba"], indirect=True)
def test_ranks_accept_the_same_tokens(folder: Path) -> None:
    plain, _ = tiny.run(tiny.engine(folder), {1: PROMPT}, OFF)
    config = EngineConfig(device="cpu", dtype="float32", block_size=tiny.BLOCK_SIZE, tp=2)
    second = PROMPT + plain[1] + tiny.random_ids(5, seed=8)
    expected, _ = tiny.run(tiny.engine(folder), {2: second}, OFF)

    def run(rank: int, ranks: ThreadCommunicator) -> tuple[list[int], list[int], int]:
        engine = use_oracle(build_engine(folder, config, ranks=ranks), plain)
        ids, ends = tiny.run(engine, {1: PROMPT}, replace(OFF, speculate="auto"))
        turn, _ = tiny.run(engine, {2: second}, OFF)
        return ids[1], turn[2], ends[1].speculated.num_accepted

    first, other = run_ranks(2, run)
    assert first == other
    assert first[:2] == (plain[1], expected[2]) and first[2] > 5


@pytest.mark.parametrize("folder", ["qwen3_next", "lfm2"], indirect=True)
def test_look_up_speeds_up_a_loop(folder: Path) -> None:
    """A model that can only choose among three ids repeats itself."""
    params = replace(OFF, max_tokens=120, logit_bias=((5, 50.0), (9, 50.0), (12, 50.0)))
    expected, _ = tiny.run(tiny.engine(folder), {1: PROMPT}, params)
    engine = tiny.engine(folder)
    engine.speculation = Speculation(StepCosts(0.05), 9, 256, measures=False)
    ids, ends = tiny.run(engine, {1: PROMPT}, replace(params, speculate="ngram"))
    assert ids == expected
    assert ends[1].speculated is not None and ends[1].speculated.num_accepted > 20


@pytest.mark.parametrize("folder", ["qwen3_next", "lfm2"], indirect=True)
def test_a_draft_model_proposes_tokens(folder: Path, tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    plain, _ = tiny.run(tiny.engine(folder), {1: PROMPT}, OFF)
    engine, draft = tiny.engine(folder), tiny.engine(tmp_path)
    proposer = draft_proposer(draft, engine.vocab_size)
    num_states = engine.scheduler.states.num_verified
    sizes = Graphs(), engine.ctx_size_tokens
    parts = (engine.decoder, *sizes, proposer, num_states)
    speculation = speculation_of(*parts, is_on_gpu=False)
    # Steps with proposed tokens cost no more than others.
    speculation.costs.slope, speculation._measures = 0.0, False
    engine.speculation = speculation
    ids, ends = tiny.run(engine, {1: PROMPT}, replace(OFF, speculate="draft"))
    assert ids == plain
    assert ends[1].speculated is not None and ends[1].speculated.proposer == "draft"


def test_the_engine_has_states_for_a_full_step(folder: Path) -> None:
    engine = tiny.engine(folder)
    assert engine.scheduler.states.num_verified == 8 and engine.speculation._max_rows == 9
    shard = Shard(Model.open(folder).config)
    plan = plan_shard_cache(EngineConfig(max_num_seqs=4), shard, torch.float32, 0, 10**9)
    assert plan.num_states == 4 + 16 + 8
