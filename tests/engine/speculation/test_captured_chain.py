"""Captured chains of EAGLE-3 heads: their cache in blocks, and on a GPU their proposals."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.gpu.heads import captured_chain
from swiftchat.engine.gpu.heads.captured_chain import CapturedChain
from swiftchat.engine.speculation.chain import ChainHead
from swiftchat.engine.speculation.eagle3 import HeadCache
from swiftchat.engine.speculation.head_blocks import BLOCK_TOKENS, HeadBlocks, PagedKeysValues
from tests.engine.speculation.test_eagle3 import PROMPTS, Reference, check_some
from tests.support import heads, tiny

HEAD_DIM = 16  # one that the kernels take


def test_blocks_hold_what_the_plain_cache_holds() -> None:
    blocks = HeadBlocks(torch.zeros(5, 2 * 3, BLOCK_TOKENS, 8))
    paged, plain = PagedKeysValues(blocks), HeadCache(3, 8, torch.device("cpu"))
    other = PagedKeysValues(blocks)
    position = 0
    for count in (1, 70, 5, 64, 7):
        positions, rows = range(position, position + count), torch.randn(2, count, 3, 8)
        assert paged.reserve(count)
        assert torch.equal(paged.append(positions, rows), plain.append(positions, rows))
        position += count + 2  # some positions stay unknown
        for cache in (paged, plain):
            cache.truncate(position - 4)
    assert paged.positions == plain.positions
    assert not other.reserve(129) and other.reserve(64) and not other.reserve(129)
    del other
    copy = paged.before(60)
    assert copy.positions == paged.positions[: len(copy.positions)]
    assert copy.positions[-1] < 60 and len(copy.positions) > 50
    known = torch.randn(2, 1, 3, 8)
    expected = plain.before(60).append([60], known)
    assert torch.equal(copy.append([60], known), expected)
    assert not paged.before(10**9).positions  # there is only one block left
    del paged, copy
    gc.collect()
    assert sorted(blocks.free) == list(range(5))


@pytest.fixture(scope="module")
def eagle3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = heads.eagle3_tensors(head_dim=HEAD_DIM)
    folder = tmp_path_factory.mktemp("eagle3")
    return heads.write_eagle3(folder, tensors, head_dim=HEAD_DIM)


def captured_engine(llama: Path, draft: Path, **config: Any) -> Engine:
    engine = tiny.engine(llama, draft=str(draft), device="cuda", **config)
    proposer = engine.speculation._draft
    assert isinstance(proposer, ChainHead) and isinstance(proposer._layer, CapturedChain)
    return engine


@pytest.mark.gpu
@pytest.mark.parametrize("num_tokens", [1, 3, 7])
def test_proposals_are_those_of_the_reference(llama: Path, eagle3: Path, num_tokens: int) -> None:
    """Two sequences whose steps alternate; most tokens are rejected."""
    expected, _ = tiny.run(tiny.engine(llama, device="cuda"), PROMPTS, heads.OFF)
    engine = captured_engine(llama, eagle3)
    proposals = heads.propose_always(engine)
    params = replace(heads.DRAFT, speculate_tokens=num_tokens)
    ids, ends = tiny.run(engine, PROMPTS, params)
    assert ids == expected and ends[1].speculated.proposer == "eagle3"
    tensors = heads.eagle3_tensors(head_dim=HEAD_DIM)
    check_some(Reference(llama, tensors, head_dim=HEAD_DIM), proposals)
    assert max(len(proposed) for _, proposed in proposals) == num_tokens


@pytest.mark.gpu
@pytest.mark.parametrize("replayed_tokens", [0, 64])
def test_many_pending_tokens(
    llama: Path, eagle3: Path, replayed_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens of decode steps without proposals wait; those beyond the graph's rows come first."""
    monkeypatch.setattr(captured_chain, "_REPLAYED_TOKENS", replayed_tokens)
    engine = captured_engine(llama, eagle3)
    proposals = heads.propose_always(engine)
    number = engine.speculation._num_drafted
    # Asked before and after the token of a step in flight.
    engine.speculation._num_drafted = lambda sequence, num_rows: (
        0 if sequence.num_generated % 20 > 2 else number(sequence, num_rows)
    )
    tiny.run(engine, {2: PROMPTS[2]}, replace(heads.DRAFT, max_tokens=90))
    reference = Reference(llama, heads.eagle3_tensors(head_dim=HEAD_DIM), head_dim=HEAD_DIM)
    whole = [each for each in proposals if each[1]]
    assert len(whole) >= 3
    for tokens, proposed in whole:
        reference.check(tokens, proposed)


@pytest.mark.gpu
@pytest.mark.parametrize("config", [{"norm_before_residual": True}, {"num_key_value_heads": 2}])
def test_variants(llama: Path, tmp_path: Path, config: dict[str, Any]) -> None:
    """A residual after the norm, and embeddings of its own."""
    tensors = heads.eagle3_tensors(head_dim=HEAD_DIM)
    tensors["embed_tokens.weight"] = torch.randn(97, heads.WIDTH)
    heads.write_eagle3(tmp_path, tensors, head_dim=HEAD_DIM, **config)
    engine = captured_engine(llama, tmp_path)
    proposals = heads.propose_always(engine)
    tiny.run(engine, {2: PROMPTS[2]}, replace(heads.DRAFT, max_tokens=12))
    adds_normed = "norm_before_residual" in config
    reference = Reference(llama, tensors, adds_normed=adds_normed, head_dim=HEAD_DIM)
    for tokens, proposed in proposals[::3]:
        reference.check(tokens, proposed)


@pytest.mark.gpu
def test_no_blocks_are_left(llama: Path, eagle3: Path) -> None:
    """Without room there are no proposals, and the answer is that of plain decoding."""
    expected, _ = tiny.run(tiny.engine(llama, device="cuda"), PROMPTS, heads.OFF)
    engine = captured_engine(llama, eagle3)
    heads.propose_always(engine)
    proposer: Any = engine.speculation._draft
    del proposer._layer._kernels._blocks.free[1:]
    ids, ends = tiny.run(engine, PROMPTS, heads.DRAFT)
    assert ids == expected and ends[2].speculated.num_proposed > 0


@pytest.mark.gpu
def test_int8_heads_of_a_model_in_bf16(llama: Path, eagle3: Path) -> None:
    engine = captured_engine(llama, eagle3, dtype="bfloat16")
    proposer: Any = engine.speculation._draft
    assert proposer._layer._layer.lm_head.is_quantized
    proposals = heads.propose_always(engine)
    tiny.run(engine, PROMPTS, replace(heads.DRAFT, speculate_tokens=3))
    found = {token for _, proposed in proposals for token in proposed}
    assert found and all(token % 2 for token in found)  # the ids of the head
