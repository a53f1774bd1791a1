"""How fast a GPU reads its memory at most: what a decode step is measured against."""

import statistics

import torch

_ROWS, _COLUMNS = 128_256, 4096


def read_ceiling_bytes_per_s(device: torch.device) -> float | None:
    """Bytes a second at which cuBLAS multiplies a matrix of 1 GB by a vector, a median.

    Takes 1 GB for a moment, and some milliseconds; None where there is no such room.
    """
    try:
        matrix = torch.empty(_ROWS, _COLUMNS, dtype=torch.bfloat16, device=device).normal_()
    except torch.OutOfMemoryError:
        return None
    vector = matrix[0].clone()
    times_ms = []
    for _ in range(15):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        torch.mv(matrix, vector)
        end.record()
        end.synchronize()
        times_ms.append(start.elapsed_time(end))
    median_ms: float = statistics.median(times_ms[3:])
    return matrix.nbytes / median_ms * 1e3
