"""Capture work on the GPU in a CUDA graph."""

import gc
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def capture(
    run: Callable[[], T],
    pool: Any = None,  # of torch.cuda.graph_pool_handle, whose type is private
) -> tuple[torch.cuda.CUDAGraph, T]:
    """Return a graph of the work that `run` launches on the current stream, and run's result.

    Graphs with the same memory `pool` must not run at the same time. The kernels must be loaded.
    """
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
    return graph, result
