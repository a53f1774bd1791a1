"""Models with latent attention on a GPU: decode steps by kernels, captured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.gpu.steps import prefill_graphs
from tests.support import reference, tiny
from tests.support.gpu_engines import decode_logits, gpu_engine

pytestmark = pytest.mark.gpu
GREEDY = SamplingParams(temperature=0, max_tokens=12)
_SIZES = {
    "num_attention_heads": 6,
    "kv_lora_rank": 256,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "v2": ("deepseek_v2", {**_SIZES, "q_lora_rank": None}),
    "v2-low-rank": ("deepseek_v2", {**_SIZES, "q_lora_rank": 24}),
    "v3": ("deepseek_v3", _SIZES),
}


@pytest.fixture(scope="module", params=MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp(request.param)
    model_type, sizes = MODELS[request.param]
    reference.copy_reference(model_type, path, **sizes)
    return path


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("path", ["padded chunk", "torch", "steps"])
def test_half_precision_is_close_to_fp32(
    folder: Path, tmp_path: Path, dtype: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt in one chunk, by torch as in long contexts, and token by token as decode steps."""
    ids = tiny.random_ids(90, seed=5)
    exact = decode_logits(gpu_engine(folder, tmp_path, dtype="float32", kernels=False), ids)
    if path == "torch":
        monkeypatch.setattr(prefill_graphs, "_MAX_LATENT_SCORES", 0)
    chunk_tokens = 1 if path == "steps" else None
    engine = gpu_engine(folder, tmp_path, dtype=dtype, chunk_tokens=chunk_tokens)
    assert engine.gpu is not None
    rounded = decode_logits(engine, ids)
    assert torch.linalg.norm(rounded - exact) <= 0.06 * torch.linalg.norm(exact)


def test_decode_steps_are_captured_and_do_not_depend_on_neighbors(
    folder: Path, tmp_path: Path
) -> None:
    # Not bf16: steps without graphs have other matmuls, whose rounding changed ids there.
    engine = gpu_engine(folder, tmp_path, dtype="float16")
    prompts = {i: tiny.random_ids(5 + 40 * i, seed=i) for i in range(3)}
    together, _ = tiny.run(engine, prompts, GREEDY)
    assert engine.stats()["graph_steps"] > 0
    graphs = engine.graphs
    engine.use_graphs(replace(graphs, decode=None))
    without_graphs, _ = tiny.run(engine, prompts, GREEDY)
    engine.use_graphs(graphs)
    assert together == without_graphs


def test_captured_prompts_are_bitwise_those_without_graphs(folder: Path, tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
    ids, found = tiny.random_ids(100, seed=7), []
    for captures in (True, False):
        engine = gpu_engine(folder, tmp_path, dtype="float16")
        while captures and engine.can_prepare:
            engine.prepare()
        graphs = engine.graphs.prefill
        assert graphs is not None and graphs.is_captured(60) == captures
        found.append([tiny.logprobs(engine, ids[:n], params) for n in (40, 100)])
    assert found[0] == found[1]
