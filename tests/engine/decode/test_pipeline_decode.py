"""Stages that replay their part of a decode step, on a device that is played with torch."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.comm.pipeline import GlooPipeline, SingleStage
from swiftchat.engine.decode.decode_batch import DecodeBatch
from swiftchat.engine.decode.graph_runner import GraphRunner
from swiftchat.engine.decode.pipeline_decode import PipelineDecode
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.load.dummy import dummy_weights
from swiftchat.engine.model.cuda_ops import CudaOps
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.sampling.sampler import not_finite_error, sample
from swiftchat.engine.schedule.batch import Batch, Span
from swiftchat.engine.schedule.scheduler import Row, Sequence, Step
from swiftchat.errors import BadModelFile, OutOfMemory
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import shard_of
from tests.engine.comm.test_pipeline import TWO, threads_in_turn
from tests.support import tiny
from tests.support.worker_processes import WIDE

SEEN = 1 << 30
GREEDY = SamplingParams(temperature=0, max_tokens=14)
PENALIZED = SamplingParams(
    temperature=0.9,
    top_k=20,
    top_p=0.9,
    repeat_penalty=1.3,
    presence_penalty=0.4,
    frequency_penalty=0.3,
    max_tokens=14,
    seed=11,
)

pytestmark = pytest.mark.timeout(120)


class PlayedStep:
    """A stage's part of a step, computed from what is in the lanes and the stream alone."""

    def __init__(self, engine: Engine, max_lanes: int = 3) -> None:
        self._decoder, self._cache = engine.decoder, engine.cache
        size = engine.config.block_size
        max_blocks = -(-engine.ctx_size_tokens // size)
        gpu = SimpleNamespace(device=torch.device("cpu"))
        self.lanes = DecodeBatch(gpu, max_lanes, max_blocks, size, engine.vocab_size)  # type: ignore[arg-type]
        self.lanes.max_lanes = max_lanes  # and no more: the rest is not replayed
        self.stream = torch.zeros(max_lanes, engine.decoder.config.hidden_size)
        self.drawn = torch.full((max_lanes,), -1, dtype=torch.int32)
        self.num_replays = self.num_moves = 0
        self.full = False

    def prepare(self, num_lanes: int) -> SimpleNamespace:
        assert num_lanes <= self.lanes.max_lanes
        if self.full:
            raise OutOfMemory("no room for a graph")
        return SimpleNamespace(replay=lambda: self._replay(num_lanes))

    def _replay(self, n: int) -> None:
        decoder, stages = self._decoder, self._decoder.stages
        plan = decoder.ops.plan(self._batch(n), self._cache)
        x = decoder.embedded(plan) if stages.is_first else self.stream[:n]
        normed = decoder.through_layers(plan, x, self._cache)
        self.stream[:n] = x
        if stages.is_last:
            logits = decoder.logits(plan, normed)
            for lane in range(n):
                self.drawn[lane] = self._draw(lane, logits[lane])
        self.num_replays += 1

    def move_on(self, sequences: list[Sequence]) -> None:
        """As `advance.cu` does it."""
        lanes, size = self.lanes, self.lanes.block_size
        for lane, sequence in enumerate(sequences):
            lanes.extend(lane, sequence)
            token = sequence.tokens[-1]
            lanes.counts[lane, token] += 1
            lanes.tokens[lane] = token
            position = int(lanes.positions[lane]) + 1
            lanes.positions[lane], lanes.context_lens[lane] = position, position + 1
            block = int(lanes.block_tables[lane, position // size])
            lanes.slots[lane] = block * size + position % size
        self.num_moves += 1

    def _batch(self, n: int) -> Batch:
        lanes = self.lanes
        lens, tables = lanes.context_lens[:n].tolist(), lanes.block_tables[:n].tolist()
        blocks = [
            table[: -(-length // lanes.block_size)]
            for length, table in zip(lens, tables, strict=True)
        ]
        spans = [Span(i, 1, lens[i], blocks[i]) for i in range(n)]
        return Batch(
            lanes.tokens[:n].tolist(),
            lanes.positions[:n].tolist(),
            lanes.slots[:n].tolist(),
            list(range(n)),
            spans,
            [],
        )

    def _draw(self, lane: int, logits: torch.Tensor) -> int:
        lanes, counts = self.lanes, self.lanes.counts[lane]
        repeat = float(lanes.repeat_penalty[lane])
        seen = torch.where(logits > 0, logits / repeat, logits * repeat)
        logits = torch.where(counts > 0, seen, logits)
        generated = counts & (SEEN - 1)
        logits = logits - lanes.frequency_penalty[lane] * generated
        logits = logits - lanes.presence_penalty[lane] * (generated > 0)
        params = SamplingParams(
            temperature=float(lanes.temperature[lane]),
            top_k=int(lanes.top_k[lane]),
            top_p=float(lanes.top_p[lane]),
            min_p=float(lanes.min_p[lane]),
        )
        tokens = [0] * int(lanes.context_lens[lane])
        try:
            return sample(logits, tokens, len(tokens), params, int(lanes.seeds[lane]))
        except BadModelFile:
            return -1


@pytest.fixture(autouse=True)
def nothing_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self.clone())
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)


def listing_gpu() -> Gpu:
    """An A100's numbers; no kernel is launched, as in `Gpu.collecting`."""
    gpu = object.__new__(Gpu)
    gpu.device, gpu.num_sms, gpu.arch = torch.device("cpu"), 108, "sm_80"
    gpu.block_shared_bytes, gpu.sm_shared_bytes = 163 * 1024, 164 * 1024
    gpu.has_dependent_launch = gpu.has_copy_engine = False
    return gpu


def kernels_of_a_step(
    config: ModelConfig, stage: int, num_stages: int, num_lanes: int
) -> list[Any]:
    """What a stage launches in its graph, in turn; shapes and dtypes are checked as always."""
    device, gpu = torch.device("cpu"), listing_gpu()
    share = shard_of(config, 1, 0, stage, num_stages)
    weights = dummy_weights(config, torch.bfloat16, device, share=share)
    ops = CudaOps(gpu, share, 256, 32)
    stages: Any = SimpleNamespace(
        size=num_stages, is_first=stage == 0, is_last=stage == num_stages - 1
    )
    decoder = Decoder(share.local_config, weights, ops, None, stages)
    cache = KVCache(share.local_config, 64, 4, torch.bfloat16, device, heads_first=True)
    step = GraphRunner(decoder, ops, cache, DecodeBatch(gpu, 32, 64, 4, config.vocab_size))
    with gpu.collecting() as specs:
        step.run(num_lanes)
    return [spec.key for spec in specs]


@pytest.mark.parametrize(
    ("name", "num_lanes"), [("gemma2", 2), ("gemma2", 20), ("gpt2", 1), ("mixtral", 1)]
)
def test_the_stages_launch_the_kernels_of_one(name: str, num_lanes: int, tmp_path: Path) -> None:
    tiny.make(name, tmp_path, **WIDE)
    config = Model.open(tmp_path).config
    whole = kernels_of_a_step(config, 0, 1, num_lanes)
    assert whole.pop() == ("advance", ())  # stages do it when all know the tokens
    for num_stages in (2, 3):
        parts = [kernels_of_a_step(config, i, num_stages, num_lanes) for i in range(num_stages)]
        assert all(parts) and [kernel for part in parts for kernel in part] == whole


def on_stages(folder: Path, num_stages: int, run, **config):
    """What run(stage, engine, step) returns on every stage; all replay what they can."""
    store = torch.distributed.HashStore()

    def of_stage(stage: int):
        stages = GlooPipeline(store, stage, num_stages, 60)
        settings = {"pp": num_stages, "cache_tokens": 256, **config}
        engine = build_engine(folder, replace(TWO, **settings), stages=stages)
        step = PlayedStep(engine)
        engine.graph_decode = PipelineDecode(step, stages)  # type: ignore[arg-type]
        return run(stage, engine, step)

    with threads_in_turn(), ThreadPoolExecutor(num_stages) as pool:
        return list(pool.map(of_stage, range(num_stages)))


def prompts(*lengths: int) -> dict[int, list[int]]:
    return {i: tiny.random_ids(length, seed=i) for i, length in enumerate(lengths)}


def nothing_else(sequence: Sequence) -> None:
    return


def given_other_blocks(sequence: Sequence) -> None:
    sequence.block_table = list(sequence.block_table)


def computed_without(sequence: Sequence) -> None:
    sequence.num_computed += 1
    sequence.tokens.append(8)


@pytest.mark.parametrize(
    ("between", "moves_on"),
    [(nothing_else, True), (given_other_blocks, False), (computed_without, False)],
)
def test_lanes_are_loaded_anew_unless_one_token_came(between, moves_on: bool) -> None:
    calls: list[str] = []
    step = SimpleNamespace(
        lanes=SimpleNamespace(max_lanes=4, load=lambda *_: calls.append("load")),
        prepare=lambda n: SimpleNamespace(replay=lambda: None),
        move_on=lambda _: calls.append("move on"),
        stream=torch.zeros(4, 8),
        drawn=torch.tensor([7, 0, 0, 0]),
    )
    decode = PipelineDecode(step, SingleStage())  # type: ignore[arg-type]
    sequence = Sequence(1, [5, 6], GREEDY)
    sequence.num_computed, sequence.block_table = 1, [3]
    assert decode.launch(Step([Row(sequence, 1)], []), [1])
    assert decode.is_in_flight and decode.collect() == [(sequence, 7)] and not decode.is_in_flight
    sequence.num_computed += 1
    sequence.tokens.append(7)
    between(sequence)
    assert decode.launch(Step([Row(sequence, 1)], []), [1])
    assert calls == ["load", "move on" if moves_on else "load"]


@pytest.mark.parametrize("name", ["gemma2", "opt-350m"])
def test_replayed_stages_answer_as_one(name: str, tmp_path: Path) -> None:
    """Alone, and together with ends at different times, more than there are lanes included."""
    tiny.make(name, tmp_path)
    asked = [
        (prompts(5), GREEDY),
        (prompts(5), PENALIZED),
        (prompts(1, 14, 27, 30), PENALIZED),
        (prompts(3, 8), replace(GREEDY, logprobs=2)),  # goes without, and so does
        (prompts(6), GREEDY),  # the end of a prompt before this is replayed
    ]

    def run(stage: int, engine: Engine, step: PlayedStep) -> list[object]:
        found = [tiny.run(engine, *each)[0] for each in asked]
        assert step.num_moves > 3 * 12  # of four answers together only the last steps
        assert step.num_replays - step.num_moves < 8
        return [found, step.num_replays, engine.allocator.num_used]

    one = tiny.engine(tmp_path, chunk_tokens=16, cache_tokens=256)
    expected = [tiny.run(one, *each)[0] for each in asked]
    found = on_stages(tmp_path, 3, run)
    assert found == [[expected, found[0][1], 0]] * 3


def test_a_sequence_that_gave_way_is_found_again(tmp_path: Path) -> None:
    """Its blocks are others then; what the lanes know of the old ones is of no use."""
    tiny.make("llama", tmp_path)
    params = replace(PENALIZED, max_tokens=30)
    tight = {"cache_tokens": 88, "ctx_size_tokens": 60}

    def run(stage: int, engine: Engine, step: PlayedStep) -> dict[int, list[int]]:
        ids = tiny.run(engine, prompts(20, 21, 22), params)[0]
        assert step.num_replays > step.num_moves > 20
        return ids

    expected = tiny.run(tiny.engine(tmp_path), prompts(20, 21, 22), params)[0]
    assert on_stages(tmp_path, 2, run, **tight) == [expected] * 2


def test_a_stage_without_room_for_a_graph_computes_beside_the_others(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)

    def run(stage: int, engine: Engine, step: PlayedStep) -> list[dict[int, list[int]]]:
        found = []
        for full in (None, 1, 0, 2):
            step.full, before = stage == full, step.num_replays
            found.append(tiny.run(engine, prompts(9, 4), PENALIZED)[0])
            assert (step.num_replays == before) == step.full
        return found

    expected = tiny.run(tiny.engine(tmp_path), prompts(9, 4), PENALIZED)[0]
    assert on_stages(tmp_path, 3, run) == [[expected] * 4] * 3


def test_what_the_last_graph_cannot_choose_from_fails_on_all(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)

    def run(stage: int, engine: Engine, step: PlayedStep) -> object:
        engine.add(1, [5, 6, 7], GREEDY)
        ends = [event for _ in range(3) for _, event in engine.step()]
        if stage == 1:
            engine.decoder.weights.lm_head.fill_(torch.nan)
        while engine.has_work:
            ends += [event for _, event in engine.step()]
        assert step.num_replays > 2
        return ends[-1]

    for end in on_stages(tmp_path, 2, run):
        assert isinstance(end, BadModelFile) and end.message == not_finite_error().message
