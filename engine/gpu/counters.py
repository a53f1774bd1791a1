"""The GPU's part of an engine's statistics."""

from typing import Any

import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.engine.gpu.bandwidth import bandwidth_ceiling_bytes_per_s


class GpuCounters:
    """Counts replayed decode steps; nothing without kernels, for `gpu` None."""

    def __init__(self, gpu: Gpu | None, device: torch.device) -> None:
        self._gpu, self._device = gpu, device
        self._bandwidth_ceiling: float | None = None
        self.num_replayed = 0

    def stats(self, measure: bool) -> dict[str, Any]:
        """Return the compile time in seconds and the number of replayed decode steps.

        With `measure`, add the bandwidth ceiling, which the first such call measures.
        """
        if self._gpu is None:
            return {}
        found = {"compile_s": self._gpu.compile_s, "graph_steps": self.num_replayed}
        if measure:
            if not self._bandwidth_ceiling:
                self._bandwidth_ceiling = bandwidth_ceiling_bytes_per_s(self._device)
            if self._bandwidth_ceiling is not None:
                found["bandwidth_ceiling_bytes_per_s"] = self._bandwidth_ceiling
        return found
