"""How fast a GPU reads its memory at most: what a decode step is measured against."""

import statistics

import torch

# A read as long as that of a model: a short one is over before the memory is at its full speed.
_COLUMNS = 8192
_ROWS = (262_144, 65_536)


def bandwidth_ceiling_bytes_per_s(device: torch.device) -> float | None:
    """Bytes a second at which cuBLAS multiplies a vector by a matrix, a median.

    The matrix has 4 GB, or 1 GB where there is no such room, for some milliseconds; None where
    there is not even that.
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
        torch.mv(matrix.t(), vector)  # the faster way round
        end.record()
        end.synchronize()
        times_ms.append(start.elapsed_time(end))
    median_ms: float = statistics.median(times_ms[3:])
    return matrix.nbytes / median_ms * 1e3
