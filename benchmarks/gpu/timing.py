"""Shared by the GPU benchmarks: device timing, graph capture, and the bandwidth ceiling."""

import statistics
from collections.abc import Callable

import torch


def captured(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Run once, then capture the launches of `run` in a graph."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def median_us(run: Callable[[], object], repeats: int = 25) -> float:
    """Median time of a run on the device, without three warm-up runs."""
    times = []
    for _ in range(repeats + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times[3:])
