"""Kernels of a mixture of experts on the GPU, alone: GPT-OSS-20B's experts in MXFP4 and bf16.

    python benchmarks/gpu/experts.py [--rows 1 4 …]

Every launch of a graph reads other experts, so that none are in L2. Bandwidth is that of the bytes
that must be read; the ceiling is the fastest read measured in the same run.
"""

import argparse

import torch
from decode import CUBINS
from timing import bandwidth_ceiling_bytes_per_s, captured, median_us

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe import Routing, expert_down, expert_gate_up, route
from swiftchat.cuda.ops.mxfp4 import PackedExperts, mxfp4_down, mxfp4_gate_up

EXPERTS, CHOSEN, HIDDEN, INNER = 32, 4, 2880, 2880
LAYERS = 8


def addresses(tensors: torch.Tensor) -> torch.Tensor:
    return torch.tensor([tensor.data_ptr() for tensor in tensors], device="cuda")


def packed_layers(rows: int, columns: int) -> list[tuple[PackedExperts, list[torch.Tensor]]]:
    """Random matrices of each layer, with the tensors that hold them."""
    layers = []
    for _ in range(LAYERS):
        blocks = torch.randint(
            0, 256, (EXPERTS, rows, columns // 32, 16), dtype=torch.uint8, device="cuda"
        )
        scales = torch.full(blocks.shape[:-1], 120, dtype=torch.uint8, device="cuda")
        biases = torch.randn(EXPERTS, rows, device="cuda").bfloat16()
        experts = PackedExperts(addresses(blocks), addresses(scales), addresses(biases))
        layers.append((experts, [blocks, scales, biases]))
    return layers


def ids_of(n: int) -> list[torch.Tensor]:
    """Different experts for every layer."""
    rows = [
        torch.stack([torch.randperm(EXPERTS, device="cuda")[:CHOSEN] for _ in range(n)])
        for _ in range(LAYERS)
    ]
    return [each.int() for each in rows]


def report(name: str, us: float, num_bytes: int, ceiling: float) -> None:
    rate = num_bytes / us * 1e6
    print(f"  {name:28} {us:7.2f} us  {rate / 1e12:.2f} TB/s {rate / ceiling:4.0%}", flush=True)


def read_experts(ids: list[torch.Tensor]) -> float:
    """The mean number of different experts that a layer reads."""
    return sum(len(each.unique()) for each in ids) / LAYERS


class Layers:
    """The experts of several layers, packed and in bf16."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.inputs = packed_layers(2 * INNER, HIDDEN)
        self.outputs = packed_layers(HIDDEN, INNER)
        self.plain = torch.randn(LAYERS // 2, EXPERTS, 2 * INNER, HIDDEN, device="cuda").bfloat16()
        self.plain_addresses = [addresses(each) for each in self.plain] * 2

    def measure(self, n: int, ceiling: float) -> None:
        gpu, ids = self.gpu, ids_of(n)
        num_read = read_experts(ids)
        x = torch.randn(n, HIDDEN, device="cuda").bfloat16()
        inner = torch.randn(n, CHOSEN, INNER, device="cuda").bfloat16()
        weights = torch.rand(n, CHOSEN, device="cuda")
        out = torch.empty(n, HIDDEN, device="cuda")
        logits, chosen = torch.randn(n, 256, device="cuda"), ids[0].clone()
        how = Routing(True, num_groups=8, top_groups=4, normalized=True, scale=2.5)
        gate = {"gate_step": 2, "limit": 7.0}

        def gate_ups() -> None:
            for (experts, _), own in zip(self.inputs, ids, strict=True):
                mxfp4_gate_up(gpu, x, experts, own, inner, "gelu_sigmoid", **gate)

        def downs() -> None:
            for (experts, _), own in zip(self.outputs, ids, strict=True):
                mxfp4_down(gpu, inner, experts, own, weights, out)

        def plain_gate_ups() -> None:
            for each, own in zip(self.plain_addresses, ids, strict=True):
                expert_gate_up(gpu, x, each, own, inner, "gelu_sigmoid", **gate)

        def plain_downs() -> None:
            for each, own in zip(self.plain_addresses, ids, strict=True):
                expert_down(gpu, inner, each, own, weights, out)

        def routes() -> None:
            for _ in range(LAYERS):
                route(gpu, logits, chosen, weights, how)

        print(f" {n} rows: {num_read:.1f} experts a layer")
        matrix = 2 * INNER * HIDDEN
        for name, run, num_bytes in (
            ("mxfp4_gate_up", gate_ups, num_read * matrix * 17 / 32),
            ("mxfp4_down", downs, num_read * matrix / 2 * 17 / 32),
            ("expert_gate_up bf16", plain_gate_ups, num_read * matrix * 2),
            ("expert_down bf16", plain_downs, num_read * matrix),
            ("route, 256 experts", routes, 0),
        ):
            report(name, median_us(captured(run).replay) / LAYERS, int(num_bytes), ceiling)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    args = parser.parse_args()
    device = torch.device("cuda", 0)
    gpu, ceiling = Gpu(device, CubinCache(CUBINS)), bandwidth_ceiling_bytes_per_s(device)
    print(f"{torch.cuda.get_device_name()}; bandwidth ceiling {ceiling / 1e12:.2f} TB/s")
    layers = Layers(gpu)
    for n in args.rows:
        layers.measure(n, ceiling)


if __name__ == "__main__":
    main()
