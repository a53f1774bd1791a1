"""Captured chains of EAGLE-3 heads, on a GPU and with emulated kernels."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.model.prediction_head import PredictionHead
from swiftchat.errors import UsageError
from tests.engine.speculation.test_eagle3 import PROMPTS, Reference, check_some
from tests.support import heads, mtp_models, tiny
from tests.support.emulated.engine import emulated_engine, use_emulated_gpu

MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="module", params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def make(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeEngine]:
    """Engines whose unwritten slots must not be read."""
    cubins = tmp_path_factory.mktemp("cubins")

    def on_gpu(folder: Path, **config: Any) -> Engine:
        settings = {"dtype": "float32", "block_size": tiny.BLOCK_SIZE, **config}
        engine = build_engine(folder, EngineConfig(device="cuda", **settings), cubins=cubins)
        for tensor in engine.cache.tensors:
            tensor.fill_(float("nan"))
        return engine

    with pytest.MonkeyPatch.context() as monkeypatch:
        if request.param == "emulated":
            use_emulated_gpu(monkeypatch)
        yield emulated_engine if request.param == "emulated" else on_gpu


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny.make("llama", path)
    return path


@pytest.fixture(scope="module")
def eagle3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return heads.write_eagle3(tmp_path_factory.mktemp("eagle3"), heads.eagle3_tensors())


@pytest.mark.parametrize("num_tokens", [1, 3, 7])
def test_proposals_are_those_of_the_reference(
    make: MakeEngine, llama: Path, eagle3: Path, num_tokens: int
) -> None:
    """Two sequences whose steps alternate; most tokens are rejected."""
    expected, _ = tiny.run(make(llama), PROMPTS, heads.OFF)
    engine = make(llama, draft=str(eagle3))
    assert heads.is_captured(engine)
    proposals = heads.propose_always(engine)
    ids, ends = tiny.run(engine, PROMPTS, replace(heads.DRAFT, speculate_tokens=num_tokens))
    assert ids == expected and ends[1].speculated.proposer == "eagle3"
    check_some(Reference(llama, heads.eagle3_tensors()), proposals)
    assert max(len(proposed) for _, proposed in proposals) == num_tokens


@pytest.mark.parametrize("is_prepared", [False, True])
def test_steps_of_all_kinds_are_stored(
    make: MakeEngine, llama: Path, eagle3: Path, is_prepared: bool
) -> None:
    """Prompts in graphs or not, steps in flight, steps that the host samples, a second turn."""
    expected, _ = tiny.run(make(llama), PROMPTS, heads.OFF)
    engine = make(llama, draft=str(eagle3))
    while is_prepared and engine.can_prepare:
        engine.prepare()
    for params in (heads.OFF, replace(heads.OFF, no_repeat_ngram=30)):
        assert tiny.run(engine, PROMPTS, params)[0] == expected
    assert engine.stats()["graph_steps"] > 15
    proposals = heads.propose_always(engine)
    turn = {3: PROMPTS[2] + expected[2] + tiny.random_ids(6, seed=8)}
    tiny.run(engine, turn, replace(heads.DRAFT, speculate_tokens=3))
    assert engine.stats()["reused_tokens"] > 20
    reference = Reference(llama, heads.eagle3_tensors())
    assert len(proposals) > 4
    for tokens, proposed in proposals:
        reference.check(tokens, proposed)


@pytest.mark.parametrize("config", [{"norm_before_residual": True}, {"num_key_value_heads": 2}])
def test_variants(make: MakeEngine, llama: Path, tmp_path: Path, config: dict[str, Any]) -> None:
    """A residual after the norm, and embeddings of its own."""
    tensors = heads.eagle3_tensors()
    tensors["embed_tokens.weight"] = torch.randn(97, heads.WIDTH)
    heads.write_eagle3(tmp_path, tensors, **config)
    engine = make(llama, draft=str(tmp_path))
    proposals = heads.propose_always(engine)
    tiny.run(engine, {2: PROMPTS[2]}, replace(heads.DRAFT, max_tokens=12))
    reference = Reference(llama, tensors, adds_normed="norm_before_residual" in config)
    for tokens, proposed in proposals[::3]:
        reference.check(tokens, proposed)


def test_preempted_answers(make: MakeEngine, llama: Path, eagle3: Path) -> None:
    prompts = {i: tiny.random_ids(9 + 5 * i, seed=i) for i in (1, 2, 3)}
    expected, _ = tiny.run(make(llama), prompts, heads.OFF)
    sizes = {"ctx_size_tokens": 64, "cache_tokens": 80, "chunk_tokens": 16}
    engine = make(llama, draft=str(eagle3), **sizes)
    proposals = heads.propose_always(engine)
    assert tiny.run(engine, prompts, heads.DRAFT)[0] == expected
    reference = Reference(llama, heads.eagle3_tensors())
    for tokens, proposed in [each for each in proposals if each[1]][::5]:
        reference.check(tokens, proposed)


def test_heads_that_no_kernel_computes_are_refused(
    make: MakeEngine, llama: Path, tmp_path: Path
) -> None:
    tensors = heads.eagle3_tensors(head_dim=12)
    heads.write_eagle3(tmp_path, tensors, head_dim=12)
    with pytest.raises(UsageError, match="no kernel computes the heads in"):
        make(llama, draft=str(tmp_path))


@pytest.mark.gpu
def test_int8_heads_of_a_model_in_bf16(make: MakeEngine, llama: Path, eagle3: Path) -> None:
    engine = make(llama, draft=str(eagle3), dtype="bfloat16")
    head = engine.decoder.head
    assert isinstance(head, PredictionHead) and head.decoder.weights.lm_head.is_quantized
    proposals = heads.propose_always(engine)
    tiny.run(engine, PROMPTS, replace(heads.DRAFT, speculate_tokens=3))
    found = {token for _, proposed in proposals for token in proposed}
    assert found and all(token % 2 for token in found)  # the ids of the head


@pytest.mark.gpu
def test_latent_layers_in_bf16(make: MakeEngine, tmp_path: Path) -> None:
    """Kernels store their latents, torch computes the chain."""
    mtp_models.make("deepseek_v3", tmp_path, num_hidden_layers=4)
    engine = make(tmp_path, draft="mtp", dtype="bfloat16")
    assert not heads.is_captured(engine)
    proposals = heads.propose_always(engine)
    _, ends = tiny.run(engine, PROMPTS, replace(heads.DRAFT, speculate_tokens=3))
    assert ends[1].speculated.proposer == "mtp"
    assert len(proposals) > 20 and all(proposed for _, proposed in proposals)
