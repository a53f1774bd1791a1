"""The experts of a model of which some layers' are in main memory."""

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.layout import MAX_GEMV_ROWS
from swiftchat.cuda.ops.linear.linear import Norm
from swiftchat.cuda.ops.moe.host_call import MAILBOX_WORDS, HostChannel, host_call
from swiftchat.engine.cpu.activation_op import act_and_mul_op
from swiftchat.engine.cpu.experts import routed_op
from swiftchat.engine.cpu.host_caller import HostCaller
from swiftchat.engine.cpu.program import Pool
from swiftchat.engine.cpu.references import References
from swiftchat.engine.cpu.routed_experts import InputLayout, RoutedExperts
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.gpu.moe import ExpertKernels
from swiftchat.engine.gpu.router import LayerRouter
from swiftchat.engine.model.moe import Experts
from swiftchat.weights.architectures.parts.model import ModelConfig

# Of a call; more are divided. A prompt's rows of one expert are then some dozen, of which a core
# computes longer than it reads the matrices.
_MAX_ROWS = 512
_FIRST_WORDS = 4  # that the kernel copies where the copy engine copies the others


class PlacedExperts(ExpertKernels):
    """The routed experts of a model's layers, those of some in main memory.

    The GPU chooses the experts of such a layer. A kernel copies the rows and their choices to
    pinned memory, waits until a thread has let the CPU's kernels compute them, and copies the sums
    back. Rows of more than one step or layer are never there at the same time: all are of one
    stream.
    """

    def __init__(
        self,
        kernels: LinearKernels,
        config: ModelConfig,
        pool: Pool,
        placed: Mapping[int, Experts],
    ) -> None:
        """`placed` are the experts in main memory, at least those of one layer.

        Raises `CannotRecordError` for experts that the CPU's kernels do not compute, and
        MemoryError.
        """
        super().__init__(kernels, config)
        self._routers = {i: LayerRouter.of(experts, kernels) for i, experts in placed.items()}
        dtype = next(iter(placed.values())).router.dtype
        self._rows = _ExchangedRows(
            kernels, InputLayout(config.hidden_size, self._config.experts_per_token)
        )
        references, act = References(placed), act_and_mul_op(config.activation)
        ops = {
            i: routed_op(self._config, experts.each, act, references, exact=dtype == torch.float32)
            for i, experts in placed.items()
        }
        memory = self._rows.layout, self._rows.inputs_on_host, self._rows.sums_on_host
        self._on_host = RoutedExperts(pool, ops, references, *memory)
        self._caller = HostCaller(pool.library, self._rows.channel.mailbox, kernels.gpu.synchronize)
        # The thread must have ended before what it reads is freed.
        weakref.finalize(self, self._caller.close)

    def support(self, layer: int, experts: Experts) -> bool:
        return layer in self._routers or super().support(layer, experts)

    def compute(
        self, layer: int, x: Tensor, experts: Experts, router_input: Tensor | None = None
    ) -> Tensor:
        own = self._routers.get(layer)
        if own is None:
            return super().compute(layer, x, experts, router_input)
        seen, out = (
            x if router_input is None else router_input,
            torch.empty(x.shape, device=x.device),
        )
        for first in range(0, len(x), _MAX_ROWS):
            part = slice(first, first + _MAX_ROWS)
            inputs = self._rows.inputs(len(x[part]))
            self._router.choose(own, seen[part], inputs.ids, inputs.weights)
            inputs.x.copy_(x[part])
            out[part].copy_(self._sums(layer, len(x[part])))
        return out

    def adds(self, layer: int, experts: Experts, n: int) -> bool:
        return n <= MAX_GEMV_ROWS if layer in self._routers else super().adds(layer, experts, n)

    def adds_shared(self, layer: int, experts: Experts) -> bool:
        return layer not in self._routers and super().adds_shared(layer, experts)

    def add(
        self,
        layer: int,
        x: Tensor,
        norm: Norm,
        experts: Experts,
        expert_norm: Tensor | None = None,
        out: Tensor | None = None,
        beside: Callable[[], None] | None = None,
    ) -> None:
        own = self._routers.get(layer)
        if own is None:
            super().add(layer, x, norm, experts, expert_norm, out, beside)
            return
        inputs, normed = self._rows.inputs(len(x)), own.rows.new_empty(x.shape)
        choices = inputs.ids, inputs.weights
        self._router.choose_of_norm(own, x, norm, normed, *choices, expert_norm)
        inputs.x.copy_(normed)
        if beside is None:
            sums = self._sums(layer, len(x))
        else:
            with self._kernels.gpu.beside():
                sums = self._sums(layer, len(x))
            beside()
            self._kernels.gpu.join()
        (x if out is None else out).add_(sums)

    def _sums(self, layer: int, n: int) -> Tensor:
        """Return the sums of the n rows that were written to the inputs."""
        return self._rows.exchange(self._kernels.gpu, self._on_host.call(layer, n), n)


@dataclass(frozen=True)
class _Inputs:
    """Rows x fp32 [n, hidden_size], the ids int32 of their experts, and the weights fp32."""

    x: Tensor
    ids: Tensor
    weights: Tensor


class _ExchangedRows:
    """Inputs and outputs of experts in main memory, on both sides, and the way between them."""

    def __init__(self, kernels: LinearKernels, layout: InputLayout) -> None:
        self.layout, device = layout, kernels.gpu.device
        self._inputs = torch.zeros(layout.num_words(_MAX_ROWS), device=device)
        self._sums = torch.zeros(_MAX_ROWS * layout.hidden_size, device=device)
        self.inputs_on_host = torch.zeros(self._inputs.shape).pin_memory()
        self.sums_on_host = torch.zeros(self._sums.shape).pin_memory()
        mailbox = torch.zeros(MAILBOX_WORDS, dtype=torch.int64).pin_memory()
        requests = torch.zeros(1, dtype=torch.int64, device=device)
        self.channel = HostChannel(mailbox, requests)

    def inputs(self, n: int) -> _Inputs:
        """Return the memory of the inputs of n rows on the GPU."""
        layout, begins = self.layout, self.layout.begins(n)
        x = self._inputs[: n * layout.hidden_size].view(n, -1)
        num_choices = n * layout.experts_per_token
        ids, weights = (self._inputs[at : at + num_choices].view(n, -1) for at in begins)
        return _Inputs(x, ids.view(torch.int32), weights)

    def exchange(self, gpu: Gpu, call: int, n: int) -> Tensor:
        """Let the host make a call for n rows; return their sums, fp32 [n, hidden_size]."""
        words, size = slice(self.layout.num_words(n)), slice(n * self.layout.hidden_size)
        inputs, host_inputs = self._inputs[words], self.inputs_on_host[words]
        sums, host_sums = self._sums[size], self.sums_on_host[size]
        # The kernel's one block copies few rows quickly, and many slowly: the copy engine does.
        first = _FIRST_WORDS if n > MAX_GEMV_ROWS else None
        if first is not None:
            host_inputs[first:].copy_(inputs[first:], non_blocking=True)
        host = host_inputs[:first], host_sums[:first]
        host_call(gpu, self.channel, call, inputs[:first], *host, sums[:first])
        if first is not None:
            sums[first:].copy_(host_sums[first:], non_blocking=True)
        return sums.view(n, -1)
