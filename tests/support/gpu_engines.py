"""Engines of tiny models on a GPU."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from tests.support import tiny


def gpu_engine(folder: Path, cubins: Path, **config: object) -> Engine:
    """Build an engine with small blocks."""
    settings = {"device": "cuda", "block_size": tiny.BLOCK_SIZE, **config}
    return build_engine(folder, EngineConfig(**settings), cubins=cubins)


def decode_logits(engine: Engine, ids: list[int]) -> torch.Tensor:
    """Return the logits after the last id, computed without graphs; fp64."""
    found = []
    forward = engine.decoder.forward_plan

    def record(*args: Any) -> torch.Tensor | None:
        found.append(forward(*args))
        return found[-1]

    engine.decoder.forward_plan = record  # type: ignore[method-assign]
    graphs = engine.graphs
    engine.use_graphs(replace(graphs, decode=None))
    tiny.run(engine, {1: ids}, SamplingParams(temperature=0, max_tokens=1))
    engine.use_graphs(graphs)
    engine.decoder.forward_plan = forward  # type: ignore[method-assign]
    return next(rows for rows in reversed(found) if len(rows))[0].double()


def step_logits(engine: Engine, num_rows: int) -> tuple[list[list[int]], Tensor]:
    """Return the tokens of sequences, and the logits of a captured step of all of them.

    The host samples, so that the runner returns logits: fp64 [num_rows, vocab_size].
    """
    decode, found = engine.graphs.decode, list[tuple[list[list[int]], Tensor]]()
    assert decode is not None
    forward = decode.graphs.forward

    def record(sequences: Sequence[Any]) -> Tensor:
        logits = forward(sequences)
        found.append(([list(sequence.tokens) for sequence in sequences], logits.double()))
        return logits

    decode.graphs.forward = record  # type: ignore[method-assign]
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=1, speculate="off")
    tiny.run(engine, {i: tiny.random_ids(60 + i, seed=6 + i) for i in range(num_rows)}, params)
    return next((rows, logits) for rows, logits in found if len(rows) == num_rows)
