"""Engines as on a GPU, with emulated kernels: captured steps, async decode and verification.

A replay launches the kernels of a step anew. The device has always done what was launched.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.generation import build, heads
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.gpu import capture
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.gpu.steps.back_end import GpuBackEnd
from swiftchat.engine.load import loader
from tests.support import tiny
from tests.support.emulated.kernels import aligned, emulated_gpu


def use_emulated_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `build_engine` build engines with emulated kernels, for device "cpu"."""
    set_up, load = build.set_up, loader.load_weights

    def set_up_kernels(*args: Any) -> Any:
        setup = set_up(*args)
        gpu = engine_gpu()
        return replace(
            setup, back_end=GpuBackEnd(LinearKernels(gpu, setup.shard.config.hidden_size))
        )

    monkeypatch.setattr(build, "set_up", set_up_kernels)
    for user in (build, heads):
        monkeypatch.setattr(user, "load_weights", lambda *args, **kw: aligned(load(*args, **kw)))
    monkeypatch.setattr(capture, "record", _record)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self.clone())
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)


def engine_gpu() -> Gpu:
    """Return an emulated GPU that can also compile kernels, to no effect."""
    gpu = emulated_gpu()
    gpu.compile_s, launch = 0.0, gpu.kernel

    @contextmanager
    def collecting() -> Iterator[list[Any]]:
        gpu.kernel = lambda *_, **__: lambda *_, **__: None  # type: ignore[method-assign]
        try:
            yield []
        finally:
            gpu.kernel = launch  # type: ignore[method-assign]

    gpu.collecting = collecting  # type: ignore[method-assign, assignment]
    gpu.compile = lambda *_: None  # type: ignore[method-assign, assignment]
    return gpu


def emulated_engine(folder: Path, **config: Any) -> Engine:
    """Return an engine in fp32, after `use_emulated_gpu`; unwritten states are NaN."""
    settings = {"dtype": "float32", "block_size": tiny.BLOCK_SIZE, **config}
    engine = build.build_engine(folder, EngineConfig(device="cpu", **settings))
    for tensor in (*engine.cache.tensors, *engine.cache.states.tensors):
        tensor.fill_(float("nan"))
    return engine


def _record(run: Callable[[], Any], pool: Any = None) -> Any:
    return SimpleNamespace(replay=run)
