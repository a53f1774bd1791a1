"""Kernels of the experts of a prompt on the GPU, alone: GPT-OSS-20B and DeepSeek-V2-Lite.

    python benchmarks/gpu/grouped_experts.py [--tokens 64 512 2048]

Experts are chosen by chance. Rates count the multiplications of real rows and, of the matrices,
those of chosen experts.
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
from swiftchat.cuda.ops.moe.grouped_experts import (
    expert_order,
    expert_sum,
    grouped_down,
    grouped_gate_up,
)
from swiftchat.cuda.packed_layout import has_row_scales, tiles_shape


@dataclass(frozen=True)
class Shape:
    name: str
    experts: int
    chosen: int
    hidden: int
    inner: int
    scheme: str = "PLAIN"


SHAPES = [
    Shape("GPT-OSS-20B mxfp4", 32, 4, 2880, 2880, "MXFP4"),
    Shape("GPT-OSS-20B bf16", 32, 4, 2880, 2880),
    Shape("DeepSeek-V2-Lite bf16", 64, 6, 2048, 1408),
    Shape("Qwen3-30B-A3B bf16", 128, 8, 2048, 768),
    Shape("Qwen3-30B-A3B int4, groups of 128", 128, 8, 2048, 768, "INT4"),
    Shape("Qwen3-30B-A3B nvfp4", 128, 8, 2048, 768, "NVFP4"),
    Shape("Qwen3-30B-A3B int8", 128, 8, 2048, 768, "INT8"),
]


def addresses(tensors: torch.Tensor) -> torch.Tensor:
    return torch.tensor([tensor.data_ptr() for tensor in tensors], device="cuda")


def random_matrices(
    shape: Shape, rows: int, columns: int
) -> tuple[ExpertMatrices, list[torch.Tensor]]:
    """Matrices of a layer, with the tensors that hold them."""
    num_experts, scheme = shape.experts, shape.scheme
    group_size = {"INT4": 128, "MXFP4": 32, "NVFP4": 16}.get(scheme, 0)
    if scheme == "PLAIN":
        tensor = torch.empty(num_experts, rows, columns, device="cuda", dtype=torch.bfloat16)
        tensor.normal_(std=columns**-0.5)
        return ExpertMatrices(scheme, rows, columns, addresses(tensor)), [tensor]
    size = (num_experts, *tiles_shape(scheme, rows, columns, group_size))
    # As fp16 scales these bytes are finite.
    values = torch.randint(0, 40, size, dtype=torch.uint8, device="cuda")
    scales = torch.full((num_experts, rows), 1e-3, device="cuda")
    of_rows = addresses(scales) if has_row_scales(scheme) else None
    places = addresses(values), of_rows
    matrices = ExpertMatrices(scheme, rows, columns, *places, None, group_size)
    return matrices, [values, scales]


def measure(gpu: Gpu, shape: Shape, n: int, matrices: list[ExpertMatrices], size: float) -> str:
    """Time the kernels of a layer for n tokens; all its matrices have `size` bytes."""
    inputs, outputs = matrices
    scores = torch.rand(n, shape.experts, device="cuda")
    ids = scores.topk(shape.chosen, 1).indices.int().contiguous()
    x = torch.randn(n, shape.hidden, device="cuda").bfloat16()
    inner = x.new_empty(n * shape.chosen, shape.inner)
    parts = x.new_empty(n, shape.chosen, shape.hidden)
    weights, out = torch.rand(n, shape.chosen, device="cuda"), torch.empty_like(x).float()
    rows = expert_order(gpu, ids, shape.experts)
    moved = size * len(ids.unique()) / shape.experts
    flop = 6 * n * shape.chosen * shape.hidden * shape.inner
    shares = {"order": 0.0, "gate/up": 2 / 3, "down": 1 / 3, "sum": 0.0}
    runs: dict[str, Callable[[], object]] = {
        "order": lambda: expert_order(gpu, ids, shape.experts),
        "gate/up": lambda: grouped_gate_up(gpu, x, inputs, rows, inner, "silu"),
        "down": lambda: grouped_down(gpu, inner, outputs, rows, parts.flatten(0, 1)),
        "sum": lambda: expert_sum(gpu, parts, weights, out),
    }
    line = [f"  {n:5} tokens"]
    for name, run in runs.items():
        us, share = median_us(captured(run).replay), shares[name]
        rates = f" ({share * flop / us / 1e6:.0f} TFLOPS, {share * moved / us / 1e6:.2f} TB/s)"
        line.append(f"{name} {us:.1f} us" + (rates if share else ""))
    return ", ".join(line)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 128, 512, 2048])
    args = parser.parse_args()
    gpu = Gpu(torch.device("cuda", 0), CubinCache(CUBINS))
    print(torch.cuda.get_device_name())
    for shape in SHAPES:
        inputs, held = random_matrices(shape, 2 * shape.inner, shape.hidden)
        outputs, also_held = random_matrices(shape, shape.hidden, shape.inner)
        size = sum(tensor.nbytes for tensor in held + also_held)
        print(shape.name)
        for n in args.tokens:
            print(measure(gpu, shape, n, [inputs, outputs], size), flush=True)


if __name__ == "__main__":
    main()
