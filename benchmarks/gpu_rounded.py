"""Products of a Llama-3.1-8B layer with many vectors: plain, packed, and with inputs of 8 bits.

Milliseconds and TFLOP/s of the four products of a layer one after the other, with what rounds
their inputs; and of that the rounding alone. `packed` makes tiles plain for cuBLAS. In a CUDA
graph.

    python benchmarks/gpu_rounded.py --vectors 1 16 64 256 2048 8192
"""

import argparse
from collections.abc import Callable

import torch
from gpu_packed_linear import DTYPE, SHAPES, random_matrix
from gpu_timing import captured, median_us
from torch import Tensor

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.quantize import quantize
from swiftchat.cuda.packed_matrix import Matrix, PackedMatrix
from swiftchat.engine.linear.plain_gpu import LinearKernels
from swiftchat.engine.linear.quantized_gpu import GpuQuantizedWeight
from swiftchat.engine.linear.w8a8_gpu import matmul_w8a8
from swiftchat.weights.quantization.scheme import ActivationQuantization

FLOPS_A_VECTOR = 2 * sum(rows * k for rows, k in SHAPES.values())
CODES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def timed(name: str, n: int, run: Callable[[], object]) -> None:
    ms = median_us(captured(run).replay) / 1000
    tflops = n * FLOPS_A_VECTOR / ms / 1e9
    print(f"  {name:<20}{ms:9.3f} ms {tflops:8.1f} TFLOP/s", flush=True)


def time_products(gpu: Gpu, n: int, matrices: dict[str, dict[str, Matrix]]) -> None:
    inputs = {k: torch.randn(n, k, device="cuda", dtype=DTYPE) for _, k in SHAPES.values()}
    kernels = LinearKernels(gpu, 28672)

    def each(form: str, product: Callable[[Tensor, Matrix], object]) -> Callable[[], None]:
        def run() -> None:
            for weight in matrices[form].values():
                product(inputs[weight.shape[1]], weight)

        return run

    def packed(x: Tensor, weight: Matrix) -> None:
        assert isinstance(weight, PackedMatrix)
        GpuQuantizedWeight(weight, kernels).matmul(x)

    def plain(x: Tensor, weight: Matrix) -> None:
        assert isinstance(weight, Tensor)
        torch.mm(x, weight.t())

    timed("plain", n, each("plain", plain))
    for form, dtype in CODES.items():
        rounding = ActivationQuantization("int8" if form == "int8" else "fp8")

        def rounded(x: Tensor, weight: Matrix, rounding: ActivationQuantization = rounding) -> None:
            assert isinstance(weight, PackedMatrix)
            assert matmul_w8a8(kernels, x, weight, rounding, None) is not None

        def rounding_only(
            x: Tensor, _: Matrix, form: str = form, dtype: torch.dtype = dtype
        ) -> None:
            codes, factors = torch.empty_like(x, dtype=dtype), torch.empty(n, device="cuda")
            quantize(gpu, x, codes, factors, form)

        timed(f"packed {form}", n, each(form, packed))
        timed(f"w8a8-{form}", n, each(form, rounded))
        timed("  of it rounding", n, each(form, rounding_only))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vectors", type=int, nargs="+", default=[1, 16, 64, 256, 2048, 8192])
    args = parser.parse_args()
    gpu = Gpu(torch.device("cuda", 0), CubinCache(None))
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    matrices = {
        form: {name: random_matrix(form, *shape) for name, shape in SHAPES.items()}
        for form in ("plain", *CODES)
    }
    for n in args.vectors:
        print(f"{n} vectors")
        time_products(gpu, n, matrices)


if __name__ == "__main__":
    main()
