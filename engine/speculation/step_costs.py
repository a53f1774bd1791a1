"""The cost of a step by its number of rows, relative to a decode step of one row."""

from collections.abc import Mapping
from types import MappingProxyType

_SMOOTHING, _SMOOTHING_DOWN = 0.1, 0.4  # weights of a new measurement
# On a GPU, measured on an H200 (docs/performance-gpu.md): what a captured step of so many rows
# costs more than one with a single row, by kind of weights; what mixers with a state add, which
# compute one row after the other (on an H100); the host's part of a verification; the speed of
# reading weights, and the time of a layer's kernels beyond that; the speed of reading experts in
# main memory, of which each row reads others.
_MORE_ROWS, _MORE_ROWS_QUANTIZED = {8: 0.15, 16: 0.25}, {8: 0.45, 16: 1.0}
_STATES = 0.12
_HOST_S, _BYTES_PER_S, _LAYER_S = 0.15e-3, 4e12, 10e-6
_HOST_BYTES_PER_S = 6e10


class StepCosts:
    """1 for one row, and `slope` more for each further row, on top of a jump.

    `jumps` are those of captured steps by their number of rows, ascending; other steps are padded
    to the next one. `measured` fits the slope to durations of steps, `one_row_s` is that of one
    row in seconds.
    """

    def __init__(self, slope: float, jumps: Mapping[int, float] = MappingProxyType({})) -> None:
        self.slope, self._jumps = slope, jumps
        self.one_row_s: float | None = None

    @classmethod
    def on_gpu(
        cls,
        weights_bytes: int,
        num_layers: int,
        *,
        is_quantized: bool,
        has_states: bool,
        host_row_bytes: int = 0,
    ) -> "StepCosts":
        """Estimate the costs of captured steps; a row reads `host_row_bytes` of main memory."""
        on_gpu_s = gpu_step_s(weights_bytes, num_layers)
        step_s = gpu_step_s(weights_bytes, num_layers, host_row_bytes)
        share, added = on_gpu_s / step_s, _HOST_S / step_s
        rows = _MORE_ROWS_QUANTIZED if is_quantized else _MORE_ROWS
        more = {size: (each + has_states * _STATES) * share for size, each in rows.items()}
        return cls(1 - share, {size: each + added for size, each in more.items()})

    def cost(self, num_rows: int) -> float:
        if num_rows <= 1:
            return 1.0
        jump = next((more for size, more in self._jumps.items() if size >= num_rows), 0.0)
        return 1 + jump + self.slope * (num_rows - 1)

    def measured(self, num_rows: int, duration_s: float) -> None:
        """Receive how long a step with this number of decode rows took."""
        if num_rows == 1:
            self.one_row_s = smoothed(self.one_row_s, duration_s)
        elif self.one_row_s is not None:
            slope = (duration_s / self.one_row_s - 1) / (num_rows - 1)
            self.slope += _SMOOTHING * (min(max(slope, 0.0), 2.0) - self.slope)


def smoothed(before_s: float | None, duration_s: float) -> float:
    """Return the mean of the durations before and a new one; delayed steps count little."""
    if before_s is None:
        return duration_s
    if duration_s < before_s:
        return before_s + _SMOOTHING_DOWN * (duration_s - before_s)
    return before_s + _SMOOTHING * (min(duration_s, 2 * before_s) - before_s)


def gpu_step_s(weights_bytes: int, num_layers: int, host_row_bytes: int = 0) -> float:
    """Estimate the duration of a captured decode step of one row in seconds."""
    on_gpu_s = weights_bytes / _BYTES_PER_S + num_layers * _LAYER_S
    return on_gpu_s + host_row_bytes / _HOST_BYTES_PER_S
