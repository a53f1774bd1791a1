"""Kimi Linear on a GPU: decays of each element of a key, and latent attention without rotation."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.decode.async_decode import AsyncDecode
from tests.support import kimi, tiny
from tests.support.gpu_engines import decode_logits, gpu_engine, step_logits
from tests.support.speculation import use_oracle

pytestmark = pytest.mark.gpu
# Torch's operators on a CPU are off by up to 0.07 and 0.03.
TOLERANCE = {"bfloat16": 0.15, "float16": 0.06}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("kimi")
    kimi.make(path)
    return path


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("chunk_tokens", [None, 16, 1])
def test_half_precision_is_close_to_fp32(
    folder: Path, cubins: Path, dtype: str, chunk_tokens: int | None
) -> None:
    """A prompt in one chunk, in several, and token by token as decode steps."""
    ids = tiny.random_ids(90, seed=5)
    exact = decode_logits(gpu_engine(folder, cubins, dtype="float32", kernels=False), ids)
    engine = gpu_engine(folder, cubins, dtype=dtype, chunk_tokens=chunk_tokens)
    assert engine.gpu is not None
    rounded = decode_logits(engine, ids)
    assert torch.linalg.norm(rounded - exact) <= TOLERANCE[dtype] * torch.linalg.norm(exact)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("num_rows", [1, 3])
def test_captured_steps_are_close_to_fp32(
    folder: Path, cubins: Path, dtype: str, num_rows: int
) -> None:
    """The logits of a step by the fused kernels, for one row and for several."""
    engine = gpu_engine(folder, cubins, dtype=dtype)
    decode = engine.graph_decode
    assert isinstance(decode, AsyncDecode) and decode.runner.uses_fused_kernels(num_rows)
    rows, found = step_logits(engine, num_rows)
    exact_engine = gpu_engine(folder, cubins, dtype="float32", kernels=False)
    exact = torch.stack([decode_logits(exact_engine, ids) for ids in rows])
    errors = torch.linalg.norm(found - exact, dim=1) / torch.linalg.norm(exact, dim=1)
    assert errors.max() <= TOLERANCE[dtype]
    tiny.run(engine, {1: rows[0]}, SamplingParams(temperature=0, max_tokens=8))
    assert engine.stats()["graph_steps"] > 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_proposed_tokens_are_verified(folder: Path, cubins: Path, dtype: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, speculate="off")
    prompt = {1: tiny.random_ids(20, seed=5)}
    plain, _ = tiny.run(gpu_engine(folder, cubins, dtype=dtype), prompt, params)
    engine = use_oracle(gpu_engine(folder, cubins, dtype=dtype), plain, eager=True)
    assert engine.verification is not None
    ids, ends = tiny.run(engine, prompt, replace(params, speculate="auto"))
    engine.scheduler.check_integrity()
    # Rounding to 16 bits may decide between two ids with nearly equal logits.
    assert ids[1][:10] == plain[1][:10]
    assert ends[1].speculated is not None and ends[1].speculated.num_accepted > 5
