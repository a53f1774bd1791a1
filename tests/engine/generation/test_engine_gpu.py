"""The engine on a GPU against the CPU: kernels and torch operators, with graphs and without."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Beam
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.errors import BadModelFile
from swiftchat.weights.model.dummy import DUMMY_CONFIGS
from tests.support import tiny
from tests.support.worker_processes import CONTROLS

pytestmark = pytest.mark.gpu
# Every control that the kernels of a captured decode step have.
ON_DEVICE = SamplingParams(
    temperature=1.0,
    top_p=0.95,
    logit_bias=((3, 2.5), (9, -4.0), (11, 6.0)),
    bad_words=((11,), (12,)),
    stop_ids=tuple(range(20, 60)),
    min_tokens=12,
    max_tokens=30,
    seed=8,
)
GREEDY = SamplingParams(temperature=0, max_tokens=40)
PATHS = {
    "kernels": {},
    "kernels without graphs": {"graphs": False},
    "torch": {"kernels": False},
}


# Llama variants, and every feature of other architectures at least once.
MODELS = (
    *tiny.VARIANTS,
    "qwen3",
    "gemma2",
    "gemma3",
    "smollm3",
    "olmo2",
    "gpt2",
    "gpt-j",
    "bloom",
    "opt-350m",
    "falcon-40b",
    "qwen3-moe-mixed",
    "qwen2-moe",
)


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(request.param)
    tiny.make(request.param, path)
    return path


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


def gpu_engine(folder: Path, cubins: Path, *, graphs: bool = True, **config: Any) -> Engine:
    settings = {"device": "cuda", "dtype": "float32", "block_size": tiny.BLOCK_SIZE, **config}
    engine = build_engine(folder, EngineConfig(**settings), cubins=cubins)
    assert (engine.gpu is None) == (not settings.get("kernels", True))
    if not graphs:
        engine.use_graphs(replace(engine.graphs, decode=None))
    return engine


def recorded_logits(engine: Engine) -> list[Tensor]:
    """Return a list that receives the logits of every forward pass that is not replayed."""
    found: list[Tensor] = []
    forward = engine.decoder.forward_plan

    def record(*args: Any) -> Tensor | None:
        logits = forward(*args)
        assert logits is not None
        found.append(logits)
        return logits

    engine.decoder.forward_plan = record  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("path", PATHS)
def test_greedy_ids_equal_the_cpu_in_fp32(folder: Path, cubins: Path, path: str) -> None:
    """Alone and batched: chunked prefill, decode steps, and both mixed."""
    prompts = {i: tiny.random_ids(1 + 13 * i, seed=i) for i in range(5)}
    on_cpu, _ = tiny.run(tiny.engine(folder), prompts, GREEDY)
    engine = gpu_engine(folder, cubins, chunk_tokens=16, **PATHS[path])
    together, _ = tiny.run(engine, prompts, GREEDY)
    assert together == on_cpu
    alone = [tiny.run(engine, {i: prompt}, GREEDY)[0][i] for i, prompt in prompts.items()]
    assert alone == list(on_cpu.values())
    assert engine.allocator.num_used == 0


@pytest.mark.parametrize("name", [*tiny.FAMILIES, *tiny.REPACKED])
def test_ids_of_every_architecture_equal_the_cpu(name: str, tmp_path: Path, cubins: Path) -> None:
    tiny.make(name, tmp_path)
    prompts = {i: tiny.random_ids(5 + 13 * i, seed=i) for i in range(3)}
    settings = {"device": "cuda", "dtype": "float32", "block_size": tiny.BLOCK_SIZE}
    engine = build_engine(tmp_path, EngineConfig(**settings), cubins=cubins)
    assert (engine.gpu is None) == (name in tiny.NOT_ON_KERNELS)
    params = SamplingParams(temperature=0, max_tokens=12)
    on_cpu, _ = tiny.run(tiny.engine(tmp_path), prompts, params)
    assert tiny.run(engine, prompts, params)[0] == on_cpu


@pytest.mark.parametrize("num_rows", [21, 150])
def test_more_rows_than_the_fused_kernels_take(folder: Path, cubins: Path, num_rows: int) -> None:
    """Then the graph contains the decoder's own operations."""
    prompts = {i: tiny.random_ids(3 + i % 21, seed=i) for i in range(num_rows)}
    params = SamplingParams(temperature=0, max_tokens=12)
    settings = {"max_num_seqs": num_rows, "cache_tokens": 64 * num_rows}
    on_cpu, _ = tiny.run(tiny.engine(folder, **settings), prompts, params)
    engine = gpu_engine(folder, cubins, **settings)
    assert tiny.run(engine, prompts, params)[0] == on_cpu
    assert engine.stats()["graph_steps"] > 0


def test_a_reused_prefix_gives_the_same_ids(folder: Path, cubins: Path) -> None:
    engine = gpu_engine(folder, cubins)
    first = tiny.random_ids(30)
    answer, _ = tiny.run(engine, {1: first}, GREEDY)
    second = first + answer[1] + tiny.random_ids(9, seed=8)
    with_reuse, ends = tiny.run(engine, {2: second}, GREEDY)
    fresh, _ = tiny.run(gpu_engine(folder, cubins), {2: second}, GREEDY)
    assert with_reuse == fresh
    assert ends[2].cached_tokens == len(first) + len(answer[1]) - 1


def test_logprobs_equal_the_cpu(folder: Path, cubins: Path) -> None:
    """Together with a generation without logprobs, which is replayed before and after."""
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=3)
    prompt = tiny.random_ids(20)
    ids, expected = tiny.logprobs(tiny.engine(folder), prompt, params)
    engine = gpu_engine(folder, cubins)
    engine.add(2, tiny.random_ids(9, seed=1), GREEDY)
    assert tiny.logprobs(engine, prompt, params)[0] == ids
    engine.add(3, tiny.random_ids(9, seed=1), GREEDY)
    _, found = tiny.logprobs(engine, prompt, params)
    for one, other in zip(found, expected, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert dict(one.top) == pytest.approx(dict(other.top), abs=1e-3)


def test_steps_that_the_host_samples_replay_a_graph(folder: Path, cubins: Path) -> None:
    """Alone and batched; the ids are those of the steps that the device samples."""
    engine = gpu_engine(folder, cubins)
    found = recorded_logits(engine)
    prompts = {i: tiny.random_ids(9 + i, seed=i) for i in range(3)}
    expected, _ = tiny.run(engine, prompts, GREEDY)
    num_prefill = len(found)
    logged = SamplingParams(temperature=0, max_tokens=40, logprobs=2)
    assert tiny.run(engine, prompts, logged)[0] == expected
    if engine.graphs.decode is not None:
        assert len(found) <= 2 * num_prefill  # only prompts were computed without a graph
    # The steps before and after are replayed with sampling.
    alone, _ = tiny.run(engine, {7: prompts[0]}, logged)
    assert alone[7] == expected[0] == tiny.run(engine, {8: prompts[0]}, GREEDY)[0][8]


@pytest.mark.parametrize("path", ["kernels", "torch"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close_to_fp32(folder: Path, cubins: Path, dtype: str, path: str) -> None:
    """Relative error of the logits at most 6 %; an H200 gave 4 %.

    Each layer rounds about ten times to 8 bits, with weights ten times as large as trained ones.
    """
    ids = tiny.random_ids(50, seed=5)
    logits = []
    for name in ("float32", dtype):
        engine = gpu_engine(folder, cubins, dtype=name, **PATHS[path])
        logits.append(recorded_logits(engine))
        tiny.run(engine, {1: ids}, SamplingParams(temperature=0, max_tokens=1))
    exact, rounded = (found[0][0].double() for found in logits)
    assert torch.linalg.norm(rounded - exact) <= 0.06 * torch.linalg.norm(exact)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int5"])
@pytest.mark.parametrize("name", ["llama-wide-heads", "qwen3", "gemma"])
def test_a_quantized_kv_cache_is_close_to_fp32(
    name: str, tmp_path: Path, cubins: Path, kv_dtype: str
) -> None:
    """Prefill in one chunk and token by token; decode attention reads the latter.

    The kernels of int5 have heads of 64 elements. A key or value of int5 that is rounded to another
    integer is off by more.
    """
    tiny.make(name, tmp_path, **({"head_dim": 64} if kv_dtype == "int5" else {}))
    ids, logits = tiny.random_ids(50, seed=5), []
    for config in (
        {"kernels": False},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "chunk_tokens": 1},
    ):
        engine = gpu_engine(tmp_path, cubins, kv_dtype=kv_dtype, **config)
        found = recorded_logits(engine)
        graphs = engine.graphs
        engine.use_graphs(replace(graphs, decode=None))  # they would bypass `forward_plan`
        tiny.run(engine, {1: ids}, SamplingParams(temperature=0, max_tokens=1))
        engine.use_graphs(graphs)
        logits.append(next(rows for rows in reversed(found) if len(rows))[0].double())
        # In a graph, from the cached prefix.
        assert len(tiny.run(engine, {2: ids}, GREEDY)[0][2]) == GREEDY.max_tokens
    bound = (0.2 if kv_dtype == "int5" else 0.1) * torch.linalg.norm(logits[0])
    for rounded in logits[1:]:
        assert torch.linalg.norm(rounded - logits[0]) <= bound


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, max_tokens=30, seed=5),
        SamplingParams(temperature=0.8, top_k=20, top_p=0.9, max_tokens=30, seed=2**63 + 5),
        SamplingParams(temperature=1.5, min_p=0.05, max_tokens=30, seed=6),
        SamplingParams(
            temperature=1.0,
            repeat_penalty=1.3,
            presence_penalty=0.5,
            frequency_penalty=0.2,
            max_tokens=30,
            seed=7,
        ),
        SamplingParams(temperature=0, repeat_penalty=1.5, max_tokens=30),
        ON_DEVICE,
        replace(ON_DEVICE, repeat_penalty=1.3, frequency_penalty=0.2),
        replace(ON_DEVICE, temperature=0, repeat_penalty=1.3, repeat_last_n=0),
    ],
)
def test_sampled_ids_equal_the_cpu(folder: Path, cubins: Path, params: SamplingParams) -> None:
    """The same rule and random numbers; logits differ in their last bits only."""
    on_cpu, _ = tiny.run(tiny.engine(folder), {1: [5, 6, 7]}, params)
    for _ in range(2):
        assert tiny.run(gpu_engine(folder, cubins), {1: [5, 6, 7]}, params)[0] == on_cpu


def test_controls_that_the_device_has_are_replayed_and_others_are_not(
    folder: Path, cubins: Path
) -> None:
    """Alone and in one batch; the ids are those of the CPU either way."""
    prompts = {i: tiny.random_ids(3 + 7 * i, seed=i) for i in range(3)}
    for params, is_replayed in ((ON_DEVICE, True), (replace(CONTROLS, max_tokens=20), False)):
        assert (not params.host_controls) == is_replayed
        on_cpu, _ = tiny.run(tiny.engine(folder), prompts, params)
        engine = gpu_engine(folder, cubins)
        assert tiny.run(engine, prompts, params)[0] == on_cpu
        assert (engine.stats()["graph_steps"] > 0) == is_replayed
        for key, prompt in prompts.items():
            assert tiny.run(engine, {key: prompt}, params)[0][key] == on_cpu[key]


def test_stop_ids_and_limits_end_answers_as_on_the_cpu(folder: Path, cubins: Path) -> None:
    prompts = {i: tiny.random_ids(2 + 5 * i, seed=i) for i in range(4)}
    whole, _ = tiny.run(tiny.engine(folder), prompts, GREEDY)
    params = SamplingParams(temperature=0, max_tokens=33, stop_ids=(whole[0][7], whole[2][11]))
    on_cpu = tiny.run(tiny.engine(folder), prompts, params)
    engine = gpu_engine(folder, cubins)
    for _ in range(2):  # the second time after an answer that ended early
        ids, ends = tiny.run(engine, prompts, params)
        assert ids == on_cpu[0]
        assert {k: e.reason for k, e in ends.items()} == {k: e.reason for k, e in on_cpu[1].items()}


@pytest.mark.parametrize("repeat_penalty", [1.0, 1.2])
def test_beams_equal_the_cpu(tmp_path: Path, cubins: Path, repeat_penalty: float) -> None:
    """The kernel chooses the candidates, or torch where penalties change the logprobs."""
    tiny.make("llama", tmp_path)
    params = SamplingParams(
        temperature=0, beams=4, returned_beams=4, max_tokens=12, repeat_penalty=repeat_penalty
    )

    def beams(engine: Engine) -> list[Beam]:
        engine.add(0, tiny.random_ids(19), params)
        events = [event for _ in iter(lambda: engine.has_work, False) for event in engine.step()]
        return [event for _, event in events if isinstance(event, Beam)]

    engine = gpu_engine(tmp_path, cubins)
    found, expected = beams(engine), beams(tiny.engine(tmp_path))
    assert [one.ids for one in found] == [one.ids for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.score == pytest.approx(other.score, rel=1e-4, abs=1e-4)
    assert engine.allocator.num_used == 0


def test_a_full_context_ends_the_answer(folder: Path, cubins: Path) -> None:
    params = SamplingParams(temperature=0)
    settings = {"ctx_size_tokens": 50, "cache_tokens": 64}
    on_cpu, _ = tiny.run(tiny.engine(folder, **settings), {1: tiny.random_ids(20)}, params)
    engine = gpu_engine(folder, cubins, **settings)
    on_gpu, ends = tiny.run(engine, {1: tiny.random_ids(20)}, params)
    assert on_gpu == on_cpu and ends[1].reason == "length"


def test_preemption_on_the_gpu_changes_no_token(folder: Path, cubins: Path) -> None:
    prompts = {i: tiny.random_ids(20 + i, seed=i) for i in range(4)}
    params = SamplingParams(temperature=0, max_tokens=30)
    roomy, _ = tiny.run(gpu_engine(folder, cubins, cache_tokens=1024), prompts, params)
    settings = {"cache_tokens": 120, "ctx_size_tokens": 100}
    tight, _ = tiny.run(gpu_engine(folder, cubins, **settings), prompts, params)
    assert tight == roomy


def test_start_and_cancel_leak_no_block_and_no_memory(tmp_path: Path, cubins: Path) -> None:
    tiny.make("llama", tmp_path)
    engine = gpu_engine(tmp_path, cubins)
    tiny.run(engine, {0: tiny.random_ids(9)}, GREEDY)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for i in range(500):
        engine.add(i, tiny.random_ids(1 + i % 40, seed=i), SamplingParams(seed=i))
        for _ in range(i % 5):
            engine.step()
            engine.scheduler.check_integrity()
        engine.cancel(i)
        while engine.has_work:
            engine.step()
        assert engine.allocator.num_used == 0
    expected, _ = tiny.run(tiny.engine(tmp_path), {0: tiny.random_ids(9)}, GREEDY)
    assert tiny.run(engine, {0: tiny.random_ids(9)}, GREEDY)[0] == expected
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + 2**20


def test_non_finite_logits_end_the_generation_with_an_error(tmp_path: Path, cubins: Path) -> None:
    tiny.make("llama", tmp_path)
    engine = gpu_engine(tmp_path, cubins)
    engine.add(1, tiny.random_ids(5), GREEDY)
    engine.step()
    engine.step()
    engine.decoder.weights.final_norm[3] = float("nan")
    ends = []
    while engine.has_work:
        ends += engine.step()
    assert isinstance(ends[-1][1], BadModelFile)
    assert engine.allocator.num_used == 0


def test_capture_changes_neither_cache_nor_decode_batch(tmp_path: Path, cubins: Path) -> None:
    """The rows still hold an ended answer, whose blocks may belong to another sequence by now."""
    tiny.make("llama", tmp_path)
    engine = gpu_engine(tmp_path, cubins)
    tiny.run(engine, {1: tiny.random_ids(9)}, GREEDY)
    (cache,) = engine.cache.tensors
    cache = cache.view(torch.int32)  # unwritten elements may be NaN
    graphs, before = engine.graphs.decode.graphs, cache.clone()
    state = [graphs.batch.ids, graphs.batch.slot_mapping, graphs.batch.context_lens]
    state_before = [tensor.clone() for tensor in state]
    assert graphs.batch.context_lens.any()
    with torch.inference_mode():  # as in the engine
        graphs.graph(8)
    assert torch.equal(cache, before)
    assert all(map(torch.equal, state, state_before))


@pytest.mark.timeout(120)
def test_a_context_of_100k_tokens(tmp_path: Path, cubins: Path) -> None:
    """Decode after a long prompt gives the tokens that prefill of a longer prompt gives."""
    shape = {
        **DUMMY_CONFIGS["llama-3.2-1b"],
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps(shape))
    config = EngineConfig(
        device="cuda",
        dtype="float32",
        dummy=str(tmp_path / "config.json"),
        ctx_size_tokens=101_000,
        cache_tokens=210_000,
    )
    engine = build_engine(Path(), config, cubins=cubins)
    prompt = [(j * 7919 + j // 13) % 128_000 for j in range(100_000)]
    first, _ = tiny.run(engine, {1: prompt}, SamplingParams(temperature=0, max_tokens=12))
    longer = prompt + first[1][:6]
    again = tiny.run(engine, {2: longer}, SamplingParams(temperature=0, max_tokens=6))[0]
    assert again[2] == first[1][6:]


def test_unaligned_row_counts_and_top_k_beyond_the_vocabulary(folder: Path, cubins: Path) -> None:
    prompts = {i: tiny.random_ids(3 + i, seed=i) for i in range(7)}
    params = SamplingParams(temperature=1, top_k=2**31 - 1, max_tokens=9, seed=4)
    settings = {"max_num_seqs": 7, "cache_tokens": 1024}
    on_cpu, _ = tiny.run(tiny.engine(folder, **settings), prompts, params)
    assert tiny.run(gpu_engine(folder, cubins, **settings), prompts, params)[0] == on_cpu


def test_block_copies_are_made_in_order(tmp_path: Path, cubins: Path) -> None:
    """The destination of a copy may be the source of an earlier one."""
    tiny.make("llama", tmp_path)
    engine = gpu_engine(tmp_path, cubins, cache_tokens=64)
    (cache,) = engine.cache.tensors
    cache.normal_()
    expected = cache.clone()
    copies = [(6, 5), (0, 6), (2, 3), (3, 0), (4, 4)]
    for source, destination in copies:
        expected[:, destination] = expected[:, source]
    engine.decoder.ops.copy_blocks(engine.cache, copies)
    assert torch.equal(cache, expected)
