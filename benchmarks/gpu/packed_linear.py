"""Skinny GEMMs of a Llama-3.1-8B layer, with bf16 weights and in every quantization scheme.

Times each matrix alone, in a CUDA graph over more matrices than L2 holds, then the four of a layer
in their order. Prints µs and the TB/s of the bytes that must be read, beside the bandwidth ceiling
of the same run, and the time to dequantize each matrix for a prefill.

    python benchmarks/gpu/packed_linear.py --rows 1 8 16
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from timing import captured, median_us
from torch import Tensor

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.linear import (
    LinearInput,
    Norm,
    Workspace,
    linear,
    linear_act_and_mul,
    linear_residual,
)
from swiftchat.cuda.ops.linear.quantize import dequantize
from swiftchat.cuda.packed_matrix import (
    Matrix,
    PackedMatrix,
    pack_fp8,
    pack_int4,
    pack_int8,
    pack_int8_groups,
    pack_mxfp4,
    pack_nvfp4,
)
from swiftchat.engine.gpu.bandwidth import bandwidth_ceiling_bytes_per_s

SHAPES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
SCHEMES = (
    "plain",
    "int8",
    "fp8",
    "fp8-64",
    "int4-128",
    "int4-64",
    "int4-32",
    "int8-32",
    "mxfp4-32",
    "nvfp4-16",
)
DTYPE = torch.bfloat16
_BYTES = 2**29  # of distinct matrices in a graph, several times L2


def random_matrix(scheme: str, rows: int, k: int) -> Matrix:
    if scheme == "plain":
        return torch.randn(rows, k, device="cuda", dtype=DTYPE) * k**-0.5
    scale = torch.rand(rows, device="cuda") / 1000
    if scheme == "int8":
        return pack_int8(
            torch.randint(-127, 128, (rows, k), dtype=torch.int8, device="cuda"), scale, DTYPE
        )
    values = torch.randint(0, 256, (rows, k), dtype=torch.uint8, device="cuda")
    floats = values.masked_fill((values & 0x7F) == 0x7F, 0)
    if scheme == "fp8":
        return pack_fp8(floats, scale, DTYPE)
    groups = k // int(scheme.partition("-")[2])
    scales = torch.rand(rows, groups, device="cuda") / 100
    if scheme == "fp8-64":
        return pack_fp8(floats, scales / 10, DTYPE)
    if scheme == "mxfp4-32":
        powers = torch.full((rows, groups), 118, dtype=torch.uint8, device="cuda")
        return pack_mxfp4(values[:, : k // 2].contiguous(), powers, DTYPE)
    if scheme == "nvfp4-16":
        e4m3 = torch.randint(0, 127, (rows, groups), dtype=torch.uint8, device="cuda")
        return pack_nvfp4(values[:, : k // 2].contiguous(), e4m3, scale, DTYPE)
    zero_points = torch.randint(0, 16, (rows, groups), device="cuda").float()
    if scheme == "int8-32":
        return pack_int8_groups(values, scales / 16, zero_points + 120, DTYPE)
    return pack_int4(values[:, : k // 2].contiguous(), scales, zero_points, DTYPE)


class Layer:
    """The inputs and outputs of a layer's matmuls for n rows."""

    def __init__(self, gpu: Gpu, n: int) -> None:
        self._gpu, self._workspace = gpu, Workspace(gpu, 4096)
        self._residual = torch.randn(n, 4096, device="cuda")
        self._norm = Norm(torch.randn(4096, device="cuda", dtype=DTYPE), 1e-5)
        self._qkv = torch.randn(n, 6144, device="cuda", dtype=DTYPE)
        self._attention = torch.randn(n, 4096, device="cuda", dtype=DTYPE)
        self._inner = torch.randn(n, 14336, device="cuda", dtype=DTYPE)

    def matmul(self, name: str, weight: Matrix) -> None:
        gpu, workspace, x = self._gpu, self._workspace, self._residual
        if name == "qkv":
            linear(gpu, LinearInput(x, norm=self._norm), weight, self._qkv, workspace)
        elif name == "gate_up":
            linear_act_and_mul(
                gpu,
                LinearInput(x, norm=self._norm),
                weight,
                self._inner,
                workspace,
                activation="silu",
            )
        else:
            branch: Tensor = self._attention if name == "o" else self._inner
            linear_residual(gpu, LinearInput(branch), weight, x, workspace)


def timed(name: str, run: Callable[[], object], num_bytes: int, count: int) -> None:
    us = median_us(captured(run).replay) / count
    print(f"  {name:<22}{us:8.2f} µs {num_bytes / us / 1e6:6.2f} TB/s", flush=True)


def time_matmuls(layer: Layer, matrices: dict[str, list[Matrix]]) -> None:
    def each(name: str) -> None:
        for weight in matrices[name]:
            layer.matmul(name, weight)

    def whole() -> None:
        for i in range(4):
            for name, weights in matrices.items():
                layer.matmul(name, weights[i])

    for name, weights in matrices.items():
        timed(name, partial(each, name), weights[0].nbytes, len(weights))
    timed("layer", whole, sum(weights[0].nbytes for weights in matrices.values()), 4)


def time_dequantize(gpu: Gpu, matrices: dict[str, list[Matrix]]) -> None:
    def each(weights: list[PackedMatrix], out: Tensor) -> None:
        for weight in weights:
            dequantize(gpu, weight, out)

    for name, weights in matrices.items():
        packed = [weight for weight in weights if isinstance(weight, PackedMatrix)]
        if packed:
            out = torch.empty(packed[0].shape, device="cuda", dtype=DTYPE)
            num_bytes = packed[0].nbytes + out.nbytes
            timed(f"dequantize {name}", partial(each, packed, out), num_bytes, len(packed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=SCHEMES)
    args = parser.parse_args()
    device = torch.device("cuda", 0)
    gpu = Gpu(device, CubinCache(None))
    print(f"bandwidth ceiling {(bandwidth_ceiling_bytes_per_s(device) or 0) / 1e12:.2f} TB/s")
    for scheme in args.schemes:
        matrices: dict[str, list[Matrix]] = {}
        for name, shape in SHAPES.items():
            first = random_matrix(scheme, *shape)
            others = range(max(4, _BYTES // first.nbytes) - 1)
            matrices[name] = [first, *(random_matrix(scheme, *shape) for _ in others)]
        for n in args.rows:
            print(f"{scheme}, {n} rows")
            time_matmuls(Layer(gpu, n), matrices)
        time_dequantize(gpu, matrices)


if __name__ == "__main__":
    main()
