"""The pending output of a layer's experts, which their kernels add to the stream."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from swiftchat.engine.gpu.fused.matmul import Matmul, MatmulKernels
from swiftchat.engine.gpu.fused.norm import Normed
from swiftchat.engine.gpu.fused.pending import Pending, Reading
from swiftchat.engine.gpu.moe import ExpertKernels
from swiftchat.engine.model.moe import Expert, Experts


class ExpertSum(Pending):
    """The weighted sum of the outputs of a layer's experts: fp32 [n, hidden_size].

    Without an `activation` no kernel computes the gates of a shared expert.
    """

    def __init__(
        self,
        kernels: MatmulKernels,
        experts: ExpertKernels,
        layer: int,
        x: Tensor,
        weights: Experts,
        router_input: Tensor | None,
        activation: str | None,
        compute: Callable[[], Tensor],
    ) -> None:
        self._computed, self._compute = None, compute
        self._kernels, self._experts, self._layer = kernels, experts, layer
        self._x, self._weights, self._router_input = x, weights, router_input
        self._activation = activation

    def compute(self) -> Tensor:
        return self._compute()

    @property
    def adds(self) -> bool:
        """Whether the kernels compute the norms of the input, and the shared expert."""
        x, seen = self._x, self._router_input
        if not (self.is_pending and isinstance(x, Normed) and x.is_pending):
            return False
        if seen is not None and not (
            isinstance(seen, Normed) and seen.is_pending and seen.source is x.source
        ):
            return False
        if not self._experts.adds(self._layer, self._weights, len(x.rows)):
            return False
        shared = self._separate
        return shared is None or (self._weights.shared_router is None and self._fits(shared))

    @property
    def _separate(self) -> Expert | None:
        """The shared expert, unless the kernels compute it with the others."""
        is_chosen = self._experts.adds_shared(self._layer, self._weights)
        return None if is_chosen else self._weights.shared

    def _fits(self, shared: Expert) -> bool:
        gate_up, down = (
            Matmul(self._kernels, self._x, matrix, None) for matrix in (shared.gate_up, shared.down)
        )
        return (
            self._activation is not None
            and len(gate_up.matrices) == len(down.matrices) == 1
            and gate_up.fits(pair_span=shared.gate_up.shape[0])
            and down.fits(splittable=True)
        )

    @property
    def readings(self) -> Sequence[Reading]:
        return [own for own in (self._x, self._router_input) if isinstance(own, Reading)]

    def add_to(self, total: Tensor) -> None:
        x, shared = self._x, self._separate
        add_shared: Callable[[], None] | None = None
        assert isinstance(x, Normed)
        if shared is not None and self._activation is not None:
            # The shared expert reads the stream before anything is added to it.
            gate_up = Matmul(self._kernels, x, shared.gate_up, shared.gate_up_bias)
            inner = gate_up.act_and_mul(self._activation)
            if inner is not None:
                down = Matmul(self._kernels, inner, shared.down, shared.down_bias)
                add_shared = partial(down.add_to, total)
        norm, expert_norm = x.rms, None
        if isinstance(self._router_input, Normed):
            norm, expert_norm = self._router_input.rms, x.rms.weight
        self._experts.add(self._layer, x.rows, norm, self._weights, expert_norm, total, add_shared)
