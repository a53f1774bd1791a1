"""Tiny Llama models in every quantized format, each with its dequantized model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from tests.support import quantized_packers as packers
from tests.support import tiny

SIZES = {
    "vocab_size": tiny.VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}

# The tensors of a packed matrix, and the dequantized matrix.
Packed = tuple[packers.Tensors, torch.Tensor]


def integers(weight: torch.Tensor, bits: int, index: np.ndarray) -> tuple[Any, Any, Any]:
    """Return integers, and zero points and fp16 scales [groups, rows]; `index` groups columns."""
    array, max_value = weight.numpy(), 2**bits - 1
    q, zeros, scales = np.zeros(array.shape, int), [], []
    for group in range(index.max() + 1):
        part = array[:, index == group]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        scale = ((high - low) / max_value).astype(np.float16).astype(np.float32)
        zero = np.clip(np.rint(-low / scale), 0, max_value).astype(int)
        q[:, index == group] = np.clip(np.rint(part / scale[:, None]) + zero[:, None], 0, max_value)
        zeros.append(zero)
        scales.append(scale)
    return q, np.stack(zeros), torch.from_numpy(np.stack(scales)).half()


def dequantize(
    q: np.ndarray, zeros: np.ndarray, scales: torch.Tensor, index: np.ndarray
) -> torch.Tensor:
    return torch.from_numpy(q - zeros[index].T) * scales.float()[index].T


def gptq(
    bits: int, *, shuffled: bool = False, v2: bool = False
) -> Callable[[torch.Tensor], Packed]:
    def pack(weight: torch.Tensor) -> Packed:
        index = np.arange(weight.shape[1]) // 32
        if shuffled:
            np.random.default_rng(0).shuffle(index)
        q, zeros, scales = integers(weight, bits, index)
        tensors = packers.gptq(q, zeros, scales, bits, v2=v2, g_idx=index if shuffled else None)
        return tensors, dequantize(q, zeros, scales, index)

    return pack


def awq(weight: torch.Tensor) -> Packed:
    index = np.arange(weight.shape[1]) // 32
    q, zeros, scales = integers(weight, 4, index)
    return packers.awq(q, zeros, scales), dequantize(q, zeros, scales, index)


def compressed_int4(weight: torch.Tensor) -> Packed:
    index = np.arange(weight.shape[1]) // 16
    q, zeros, scales = integers(weight, 4, index)
    tensors = {
        "weight_packed": packers.tensor(packers.lines(q, 4)),
        "weight_shape": torch.tensor(weight.shape),
        "weight_scale": scales.T,
        "weight_zero_point": packers.tensor(packers.lines(zeros, 4).T),
    }
    return tensors, dequantize(q, zeros, scales, index)


def compressed_int8(weight: torch.Tensor) -> Packed:
    scale = weight.abs().amax(1, keepdim=True) / 127
    q = (weight / scale).round().to(torch.int8)
    return {"weight": q, "weight_scale": scale}, q.float() * scale


def fp8_row(weight: torch.Tensor) -> Packed:
    scale = weight.abs().amax(1, keepdim=True) / 448
    q = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": q, "weight_scale": scale, "input_scale": torch.ones(1)}, q.float() * scale


def fp8_blocks(
    height: int,
    width: int,
    name: str = "weight_scale_inv",
    dtype: torch.dtype = torch.float32,
) -> Callable[[torch.Tensor], Packed]:
    def pack(weight: torch.Tensor) -> Packed:
        shape = -(-weight.shape[0] // height), -(-weight.shape[1] // width)
        scale = (torch.rand(shape) / 100 + 0.01).to(dtype)
        expanded = scale.float().repeat_interleave(height, 0)[: len(weight)]
        expanded = expanded.repeat_interleave(width, 1)[:, : weight.shape[1]]
        q = (weight / expanded).to(torch.float8_e4m3fn)
        return {"weight": q, name: scale}, q.float() * expanded

    return pack


def e2m1(groups: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return elements, two a byte, and their values for groups [rows, groups, size]."""
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    scaled = groups / scale.unsqueeze(2)
    nearest = (scaled.abs().unsqueeze(-1) - numbers).abs().argmin(-1)
    values = numbers[nearest] * scaled.sign() * scale.unsqueeze(2)
    bits = (nearest + 8 * (scaled < 0)).byte().view(len(groups), -1, 2)
    return bits[..., 0] | bits[..., 1] << 4, values.flatten(1)


def mxfp4(weight: torch.Tensor) -> Packed:
    groups = weight.reshape(len(weight), -1, 32)
    exponent = groups.abs().amax(2).log2().floor() - 2
    packed, values = e2m1(groups, exponent.exp2())
    return {"weight_packed": packed, "weight_scale": (exponent + 127).byte()}, values


def compressed_nvfp4(weight: torch.Tensor) -> Packed:
    groups = weight.reshape(len(weight), -1, 16)
    divisor = 6 * 448 / weight.abs().amax().reshape(1)
    scale = (groups.abs().amax(2) / 6 * divisor).to(torch.float8_e4m3fn)
    packed, values = e2m1(groups, scale.float() / divisor)
    parts = {"weight_scale": scale, "weight_global_scale": divisor}
    return {"weight_packed": packed, **parts, "input_global_scale": torch.ones(1)}, values


def modelopt_nvfp4(weight: torch.Tensor) -> Packed:
    groups = weight.reshape(len(weight), -1, 16)
    factor = weight.abs().amax() / (6 * 448)
    scale = (groups.abs().amax(2) / 6 / factor).to(torch.float8_e4m3fn)
    packed, values = e2m1(groups, scale.float() * factor)
    parts = {"weight_scale": scale, "weight_scale_2": factor}
    return {"weight": packed, **parts, "input_scale": torch.tensor(0.5)}, values


def modelopt_fp8(weight: torch.Tensor) -> Packed:
    scale = weight.abs().amax() / 448
    q = (weight / scale).to(torch.float8_e4m3fn)
    return {"weight": q, "weight_scale": scale, "input_scale": torch.ones(())}, q.float() * scale


def nf4(weight: torch.Tensor) -> Packed:
    codebook = np.linspace(-1, 1, 16).astype(np.float32)
    blocks = weight.reshape(-1, 64)
    absmax = blocks.abs().amax(1).numpy()
    indices = np.abs(blocks.numpy()[..., None] / absmax[:, None, None] - codebook).argmin(-1)
    tensors = packers.nf4(indices.reshape(weight.shape), absmax, 64, codebook)
    return tensors, torch.from_numpy(codebook[indices] * absmax[:, None]).reshape(weight.shape)


def int8(weight: torch.Tensor) -> Packed:
    abs_max = weight.abs().amax(1)
    q = (weight / abs_max[:, None] * 127).round().to(torch.int8)
    return {"weight": q, "SCB": abs_max}, q.float() * abs_max[:, None] * torch.tensor(1 / 127)


def compressed(format: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
    }


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
FP8 = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
BITSANDBYTES = {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_threshold": 6.0}
MODELOPT = {
    "quant_method": "modelopt",
    "ignore": ["lm_head"],
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
    "producer": {"name": "modelopt", "version": "0.37.0"},
}
FORMATS: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor], Packed]]] = {
    "gptq-2": ({**GPTQ, "bits": 2}, gptq(2)),
    "gptq-3": ({**GPTQ, "bits": 3}, gptq(3)),
    "gptq-4-act-order": ({**GPTQ, "desc_act": True}, gptq(4, shuffled=True)),
    "gptq-8-v2": ({**GPTQ, "bits": 8, "checkpoint_format": "gptq_v2"}, gptq(8, v2=True)),
    "awq": (AWQ, awq),
    "compressed-int4": (
        compressed("pack-quantized", num_bits=4, symmetric=False, strategy="group", group_size=16),
        compressed_int4,
    ),
    "compressed-w8a8": (
        compressed("int-quantized", num_bits=8, strategy="channel"),
        compressed_int8,
    ),
    "compressed-fp8": (
        compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        fp8_row,
    ),
    "fp8-row": (FP8, fp8_row),
    "fp8-blocks": ({"quant_method": "fp8", "weight_block_size": [40, 24]}, fp8_blocks(40, 24)),
    "fp8-powers": (
        {"quant_method": "fp8", "weight_block_size": [40, 64], "scale_fmt": "ue8m0"},
        fp8_blocks(40, 64, "scale", torch.float8_e8m0fnu),
    ),
    "compressed-fp8-blocks": (
        compressed(
            "float-quantized",
            num_bits=8,
            type="float",
            strategy="block",
            block_structure=[24, 32],
        ),
        fp8_blocks(24, 32, "weight_scale", torch.bfloat16),
    ),
    "compressed-mxfp4": (
        compressed(
            "mxfp4-pack-quantized",
            num_bits=4,
            type="float",
            strategy="group",
            group_size=32,
            scale_dtype="torch.uint8",
        ),
        mxfp4,
    ),
    "compressed-nvfp4": (
        compressed(
            "nvfp4-pack-quantized",
            num_bits=4,
            type="float",
            strategy="tensor_group",
            group_size=16,
            scale_dtype="torch.float8_e4m3fn",
            zp_dtype="torch.float8_e4m3fn",
        ),
        compressed_nvfp4,
    ),
    "modelopt-nvfp4": (MODELOPT | {"quant_algo": "NVFP4"}, modelopt_nvfp4),
    "modelopt-fp8": (MODELOPT | {"quant_algo": "FP8"}, modelopt_fp8),
    "nf4": (BITSANDBYTES, nf4),
    "int8": ({**BITSANDBYTES, "load_in_4bit": False, "load_in_8bit": True}, int8),
}


def quantized_model(
    folder: Path, settings: dict[str, Any], pack: Callable[[torch.Tensor], Packed]
) -> transformers.LlamaForCausalLM:
    """Write a quantized tiny Llama to `folder` and return its dequantized model."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(**SIZES, dtype="float32")
    model = transformers.LlamaForCausalLM(config).eval()
    tensors: packers.Tensors = {}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "_proj" in name:
                packed, values = pack(parameter)
                tensors |= packers.under(name.removesuffix(".weight"), packed)
                parameter.copy_(values)
            else:
                tensors[name] = parameter.detach().clone()
    folder.mkdir()
    save_file({n: t.contiguous() for n, t in tensors.items()}, folder / "model.safetensors")
    config.architectures = ["LlamaForCausalLM"]
    content = config.to_dict() | {"quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(content))
    return model
