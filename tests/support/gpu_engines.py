"""Engines of tiny models on a GPU."""

from pathlib import Path

import torch

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

    def record(plan: object, cache: object, hidden: object = None) -> torch.Tensor | None:
        found.append(forward(plan, cache, hidden))
        return found[-1]

    engine.decoder.forward_plan = record  # type: ignore[method-assign]
    graphs, engine.graph_decode = engine.graph_decode, None
    tiny.run(engine, {1: ids}, SamplingParams(temperature=0, max_tokens=1))
    engine.graph_decode = graphs
    engine.decoder.forward_plan = forward  # type: ignore[method-assign]
    return next(rows for rows in reversed(found) if len(rows))[0].double()
