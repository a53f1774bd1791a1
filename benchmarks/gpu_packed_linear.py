"""Matrices of a Llama-3.1-8B layer by a few vectors, plain and in every packed form.

Each shape alone, in a CUDA graph over as many different matrices as L2 cannot hold, then the four
of a layer in their order; µs and TB/s of what has to be read, beside the read ceiling of the same
run. `dequantize` is the time in which the matrix is made plain for a prefill.

    python benchmarks/gpu_packed_linear.py --vectors 1 8 16
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from gpu_timing import bandwidth_ceiling_bytes_per_s, captured, median_us
from torch import Tensor

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear import (
    Norm,
    Workspace,
    linear,
    linear_act_and_mul,
    linear_residual,
)
from swiftchat.cuda.ops.quantize import dequantize
from swiftchat.cuda.packed_matrix import (
    Matrix,
    PackedMatrix,
    pack_fp8,
    pack_int4,
    pack_int8,
    pack_int8_groups,
)

SHAPES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
FORMS = ("plain", "int8", "fp8", "int4-128", "int4-64", "int4-32", "int8-32")
DTYPE = torch.bfloat16
_BYTES = 2**29  # of different matrices, several times L2


def random_matrix(form: str, rows: int, k: int) -> Matrix:
    if form == "plain":
        return torch.randn(rows, k, device="cuda", dtype=DTYPE) * k**-0.5
    scale = torch.rand(rows, device="cuda") / 1000
    if form == "int8":
        return pack_int8(
            torch.randint(-127, 128, (rows, k), dtype=torch.int8, device="cuda"), scale, DTYPE
        )
    codes = torch.randint(0, 256, (rows, k), dtype=torch.uint8, device="cuda")
    if form == "fp8":
        return pack_fp8(codes.masked_fill_((codes & 0x7F) == 0x7F, 0), scale, DTYPE)
    groups = k // int(form.partition("-")[2])
    scales = torch.rand(rows, groups, device="cuda") / 100
    zeros = torch.randint(0, 16, (rows, groups), device="cuda").float()
    if form == "int8-32":
        return pack_int8_groups(codes, scales / 16, zeros + 120, DTYPE)
    return pack_int4(codes[:, : k // 2].contiguous(), scales, zeros, DTYPE)


class Vectors:
    """What n vectors are before, within and after a layer's products."""

    def __init__(self, gpu: Gpu, n: int) -> None:
        self._gpu, self._workspace = gpu, Workspace(gpu, 4096)
        self._stream = torch.randn(n, 4096, device="cuda")
        self._norm = Norm(torch.randn(4096, device="cuda", dtype=DTYPE), 1e-5)
        self._heads = torch.randn(n, 6144, device="cuda", dtype=DTYPE)
        self._attended = torch.randn(n, 4096, device="cuda", dtype=DTYPE)
        self._inner = torch.randn(n, 14336, device="cuda", dtype=DTYPE)

    def times(self, name: str, weight: Matrix) -> None:
        gpu, workspace, x = self._gpu, self._workspace, self._stream
        if name == "qkv":
            linear(gpu, x, weight, self._heads, workspace, norm=self._norm)
        elif name == "gate_up":
            linear_act_and_mul(
                gpu, x, weight, self._inner, workspace, norm=self._norm, activation="silu"
            )
        else:
            branch: Tensor = self._attended if name == "o" else self._inner
            linear_residual(gpu, branch, weight, x, workspace)


def timed(name: str, run: Callable[[], object], num_bytes: int, count: int) -> None:
    us = median_us(captured(run).replay) / count
    print(f"  {name:<22}{us:8.2f} µs {num_bytes / us / 1e6:6.2f} TB/s", flush=True)


def time_products(vectors: Vectors, layers: dict[str, list[Matrix]]) -> None:
    def each(name: str) -> None:
        for weight in layers[name]:
            vectors.times(name, weight)

    def whole() -> None:
        for i in range(4):
            for name, some in layers.items():
                vectors.times(name, some[i])

    for name, some in layers.items():
        timed(name, partial(each, name), some[0].nbytes, len(some))
    timed("layer", whole, sum(some[0].nbytes for some in layers.values()), 4)


def time_dequantize(gpu: Gpu, layers: dict[str, list[Matrix]]) -> None:
    def each(some: list[PackedMatrix], out: Tensor) -> None:
        for weight in some:
            dequantize(gpu, weight, out)

    for name, matrices in layers.items():
        some = [weight for weight in matrices if isinstance(weight, PackedMatrix)]
        if some:
            out = torch.empty(some[0].shape, device="cuda", dtype=DTYPE)
            num_bytes = some[0].nbytes + out.nbytes
            timed(f"dequantize {name}", partial(each, some, out), num_bytes, len(some))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vectors", type=int, nargs="+", default=[1])
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    args = parser.parse_args()
    device = torch.device("cuda", 0)
    gpu = Gpu(device, CubinCache(None))
    print(f"read ceiling {(bandwidth_ceiling_bytes_per_s(device) or 0) / 1e12:.2f} TB/s")
    for form in args.forms:
        layers: dict[str, list[Matrix]] = {}
        for name, shape in SHAPES.items():
            first = random_matrix(form, *shape)
            others = range(max(4, _BYTES // first.nbytes) - 1)
            layers[name] = [first, *(random_matrix(form, *shape) for _ in others)]
        for n in args.vectors:
            print(f"{form}, {n} vectors")
            time_products(Vectors(gpu, n), layers)
        time_dequantize(gpu, layers)


if __name__ == "__main__":
    main()
