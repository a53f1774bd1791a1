"""GEMMs of a Llama-3.1-8B layer with many rows: packed weights, and bf16 by cuBLAS.

Times each matrix alone, in a CUDA graph over more matrices than L2 holds. "Even" is a matrix whose
tiles divide evenly among 66 clusters, so that no block exchanges sums. Prints µs, and the TFLOP/s
in brackets.

    python benchmarks/gpu/packed_gemm.py --schemes plain int4-128 --rows 32 256 1024
"""

import argparse
from functools import partial

import torch
from packed_linear import DTYPE, SCHEMES, SHAPES, random_matrix
from timing import captured, median_us
from torch import Tensor

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.packed_gemm import GemmWorkspace, packed_gemm
from swiftchat.cuda.packed_matrix import Matrix, PackedMatrix

EVEN = {"even": (66 * 256, 4096)}
_BYTES, _MOST = 2**28, 8  # of distinct matrices in a graph


def multiply(gpu: Gpu, workspace: GemmWorkspace, x: Tensor, weights: list[Matrix]) -> None:
    out = torch.empty(len(x), len(weights[0]), device="cuda", dtype=DTYPE)
    for weight in weights:
        if isinstance(weight, PackedMatrix):
            packed_gemm(gpu, x, weight, out, workspace)
        else:
            torch.mm(x, weight.t(), out=out)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 64, 128, 256, 512, 1024])
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=SCHEMES)
    args = parser.parse_args()
    gpu = Gpu(torch.device("cuda", 0), CubinCache(None))
    workspace = GemmWorkspace(gpu)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for scheme in args.schemes:
        found: dict[int, dict[str, float]] = {n: {} for n in args.rows}
        for name, shape in (SHAPES | EVEN).items():
            first = random_matrix(scheme, *shape)
            others = range(min(_MOST, max(2, _BYTES // first.nbytes)) - 1)
            weights = [first, *(random_matrix(scheme, *shape) for _ in others)]
            for n in args.rows:
                x = torch.randn(n, shape[1], device="cuda", dtype=DTYPE)
                run = captured(partial(multiply, gpu, workspace, x, weights)).replay
                found[n][name] = median_us(run) / len(weights)
        for n, times in found.items():
            layer = sum(times[name] for name in SHAPES)
            each = ", ".join(
                f"{name} {us:.1f} ({2e-6 * n * rows * columns / us:.0f})"
                for (name, us), (rows, columns) in zip(
                    times.items(), (SHAPES | EVEN).values(), strict=True
                )
            )
            print(f"{scheme}, {n} rows: layer {layer:.1f} µs; {each}", flush=True)


if __name__ == "__main__":
    main()
