"""The back end of a GPU that does not hold all experts of a model."""

from dataclasses import dataclass

from swiftchat.engine.api.expert_placement import unplaced_reason
from swiftchat.engine.cpu.back_end import NativeBackEnd
from swiftchat.engine.cpu.recorded_activations import CannotRecordError
from swiftchat.engine.gpu.moe import ExpertKernels
from swiftchat.engine.gpu.router import routing_fits
from swiftchat.engine.gpu.steps.back_end import GpuBackEnd
from swiftchat.engine.hybrid.placed_experts import PlacedExperts
from swiftchat.engine.hybrid.placed_weights import PlacedWeights
from swiftchat.engine.linear.factory import WeightFactory
from swiftchat.engine.model.decoder_parts import DecoderParts
from swiftchat.errors import DeviceError
from swiftchat.weights.architectures.parts.mlp import Moe
from swiftchat.weights.architectures.tensors import is_of_routed_expert, tensor_name
from swiftchat.weights.parallel.tensor_parallel import Shard


@dataclass(frozen=True)
class HybridBackEnd(GpuBackEnd):
    """Computes as `GpuBackEnd`, but the experts of some layers with the CPU's kernels.

    `host_tensors` are the names of these experts in the checkpoint.
    """

    host: NativeBackEnd
    host_layers: tuple[int, ...]
    host_tensors: frozenset[str]

    @classmethod
    def of(
        cls, gpu: GpuBackEnd, host: NativeBackEnd, shard: Shard, host_layers: tuple[int, ...]
    ) -> "HybridBackEnd":
        """Return the back end of a model on one rank; raises `DeviceError` if it cannot be."""
        moe = shard.config.moe
        problem = "it has no experts" if moe is None else _problem(moe)
        if problem:
            raise not_placed(problem)
        keys = (key for key, _ in shard.own_tensors())
        names = (
            tensor_name(shard.config, *key)
            for key in keys
            if key[1] in host_layers and is_of_routed_expert(key[0])
        )
        return cls(gpu.kernels, host, host_layers, frozenset(names))

    @property
    def description(self) -> str:
        return f"experts of {len(self.host_layers)} layers by {self.host.description}"

    @property
    def factory(self) -> WeightFactory:
        return PlacedWeights(self.kernels, self.host.factory, self.host_tensors)

    def experts(self, parts: DecoderParts) -> ExpertKernels:
        """As `GpuBackEnd.experts`; raises `DeviceError` for experts that no kernel computes."""
        layers = parts.weights.layers
        placed = {i: own for i in self.host_layers if (own := layers[i].experts) is not None}
        try:
            return PlacedExperts(self.kernels, parts.shard.local_config, self.host.pool, placed)
        except CannotRecordError as error:
            raise not_placed(str(error)) from None


def not_placed(reason: str) -> DeviceError:
    """Return the error of a model whose experts cannot be in main memory beside a GPU."""
    return DeviceError(
        f"the model's experts cannot be in main memory: {reason}",
        "use a GPU that holds them, several with --tp, or --device cpu",
    )


def _problem(moe: Moe) -> str:
    """Return why the router or the experts have no kernel; empty: they have."""
    if not routing_fits(moe.router):
        return "no kernel of the GPU computes their router"
    return unplaced_reason(moe)
