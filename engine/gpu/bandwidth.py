"""The bandwidth ceiling of a GPU: the fastest read of its memory, which bounds a decode step."""

import statistics

import torch

# As much memory as a model: a short read ends before the memory reaches its full speed.
_COLUMNS = 8192
_ROWS = (262_144, 65_536)


def bandwidth_ceiling_bytes_per_s(device: torch.device) -> float | None:
    """Measure bytes per second of cuBLAS's vector-matrix product, a median.

    The matrix takes 4 GB, or 1 GB if there is no room for that, for some milliseconds. None if
    there is no room for either.
    """
    for rows in _ROWS:
        try:
            matrix = torch.empty(rows, _COLUMNS, dtype=torch.bfloat16, device=device)
            return _read_bytes_per_s(matrix.normal_())
        except torch.OutOfMemoryError:
            continue
    return None


def _read_bytes_per_s(matrix: torch.Tensor) -> float:
    vector = matrix[:, 0].clone()
    times_ms = []
    for _ in range(15):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        torch.mv(matrix.t(), vector)  # faster than with the matrix not transposed
        end.record()
        end.synchronize()
        times_ms.append(start.elapsed_time(end))
    median_ms: float = statistics.median(times_ms[3:])
    return matrix.nbytes / median_ms * 1e3
