"""Kernels of a mixture of experts on the GPU, alone: gate/up and down of published shapes.

    python benchmarks/gpu/experts.py [--cases gpt-oss-20b:MXFP4 …] [--rows 1 4 …]

Every launch of a graph reads other experts, so that none are in L2. Bandwidth is that of the bytes
that must be read; the ceiling is the fastest read measured in the same run.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from decode import CUBINS
from timing import captured, median_us

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.expert_matrices import ExpertMatrices
from swiftchat.cuda.ops.moe.experts import expert_down, expert_gate_up
from swiftchat.cuda.ops.moe.route import Routing, route
from swiftchat.cuda.packed_layout import has_row_scales, tiles_shape
from swiftchat.engine.gpu.bandwidth import bandwidth_ceiling_bytes_per_s

BYTES = 3_000_000_000  # of the matrices of all layers


@dataclass(frozen=True)
class Shape:
    """A layer: its experts, those of a token, and their sizes."""

    experts: int
    chosen: int
    hidden: int
    inner: int
    activation: str = "silu"


SHAPES = {
    "gpt-oss-20b": Shape(32, 4, 2880, 2880, "gelu_sigmoid"),
    "qwen3-30b-a3b": Shape(128, 8, 2048, 768),
    "deepseek-v2-lite": Shape(64, 6, 2048, 1408),
    "granite-4-h-tiny": Shape(64, 6, 1536, 512),
    "qwen3-next-80b-a3b": Shape(512, 10, 2048, 512),
}
SCHEMES = {
    "bf16": ("PLAIN", 0),
    "mxfp4": ("MXFP4", 32),
    "nvfp4": ("NVFP4", 16),
    "int4": ("INT4", 128),
    "int8": ("INT8", 0),
    "fp8": ("FP8", 0),
}
CASES = [
    "gpt-oss-20b:mxfp4",
    "qwen3-30b-a3b:bf16",
    "deepseek-v2-lite:bf16",
    "granite-4-h-tiny:bf16",
    "qwen3-next-80b-a3b:int4",
    "qwen3-30b-a3b:int4",
    "qwen3-30b-a3b:nvfp4",
    "qwen3-30b-a3b:int8",
    "qwen3-30b-a3b:fp8",
]


def random_matrices(
    scheme: str, group_size: int, experts: int, rows: int, columns: int
) -> tuple[ExpertMatrices, list[torch.Tensor]]:
    """Random matrices, with the tensors that hold them. The bits of packed ones are zeros."""

    def addresses(tensors: torch.Tensor) -> torch.Tensor:
        return torch.tensor([tensor.data_ptr() for tensor in tensors], device="cuda")

    second: torch.Tensor | None = None
    if scheme == "PLAIN":
        first = torch.zeros(experts, rows, columns, dtype=torch.bfloat16, device="cuda")
    else:
        shape = (experts, *tiles_shape(scheme, rows, columns, group_size))
        first = torch.zeros(shape, dtype=torch.uint8, device="cuda")
        second = torch.ones(experts, rows, device="cuda") if has_row_scales(scheme) else None
    scales = None if second is None else addresses(second)
    held = [first] if second is None else [first, second]
    matrices = ExpertMatrices(
        scheme, rows, columns, addresses(first), scales, group_size=group_size
    )
    return matrices, held


def report(name: str, us: float, num_bytes: float, ceiling: float) -> None:
    rate = num_bytes / us * 1e6
    print(f"  {name:40} {us:7.2f} us  {rate / 1e12:.2f} TB/s {rate / ceiling:4.0%}", flush=True)


class Case:
    """Layers of a shape, with inputs for n rows."""

    def __init__(self, gpu: Gpu, name: str) -> None:
        shape_name, _, scheme_name = name.partition(":")
        self.gpu, self.name, self.shape = gpu, name, SHAPES[shape_name]
        shape, scheme = self.shape, SCHEMES[scheme_name]
        self.layers: list[tuple[ExpertMatrices, ExpertMatrices]] = []
        held: list[torch.Tensor] = []
        while sum(tensor.nbytes for tensor in held) < BYTES or len(self.layers) < 2:
            inputs, first = random_matrices(*scheme, shape.experts, 2 * shape.inner, shape.hidden)
            outputs, second = random_matrices(*scheme, shape.experts, shape.hidden, shape.inner)
            self.layers.append((inputs, outputs))
            held += [*first, *second]
        self._held = held

    def load(self, n: int) -> float:
        """Make inputs for n rows; return how many experts a layer reads on average."""
        shape = self.shape
        ids = [
            torch.stack([torch.randperm(shape.experts)[: shape.chosen] for _ in range(n)])
            for _ in self.layers
        ]
        self.ids = [each.int().cuda() for each in ids]
        self.x = torch.randn(n, shape.hidden, device="cuda").bfloat16()
        self.inner = torch.randn(n, shape.chosen, shape.inner, device="cuda").bfloat16()
        self.weights = torch.rand(n, shape.chosen, device="cuda")
        self.out = torch.empty(n, shape.hidden, device="cuda")
        return sum(len(each.unique()) for each in ids) / len(ids)

    def gate_up(self, layer: int) -> None:
        shape, matrices = self.shape, self.layers[layer][0]
        expert_gate_up(self.gpu, self.x, matrices, self.ids[layer], self.inner, shape.activation)

    def down(self, layer: int) -> None:
        matrices = self.layers[layer][1]
        expert_down(self.gpu, self.inner, matrices, self.ids[layer], self.weights, self.out)

    def both(self, layer: int) -> None:
        self.gate_up(layer)
        self.down(layer)

    def us(self, part: Callable[[int], None]) -> float:
        """Time a part of a layer."""

        def run() -> None:
            for layer in range(len(self.layers)):
                part(layer)

        return median_us(captured(run).replay) / len(self.layers)


def measure(gpu: Gpu, name: str, rows: list[int], ceiling: float) -> None:
    """Time gate/up, down and both of a case; each graph has as many launches as layers."""
    case = Case(gpu, name)
    first, second = (each.matrix_bytes(2) for each in case.layers[0])
    for n in rows:
        num_read = case.load(n)
        for part, run, num_bytes in (
            ("gate/up", case.gate_up, first),
            ("down", case.down, second),
            ("both", case.both, first + second),
        ):
            report(f"{name}, {n} rows, {part}", case.us(run), num_read * num_bytes, ceiling)


def measure_route(gpu: Gpu, ceiling: float) -> None:
    logits = torch.randn(1, 256, device="cuda")
    ids, weights = (
        torch.zeros(1, 8, dtype=torch.int32, device="cuda"),
        torch.zeros(1, 8, device="cuda"),
    )
    for name, how in (
        ("128 of softmax", Routing(normalized=True)),
        ("256 in groups", Routing(True, num_groups=8, top_groups=4, normalized=True, scale=2.5)),
    ):
        some = logits[:, : int(name.split()[0])].contiguous()

        def run(some: torch.Tensor = some, how: Routing = how) -> None:
            for _ in range(16):
                route(gpu, some, ids, weights, how)

        report(f"route, {name}", median_us(captured(run).replay) / 16, 0, ceiling)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", nargs="+", default=CASES)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    args = parser.parse_args()
    device = torch.device("cuda", 0)
    gpu, ceiling = Gpu(device, CubinCache(CUBINS)), bandwidth_ceiling_bytes_per_s(device)
    print(f"{torch.cuda.get_device_name()}; bandwidth ceiling {ceiling / 1e12:.2f} TB/s")
    measure_route(gpu, ceiling)
    for name in args.cases:
        measure(gpu, name, args.rows, ceiling)


if __name__ == "__main__":
    main()
