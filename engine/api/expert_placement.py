"""Which layers' experts a GPU holds: as many as fit, from the first layer on."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from swiftchat.errors import DeviceError, OutOfMemory
from swiftchat.weights.architectures.parts.mlp import Moe
from swiftchat.weights.architectures.tensors import is_of_routed_expert
from swiftchat.weights.parallel.tensor_parallel import TensorKey

# Returns whether weights of so many bytes, with a KV cache of so many tokens, fit a GPU of so many.
Fits = Callable[[int, int, int], bool]

# The context for which experts make room, if none was requested.
PLACED_CONTEXT_TOKENS = 4096
_STEP_BYTES = 1 << 20  # of the search for the least memory


def unplaced_reason(moe: Moe) -> str:
    """Return why the CPU's kernels do not compute experts for a GPU; empty: they do."""
    if moe.router.on_input:
        return "no kernel of the CPU weighs the input of experts"
    if moe.identity_experts:
        return "no kernel of the CPU has identity experts"
    return "no kernel of the CPU projects the input of experts" if moe.latent_size else ""


@dataclass(frozen=True)
class LayerExperts:
    """The routed experts of a layer, and their bytes in the memory of either."""

    layer: int
    gpu_bytes: int
    host_bytes: int


@dataclass(frozen=True)
class ExpertPlacement:
    """The layers whose routed experts are in main memory, the last ones of those that have experts.

    `gpu_bytes` is the size of all other weights, `host_bytes` that of these experts.
    """

    num_layers: int
    host_layers: tuple[int, ...]
    gpu_bytes: int
    host_bytes: int

    @property
    def description(self) -> str:
        """Where the experts are, for the user."""
        on_gpu = self.num_layers - len(self.host_layers)
        return f"{on_gpu} of {self.num_layers} layers' experts on the GPU, the rest in main memory"


@dataclass(frozen=True)
class ExpertSizes:
    """The sizes of a model's weights that decide where its experts go.

    `weights_bytes` is the size of all weights on the GPU; the layers are in ascending order.
    """

    weights_bytes: int
    layers: Sequence[LayerExperts]

    @classmethod
    def of(
        cls, gpu: Iterable[tuple[TensorKey, int]], host: Iterable[tuple[TensorKey, int]]
    ) -> "ExpertSizes":
        """Return the sizes of tensors, given those of all of them in either memory."""
        total, sizes = 0, dict[int, list[int]]()
        for side, tensors in enumerate((gpu, host)):
            for (canonical, layer, _), nbytes in tensors:
                total += nbytes if side == 0 else 0
                if layer is not None and is_of_routed_expert(canonical):
                    sizes.setdefault(layer, [0, 0])[side] += nbytes
        return cls(total, [LayerExperts(layer, *both) for layer, both in sorted(sizes.items())])

    def placement(self, num_host: int) -> ExpertPlacement:
        """Return the placement with the experts of the last `num_host` layers in main memory."""
        host = self.layers[len(self.layers) - num_host :]
        return ExpertPlacement(
            len(self.layers),
            tuple(each.layer for each in host),
            self.weights_bytes - sum(each.gpu_bytes for each in host),
            sum(each.host_bytes for each in host),
        )


@dataclass(frozen=True)
class Room:
    """The memory for a model: free bytes of the GPU and of main memory, and what must fit.

    `context_tokens` are the wanted size of the KV cache and, if that does not fit even without
    any experts, the least one.
    """

    gpu_bytes: int
    host_bytes: int
    context_tokens: tuple[int, int]
    fits: Fits


def place_experts(sizes: ExpertSizes, room: Room, num_host: int | None) -> ExpertPlacement:
    """Place the experts of `num_host` layers in main memory; None: as few as the GPU requires.

    Raises `DeviceError` if the model has fewer such layers, and `OutOfMemory`, which says what is
    needed, if the GPU is too small for the rest or main memory for the experts.
    """
    num_layers = len(sizes.layers)
    if num_host is not None and num_host > num_layers:
        raise DeviceError(
            f"--cpu-experts {num_host}: the model has {num_layers} layers with experts",
            f"use --cpu-experts {num_layers} or less, or auto",
        )
    placement = _least(sizes, room) if num_host is None else sizes.placement(num_host)
    least_tokens = room.context_tokens[-1]
    if not room.fits(placement.gpu_bytes, least_tokens, room.gpu_bytes):
        _raise_too_small(placement, room)
    if placement.host_bytes > room.host_bytes:
        raise OutOfMemory(
            f"not enough main memory: {placement.host_bytes / 1e9:.2f} GB needed for experts of "
            f"{len(placement.host_layers)} of {num_layers} layers, {room.host_bytes / 1e9:.2f} GB "
            "free",
            "end other programs, or use a smaller model",
        )
    return placement


def _least(sizes: ExpertSizes, room: Room) -> ExpertPlacement:
    """Return the placement with the fewest layers in main memory; all of them if none fits."""
    placements = [sizes.placement(number) for number in range(len(sizes.layers) + 1)]
    for num_tokens in room.context_tokens:
        for placement in placements:
            if room.fits(placement.gpu_bytes, num_tokens, room.gpu_bytes):
                return placement
    return placements[-1]


def _raise_too_small(placement: ExpertPlacement, room: Room) -> None:
    tokens = room.context_tokens[-1]
    steps = range(1, 1 << 24)
    least = bisect_left(
        steps, True, key=lambda step: room.fits(placement.gpu_bytes, tokens, step * _STEP_BYTES)
    )
    needed = steps[min(least, len(steps) - 1)] * _STEP_BYTES
    raise OutOfMemory(
        f"not enough memory on the GPU: with {placement.description} the model needs "
        f"{needed / 2**20:.0f} MiB, {room.gpu_bytes / 2**20:.0f} MiB are free for it",
        "use a larger --gpu-memory or --cpu-experts, or a smaller model",
    )
