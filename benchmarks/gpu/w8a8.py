"""Matmuls of a Llama-3.1-8B layer with many rows: bf16, packed weights, and W8A8.

Prints milliseconds and TFLOP/s of the four matmuls of a layer in one CUDA graph, and for W8A8 the
time of quantizing the activations, which is part of it.

    python benchmarks/gpu/w8a8.py --rows 1 16 64 256 2048 8192
"""

import argparse
from collections.abc import Callable

import torch
from packed_linear import DTYPE, SHAPES, random_matrix
from timing import captured, median_us
from torch import Tensor

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.quantize import quantize
from swiftchat.cuda.packed_matrix import Matrix, PackedMatrix
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.gpu.linear.quantized import GpuQuantizedWeight
from swiftchat.engine.gpu.linear.w8a8 import matmul_w8a8
from swiftchat.weights.quantization.scheme import ActivationQuantization

FLOPS_PER_ROW = 2 * sum(out * k for out, k in SHAPES.values())
DTYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def timed(name: str, n: int, run: Callable[[], object]) -> None:
    ms = median_us(captured(run).replay) / 1000
    tflops = n * FLOPS_PER_ROW / ms / 1e9
    print(f"  {name:<20}{ms:9.3f} ms {tflops:8.1f} TFLOP/s", flush=True)


def time_matmuls(gpu: Gpu, n: int, matrices: dict[str, dict[str, Matrix]]) -> None:
    inputs = {k: torch.randn(n, k, device="cuda", dtype=DTYPE) for _, k in SHAPES.values()}
    kernels = LinearKernels(gpu, 28672)

    def layer(scheme: str, matmul: Callable[[Tensor, Matrix], object]) -> Callable[[], None]:
        def run() -> None:
            for weight in matrices[scheme].values():
                matmul(inputs[weight.shape[1]], weight)

        return run

    def packed(x: Tensor, weight: Matrix) -> None:
        assert isinstance(weight, PackedMatrix)
        GpuQuantizedWeight(weight, kernels).matmul(x)

    def plain(x: Tensor, weight: Matrix) -> None:
        assert isinstance(weight, Tensor)
        torch.mm(x, weight.t())

    timed("plain", n, layer("plain", plain))
    for scheme, dtype in DTYPES.items():
        activations = ActivationQuantization("int8" if scheme == "int8" else "fp8")

        def w8a8(
            x: Tensor, weight: Matrix, activations: ActivationQuantization = activations
        ) -> None:
            assert isinstance(weight, PackedMatrix)
            assert matmul_w8a8(kernels, x, weight, activations, None) is not None

        def quantize_only(
            x: Tensor, _: Matrix, scheme: str = scheme, dtype: torch.dtype = dtype
        ) -> None:
            values, scales = torch.empty_like(x, dtype=dtype), torch.empty(n, device="cuda")
            quantize(gpu, x, values, scales, scheme)

        timed(f"packed {scheme}", n, layer(scheme, packed))
        timed(f"w8a8-{scheme}", n, layer(scheme, w8a8))
        timed("  quantize only", n, layer(scheme, quantize_only))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 256, 2048, 8192])
    args = parser.parse_args()
    gpu = Gpu(torch.device("cuda", 0), CubinCache(None))
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    matrices = {
        scheme: {name: random_matrix(scheme, *shape) for name, shape in SHAPES.items()}
        for scheme in ("plain", *DTYPES)
    }
    for n in args.rows:
        print(f"{n} rows")
        time_matmuls(gpu, n, matrices)


if __name__ == "__main__":
    main()
