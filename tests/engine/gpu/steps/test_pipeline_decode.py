"""Pipeline stages that replay their part of a decode step, with graphs simulated in torch."""

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
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.gpu.inputs.decode_batch import DecodeBatch
from swiftchat.engine.gpu.linear.factory import KernelWeights
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.gpu.steps.decode_graphs import DecodeGraphs
from swiftchat.engine.gpu.steps.graphs import Graphs
from swiftchat.engine.gpu.steps.pipeline_decode import PipelineDecode
from swiftchat.engine.load.dummy import dummy_weights
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.sampling.sampler import NOT_FINITE, sample, sampling_error
from swiftchat.engine.schedule.batch import Batch, Span
from swiftchat.engine.schedule.sequence import Row, Step, TokenSequence
from swiftchat.engine.steps.runner import SampledStep, StepInputs
from swiftchat.errors import BadModelFile, OutOfMemory
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import shard_of
from tests.engine.comm.test_pipeline import TWO
from tests.support import tiny
from tests.support.thread_communicator import frequent_thread_switches
from tests.support.worker_processes import WIDE

SEEN = 1 << 30
GREEDY = SamplingParams(temperature=0, max_tokens=14, speculate="off")
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


class FakeGraphs:
    """Computes a stage's part of a step from the decode batch and the residual stream alone."""

    def __init__(self, engine: Engine, max_rows: int = 3) -> None:
        self._decoder, self._cache = engine.decoder, engine.cache
        size = engine.config.block_size
        max_blocks = -(-engine.ctx_size_tokens // size)
        gpu = SimpleNamespace(device=torch.device("cpu"))
        self.batch = DecodeBatch(gpu, max_rows, max_blocks, size, engine.vocab_size)  # type: ignore[arg-type]
        self.batch.max_rows = max_rows  # without padding: more rows are not replayed
        self.residual = torch.zeros(max_rows, engine.decoder.config.hidden_size)
        self.sampled = torch.full((max_rows,), -1, dtype=torch.int32)
        self.num_replays = self.num_appends = 0
        self.out_of_memory = False

    def graph(self, num_rows: int) -> SimpleNamespace:
        assert num_rows <= self.batch.max_rows
        if self.out_of_memory:
            raise OutOfMemory("no memory for a graph")
        return SimpleNamespace(replay=lambda: self._replay(num_rows))

    def _replay(self, n: int) -> None:
        decoder, stages = self._decoder, self._decoder.stages
        plan = decoder.ops.plan(self._packed_batch(n), self._cache)
        x = decoder.embed(plan) if stages.is_first else self.residual[:n]
        normed = decoder.forward_layers(plan, x, self._cache)
        self.residual[:n] = x
        if stages.is_last:
            logits = decoder.logits(plan, normed)
            for row in range(n):
                self.sampled[row] = self._sample(row, logits[row])
        self.num_replays += 1

    def append_tokens(self, sequences: list[TokenSequence]) -> None:
        """As `advance.cu` does."""
        batch, size = self.batch, self.batch.block_size
        batch.update_block_tables(sequences)
        for row, sequence in enumerate(sequences):
            token = sequence.tokens[-1]
            batch.counts[row, token] += 1
            batch.ids[row] = token
            position = int(batch.positions[row]) + 1
            batch.positions[row], batch.context_lens[row] = position, position + 1
            block = int(batch.block_tables[row, position // size])
            batch.slot_mapping[row] = block * size + position % size
        self.num_appends += 1

    def _packed_batch(self, n: int) -> Batch:
        batch = self.batch
        lens, tables = batch.context_lens[:n].tolist(), batch.block_tables[:n].tolist()
        blocks = [
            table[: -(-length // batch.block_size)]
            for length, table in zip(lens, tables, strict=True)
        ]
        spans = [Span(i, 1, lens[i], blocks[i]) for i in range(n)]
        return Batch(
            batch.ids[:n].tolist(),
            batch.positions[:n].tolist(),
            batch.slot_mapping[:n].tolist(),
            list(range(n)),
            spans,
            [],
        )

    def _sample(self, row: int, logits: torch.Tensor) -> int:
        batch, counts = self.batch, self.batch.counts[row]
        repeat = float(batch.repeat_penalty[row])
        seen = torch.where(logits > 0, logits / repeat, logits * repeat)
        logits = torch.where(counts > 0, seen, logits)
        generated = counts & (SEEN - 1)
        logits = logits - batch.frequency_penalty[row] * generated
        logits = logits - batch.presence_penalty[row] * (generated > 0)
        params = SamplingParams(
            temperature=float(batch.temperature[row]),
            top_k=int(batch.top_k[row]),
            top_p=float(batch.top_p[row]),
            min_p=float(batch.min_p[row]),
        )
        tokens = [0] * int(batch.context_lens[row])
        return sample(logits, tokens, len(tokens), params, int(batch.seeds[row]))


@pytest.fixture(autouse=True)
def no_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self.clone())
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)


def collecting_gpu() -> Gpu:
    """A `Gpu` with an A100's properties, for use under `Gpu.collecting`: it launches nothing."""
    gpu = object.__new__(Gpu)
    gpu.device, gpu.num_sms, gpu.arch = torch.device("cpu"), 108, "sm_80"
    gpu.block_shared_bytes, gpu.sm_shared_bytes = 163 * 1024, 164 * 1024
    gpu.has_dependent_launch = gpu.has_copy_engine = False
    return gpu


def kernels_of_a_step(config: ModelConfig, stage: int, num_stages: int, num_rows: int) -> list[Any]:
    """Keys of the kernels in a stage's graph, in order; the ops check shapes and dtypes."""
    device, gpu = torch.device("cpu"), collecting_gpu()
    shard = shard_of(config, 1, 0, stage, num_stages)
    kernels = LinearKernels(gpu, config.hidden_size)
    factory = KernelWeights(kernels)
    weights = dummy_weights(config, torch.bfloat16, device, shard=shard, factory=factory)
    ops = CudaOps(kernels, shard, 256, 32)
    stages: Any = SimpleNamespace(
        size=num_stages, is_first=stage == 0, is_last=stage == num_stages - 1
    )
    decoder = Decoder(shard.local_config, weights, ops, None, stages)
    cache = KVCache(shard.local_config, 64, 4, torch.bfloat16, device, heads_first=True)
    graphs = DecodeGraphs(decoder, ops, cache, DecodeBatch(gpu, 32, 64, 4, config.vocab_size))
    with gpu.collecting() as specs:
        graphs.launch_kernels(num_rows)
    return [spec.key for spec in specs]


@pytest.mark.parametrize(
    ("name", "num_rows"), [("gemma2", 2), ("gemma2", 20), ("gpt2", 1), ("mixtral", 1)]
)
def test_stages_launch_the_kernels_of_a_single_stage(
    name: str, num_rows: int, tmp_path: Path
) -> None:
    tiny.make(name, tmp_path, **WIDE)
    config = Model.open(tmp_path).config
    single = kernels_of_a_step(config, 0, 1, num_rows)
    assert single.pop() == ("advance", ())  # stages launch it after they exchanged the tokens
    for num_stages in (2, 3):
        parts = [kernels_of_a_step(config, i, num_stages, num_rows) for i in range(num_stages)]
        assert all(parts) and [kernel for part in parts for kernel in part] == single


def run_stages(folder: Path, num_stages: int, run, **config):
    """Return the results of run(stage, engine, graphs) of all stages."""
    store = torch.distributed.HashStore()

    def run_stage(stage: int):
        stages = GlooPipeline(store, stage, num_stages, 60)
        settings = {"pp": num_stages, "cache_tokens": 256, **config}
        engine = build_engine(folder, replace(TWO, **settings), stages=stages)
        graphs = FakeGraphs(engine)
        pipeline = PipelineDecode(graphs, stages)  # type: ignore[arg-type]
        engine.use_graphs(Graphs(pipeline=pipeline))
        return run(stage, engine, graphs)

    with frequent_thread_switches(), ThreadPoolExecutor(num_stages) as pool:
        return list(pool.map(run_stage, range(num_stages)))


def prompts(*lengths: int) -> dict[int, list[int]]:
    return {i: tiny.random_ids(length, seed=i) for i, length in enumerate(lengths)}


def nothing(sequence: TokenSequence) -> None:
    return


def new_block_table(sequence: TokenSequence) -> None:
    sequence.block_table = list(sequence.block_table)


def another_token(sequence: TokenSequence) -> None:
    sequence.num_computed += 1
    sequence.tokens.append(8)


@pytest.mark.parametrize(
    ("between", "appends"),
    [(nothing, True), (new_block_table, False), (another_token, False)],
)
def test_rows_are_reloaded_unless_each_has_one_more_token(between, appends: bool) -> None:
    calls: list[str] = []
    graphs = SimpleNamespace(
        batch=SimpleNamespace(max_rows=4, load=lambda *_: calls.append("load")),
        graph=lambda n: SimpleNamespace(replay=lambda: None),
        append_tokens=lambda _: calls.append("append"),
        residual=torch.zeros(4, 8),
        sampled=torch.tensor([7, 0, 0, 0]),
    )
    decode = PipelineDecode(graphs, SingleStage())  # type: ignore[arg-type]
    sequence = TokenSequence(1, [5, 6], GREEDY)
    sequence.num_computed, sequence.block_table = 1, [3]
    row = Row(sequence, 1)
    assert decode.compute(StepInputs(Step([row], []), [1], 4)) == SampledStep([row], [[7]])
    sequence.num_computed += 1
    sequence.tokens.append(7)
    between(sequence)
    assert decode.compute(StepInputs(Step([Row(sequence, 1)], []), [1], 4)) is not None
    assert calls == ["load", "append" if appends else "load"]


@pytest.mark.parametrize("name", ["gemma2", "opt-350m"])
def test_replayed_stages_answer_as_a_single_stage(name: str, tmp_path: Path) -> None:
    """Alone and batched, with different ends and with more sequences than rows."""
    tiny.make(name, tmp_path)
    requests = [
        (prompts(5), GREEDY),
        (prompts(5), PENALIZED),
        (prompts(1, 14, 27, 30), PENALIZED),
        # Logprobs are not replayed, and neither is the end of the prompt that follows.
        (prompts(3, 8), replace(GREEDY, logprobs=2)),
        (prompts(6), GREEDY),
    ]

    def run(stage: int, engine: Engine, graphs: FakeGraphs) -> list[object]:
        found = [tiny.run(engine, *request)[0] for request in requests]
        assert graphs.num_appends > 3 * 12  # of the four sequences only the last steps
        assert graphs.num_replays - graphs.num_appends < 8
        return [found, graphs.num_replays, engine.allocator.num_used]

    single = tiny.engine(tmp_path, chunk_tokens=16, cache_tokens=256)
    expected = [tiny.run(single, *request)[0] for request in requests]
    found = run_stages(tmp_path, 3, run)
    assert found == [[expected, found[0][1], 0]] * 3


def test_a_preempted_sequence_continues_correctly(tmp_path: Path) -> None:
    """It gets new blocks, so its row must be loaded again."""
    tiny.make("llama", tmp_path)
    params = replace(PENALIZED, max_tokens=30)
    tight = {"cache_tokens": 88, "ctx_size_tokens": 60}

    def run(stage: int, engine: Engine, graphs: FakeGraphs) -> dict[int, list[int]]:
        ids = tiny.run(engine, prompts(20, 21, 22), params)[0]
        assert graphs.num_replays > graphs.num_appends > 20
        return ids

    expected = tiny.run(tiny.engine(tmp_path), prompts(20, 21, 22), params)[0]
    assert run_stages(tmp_path, 2, run, **tight) == [expected] * 2


def test_a_stage_without_memory_for_a_graph_computes_without_it(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)

    def run(stage: int, engine: Engine, graphs: FakeGraphs) -> list[dict[int, list[int]]]:
        found = []
        for full_stage in (None, 1, 0, 2):
            graphs.out_of_memory, before = stage == full_stage, graphs.num_replays
            found.append(tiny.run(engine, prompts(9, 4), PENALIZED)[0])
            assert (graphs.num_replays == before) == graphs.out_of_memory
        return found

    expected = tiny.run(tiny.engine(tmp_path), prompts(9, 4), PENALIZED)[0]
    assert run_stages(tmp_path, 3, run) == [[expected] * 4] * 3


def test_non_finite_logits_of_the_last_stage_fail_on_all_stages(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)

    def run(stage: int, engine: Engine, graphs: FakeGraphs) -> object:
        engine.add(1, [5, 6, 7], GREEDY)
        ends = [event for _ in range(3) for _, event in engine.step()]
        if stage == 1:
            tiny.plain_tensor(engine.decoder.weights.lm_head).fill_(torch.nan)
        while engine.has_work:
            ends += [event for _, event in engine.step()]
        assert graphs.num_replays > 2
        return ends[-1]

    for end in run_stages(tmp_path, 2, run):
        assert isinstance(end, BadModelFile) and end.message == sampling_error(NOT_FINITE).message
