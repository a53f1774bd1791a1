"""The private interfaces of torch that this project calls.

The project declares torch >=2.6,<2.14. Functions for the CPU were checked with the oldest and the
newest version of that range, functions for GPUs with 2.11.0 on an H200;
`tests/engine/linear/test_torch_private.py` compares each with the public expression that its
docstring names, and fails on a version that lacks it.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def has_onednn_gemm(dtype: torch.dtype) -> bool:
    """Return whether oneDNN multiplies matrices of `dtype`, bf16 or fp16, on this processor.

    Calls `mkldnn::_is_mkldnn_bf16_supported` and `mkldnn::_is_mkldnn_fp16_supported`, which heed
    `ONEDNN_MAX_CPU_ISA`. Checked with torch 2.6.0 and 2.13.0. Builds without oneDNN lack them.
    Public equivalent: none; False costs time on processors that have such instructions.
    """
    name = "bf16" if dtype == torch.bfloat16 else "fp16"
    supported = getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported", None)
    return supported is not None and bool(supported())


def matmul_int8_cuda(x: Tensor, values: Tensor, out: Tensor) -> None:
    """Write x [n, k] times values [k, rows], both int8, into `out` int32 [n, rows].

    Calls `_int_mm`. Checked with torch 2.11.0. Public equivalent:
    `out.copy_(x.double() @ values.double())`.
    """
    torch._int_mm(x, values, out=out)


def matmul_fp8_cuda(
    x: Tensor,
    values: Tensor,
    x_scale: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Return x_scale * (x [n, k] times values [k, rows]) * scale + bias in `dtype`: [n, rows].

    `x` and `values` are float8_e4m3fn; `x_scale` [n, 1] and `scale` [1, rows] are fp32.
    Products are summed in fp32: fast accumulation would keep 14 bits. Calls `_scaled_mm`.
    Checked with torch 2.11.0. Public equivalent:
    `(x.float() @ values.float()) * x_scale * scale + bias`.
    """
    return torch._scaled_mm(
        x,
        values,
        scale_a=x_scale,
        scale_b=scale,
        bias=bias,
        out_dtype=dtype,
        use_fast_accum=False,
    )


def gloo_group(store: Any, rank: int, size: int, timeout_s: float, address: str) -> Any:
    """Return a gloo process group that listens on the interface of `address`.

    Sets `ProcessGroupGloo._Options`. Checked with torch 2.6.0 and 2.13.0. Public equivalent:
    `torch.distributed.init_process_group("gloo", …)`, which makes one default group per
    process and listens on the address of the host name.
    """
    gloo: Any = dist.ProcessGroupGloo  # torch's stubs lack some of its members
    options = gloo._Options()
    options._timeout = timedelta(seconds=timeout_s)
    options._devices = [gloo.create_device(hostname=address)]
    return gloo(store, rank, size, options)


def nccl_group(store: Any, rank: int, size: int, timeout_s: float) -> Any:
    """Return an NCCL process group for the current CUDA device.

    Sets `ProcessGroupNCCL.Options._timeout`. Checked with torch 2.11.0. Public equivalent:
    `torch.distributed.init_process_group("nccl", …)`, which makes one default group per
    process.
    """
    nccl: Any = dist.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timedelta(seconds=timeout_s)
    return nccl(store, rank, size, options)


def all_gather_into(group: Any, gathered: Tensor, x: Tensor) -> None:
    """Write the x of all ranks into `gathered` [size, …].

    Calls `_allgather_base`. Checked with torch 2.6.0 and 2.13.0. Public equivalent:
    `torch.distributed.all_gather_into_tensor`, which needs a group made by `new_group`.
    """
    group._allgather_base(gathered, x).wait()
