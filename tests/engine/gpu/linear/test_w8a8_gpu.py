"""W8A8 on a GPU: matmuls against fp64, answers of a model, and batch invariance."""

from pathlib import Path

import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.linear.linear import LinearInput, Workspace, linear, linear_residual
from swiftchat.cuda.ops.linear.quantize import quantize
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.gpu.linear.w8a8 import matmul_w8a8
from swiftchat.engine.linear.w8a8 import W8A8Weight
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.quantization.quantize import QuantizationSpec
from swiftchat.weights.quantization.scheme import ActivationQuantization
from tests.support import tiny
from tests.support.kernels.case import Inputs, assert_close
from tests.support.kernels.packed_matrices import packed
from tests.support.tiny_llama import tiny_llama

pytestmark = pytest.mark.gpu
PAIRS = [
    ("INT8", 0, "int8"),
    ("FP8", 0, "fp8"),
    ("INT4", 128, "int8"),
    ("INT8", 0, "fp8"),
    ("FP8", 64, "fp8"),
]
# Results are rounded to their dtype; fp8 sums of the tensor cores have at least 13 bits.
TOLERANCE = 2.0**-8 + 2.0**-12


@pytest.mark.parametrize("given", [None, 0.02])
@pytest.mark.parametrize(("scheme", "group", "inputs"), PAIRS)
@pytest.mark.parametrize(("rows", "k"), [(6144, 4096), (4096, 14336), (72, 640)])
@pytest.mark.parametrize("n", [1, 3, 16, 17, 64, 65, 300, 4097])
def test_w8a8_matmul_on_a_gpu_against_fp64(
    gpu: Gpu, scheme: str, group: int, inputs: str, rows: int, k: int, n: int, given: float | None
) -> None:
    make = Inputs(n + k, torch.bfloat16)
    weight, meant = packed(make, scheme, group, rows, k, magnitude=0.02)
    x, bias = make.normal(n, k), make.normal(rows)
    x[n // 2] *= 100
    rounding = ActivationQuantization(inputs, given)  # type: ignore[arg-type]
    # The kernel's own values: ties may round either way, depending on the scale's last bit.
    codes, factors = torch.empty_like(x), torch.empty(n, device="cuda")
    quantize(gpu, x, codes, factors, inputs, fixed_scale=given)
    expected = (codes.double() * factors.double().unsqueeze(1)) @ meant.T
    for added in (None, bias):
        found = matmul_w8a8(LinearKernels(gpu, 6144), x, weight, rounding, added)
        own_cores = (scheme, group, inputs) in PAIRS[:2]
        divisible = rows % (16 if inputs == "fp8" else 8) == 0
        if found is None:
            assert n > 64 and not (own_cores and divisible)
            continue
        wanted = expected if added is None else expected + added.double()
        assert_close(found, wanted, TOLERANCE)
        for row in {0, n // 2, n - 1}:
            assert_close(found[row], wanted[row], TOLERANCE)


@pytest.mark.parametrize(("scheme", "group", "inputs"), PAIRS[:2])
def test_w8a8_of_few_and_many_rows_agree(gpu: Gpu, scheme: str, group: int, inputs: str) -> None:
    """The same row alone, among 16 and among 200: results differ by at most one rounding."""
    make = Inputs(9, torch.bfloat16)
    weight, _ = packed(make, scheme, group, 1024, 4096, magnitude=0.02)
    x, kernels = make.normal(200, 4096), LinearKernels(gpu, 1024)
    rounding = ActivationQuantization(inputs)  # type: ignore[arg-type]
    many, some, one = (matmul_w8a8(kernels, x[:n], weight, rounding, None) for n in (200, 16, 1))
    assert many is not None and some is not None and one is not None
    assert_close(some[:1], one.double(), 2.0**-9)
    assert_close(many[:16], some.double(), 2.0**-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("n", [1, 5, 16])
def test_linear_kernel_applies_row_scales(gpu: Gpu, dtype: torch.dtype, n: int) -> None:
    """`linear` and `linear_residual`, split and not, with a scale for each row."""
    make, tolerance = Inputs(n, dtype), 2e-5
    for rows, k in ((99, 640), (2048, 14336)):
        weight, meant = packed(make, "INT8", 0, rows, k, magnitude=0.02)
        x, workspace = make.normal(n, k), Workspace(gpu, 2048)
        factors = make.normal(n, dtype=torch.float32).exp()
        expected = factors.double().unsqueeze(1) * (x.double() @ meant.T)
        sums = torch.ones(n, rows, device="cuda")
        linear_residual(gpu, LinearInput(x, x_scale=factors), weight, sums, workspace)
        assert_close(sums, expected + 1, tolerance)
        if k == 640:
            out = torch.empty(n, rows, device="cuda")
            linear(gpu, LinearInput(x, x_scale=factors), weight, out, workspace)
            assert_close(out, expected, tolerance)
            with pytest.raises(ValueError, match="packed"):
                linear(gpu, LinearInput(x, x_scale=factors), make.normal(rows, k), out, workspace)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("rounded-gpu")
    sizes = {"hidden_size": 128, "intermediate_size": 256, "initializer_range": 0.2}
    tiny_llama(**sizes).to(torch.bfloat16).save_pretrained(path / "in")
    for scheme in ("w8a8-int8", "w8a8-fp8"):
        convert(path / "in", path / scheme, quantization=QuantizationSpec(scheme))
    return {scheme: path / scheme for scheme in ("w8a8-int8", "w8a8-fp8")}


@pytest.mark.parametrize("scheme", ["w8a8-int8", "w8a8-fp8"])
def test_w8a8_logprobs_on_gpu_are_near_cpu(models: dict[str, Path], scheme: str) -> None:
    """The logprobs of a prompt, prefilled at once and token by token, then decoded in the graph.

    On the CPU by torch, which quantizes activations too. Sums in another order push numbers over
    the middle between two quantized values, so not to the bit.
    """
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=5)
    prompt = tiny.random_ids(150)
    _, expected = tiny.logprobs(tiny.engine(models[scheme], kernels=False), prompt, params)
    near = dict(expected[0].top)
    for chunk_tokens in (256, 1):
        engine = tiny.engine(
            models[scheme], device="cuda", dtype="bfloat16", chunk_tokens=chunk_tokens
        )
        assert isinstance(engine.decoder.weights.layers[0].qkv, W8A8Weight)
        assert "dequantized" not in engine.info.device and engine.graphs.decode is not None
        _, found = tiny.logprobs(engine, prompt, params)
        for token, logprob in found[0].top:
            assert logprob == pytest.approx(near.get(token, logprob), abs=0.8)


def test_batched_w8a8_rows_equal_single_rows(models: dict[str, Path]) -> None:
    """Each sequence generates the same ids alone: rows do not depend on each other."""
    params = SamplingParams(temperature=0, max_tokens=8)
    prompts = {i: tiny.random_ids(5 + 9 * i, seed=i) for i in range(5)}
    engine = tiny.engine(models["w8a8-int8"], device="cuda", dtype="float32")
    together, _ = tiny.run(engine, prompts, params)
    alone = {}
    for i, prompt in prompts.items():
        engine = tiny.engine(models["w8a8-int8"], device="cuda", dtype="float32")
        alone |= tiny.run(engine, {i: prompt}, params)[0]
    same = sum(together[i] == alone[i] for i in prompts)
    assert same >= 4  # the order of sums may change one
