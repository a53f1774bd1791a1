"""Swap and restore on a GPU: ids equal those of an engine that computes everything."""

from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import Finished
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from tests.support.tiny import BLOCK_SIZE, SamplingParams, engine, random_ids, run
from tests.support.tiny_models import make

pytestmark = pytest.mark.gpu
PARAMS = SamplingParams(temperature=0, max_tokens=9, saves_cache=True)
PROMPTS = {i: random_ids(30 + i, seed=i) for i in range(6)}


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose KV cache can be quantized."""
    folder = tmp_path_factory.mktemp("wide")
    make("llama-wide-heads", folder)
    return folder


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


def gpu_engine(model: Path, cubins: Path, folder: Path | None = None, **config: object) -> Engine:
    settings: dict[str, object] = {"device": "cuda", "dtype": "float32", "block_size": BLOCK_SIZE}
    made = build_engine(
        model, EngineConfig(**{**settings, **config}), cubins=cubins, kv_folder=folder
    )
    assert made.gpu is not None
    return made


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "int5"])
def test_evicted_blocks_come_back_from_main_memory(
    wide: Path, cubins: Path, kv_dtype: str, tmp_path: Path
) -> None:
    if kv_dtype == "int5":
        make("llama", wide := tmp_path, head_dim=64)  # the size that its kernels have
    config = {"dtype": "bfloat16", "kv_dtype": kv_dtype, "ctx_size_tokens": 60}
    plain = gpu_engine(wide, cubins, **config, cache_tokens=1000, swap_bytes=0)
    expected = {i: run(plain, {i: prompt}, PARAMS)[0][i] for i, prompt in PROMPTS.items()}
    # The last token of a cached prompt is computed alone, by other kernels: other last bits.
    cached = {i: run(plain, {i: prompt}, PARAMS)[0][i] for i, prompt in PROMPTS.items()}
    small = gpu_engine(wide, cubins, **config, cache_tokens=15 * BLOCK_SIZE, swap_bytes=1 << 20)
    for tensor in small.cache.tensors:
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))
    for i, prompt in PROMPTS.items():
        assert run(small, {i: prompt}, PARAMS)[0][i] == expected[i]
    assert small.store.host is not None and small.store.host.num_blocks > 20
    for i, prompt in PROMPTS.items():
        ids, ends = run(small, {i: prompt}, PARAMS)
        end = ends[i]
        assert isinstance(end, Finished) and ids[i] == cached[i]
        assert end.swapped_tokens > 20 or i == 5  # the last one is still on the device
        small.store.host.check_integrity()


def test_batches_that_preempt_each_other_keep_their_ids(model: Path, cubins: Path) -> None:
    on_cpu = engine(model)
    expected = {i: run(on_cpu, {i: prompt}, PARAMS)[0][i] for i, prompt in PROMPTS.items()}
    config = {"ctx_size_tokens": 60, "cache_tokens": 25 * BLOCK_SIZE, "chunk_tokens": 16}
    small = gpu_engine(model, cubins, **config, swap_bytes=1 << 20)
    for _ in range(3):
        assert run(small, PROMPTS, PARAMS)[0] == expected
    assert small.store.num_restored["host"] > 20


def test_a_new_engine_restores_from_the_disk(model: Path, cubins: Path, tmp_path: Path) -> None:
    prompt = random_ids(121, seed=3)
    writer = gpu_engine(model, cubins, tmp_path, swap_bytes=0)
    expected, _ = run(writer, {1: prompt}, PARAMS)
    while writer.has_unsaved:
        writer.prepare()
    reader = gpu_engine(model, cubins, tmp_path, swap_bytes=0)
    for tensor in reader.cache.tensors:
        tensor.fill_(float("nan"))
    ids, ends = run(reader, {1: prompt}, PARAMS)
    end = ends[1]
    assert isinstance(end, Finished) and ids == expected and end.restored_tokens == 120
    torch.cuda.synchronize()
