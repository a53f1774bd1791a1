"""Capture work on the GPU in a CUDA graph."""

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from swiftchat.cuda.gpu import Gpu

T = TypeVar("T")


@dataclass(frozen=True)
class Captured(Generic[T]):
    """A graph of some work, and what the work returned: tensors that each replay overwrites."""

    graph: torch.cuda.CUDAGraph
    result: T

    def replay(self) -> T:
        """Start the work again, without waiting for it; return the result."""
        self.graph.replay()
        return self.result


def compile_kernels(
    gpu: Gpu,
    run: Callable[[], object],
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Compile the kernels that `run` launches, in parallel and without launching them."""
    with gpu.collecting() as specs:
        run()
    gpu.compile(specs, on_progress)


def captured(
    run: Callable[[], T],
    *,
    gpu: Gpu | None = None,
    unused: AbstractContextManager[None] | None = None,
    is_loaded: bool = False,
    pool: Any = None,  # of torch.cuda.graph_pool_handle, whose type is private
) -> Captured[T]:
    """Capture the work that `run` launches on the current stream.

    First it is run once, which loads its kernels, within `unused`: the context in which the inputs
    of the work belong to no row. Kernels of `gpu` are compiled before. Work whose kernels are all
    loaded, `is_loaded`, is not run before. Graphs with the same memory `pool` must not run at the
    same time.
    """
    if not is_loaded:
        with unused or nullcontext():
            if gpu is not None:
                compile_kernels(gpu, run)
            run()
        torch.cuda.synchronize(None if gpu is None else gpu.device)
    return record(run, pool)


def record(run: Callable[[], T], pool: Any = None) -> Captured[T]:
    """Capture work whose kernels are loaded; see `captured`."""
    graph = torch.cuda.CUDAGraph()
    # A collection of garbage may free the GPU memory of older objects, which ends a capture.
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool):
            result = run()
    finally:
        if is_collecting:
            gc.enable()
    return Captured(graph, result)
