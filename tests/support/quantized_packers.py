"""Packers for the quantized formats, written independently of the readers from their descriptions.

They pack bits in Python's unbounded integers, one line at a time. Matrices are [rows, columns] of
integers; the packers return the tensors of a file.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.quantization.methods import StoredTensor, model_tensors

Tensors = dict[str, torch.Tensor]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def words(values: Sequence[int], bits: int) -> np.ndarray:
    """Pack `values` into int32 words, low bits first, padded with zeros."""
    stream = sum(int(value) << (bits * i) for i, value in enumerate(values))
    nbytes = -(-len(values) * bits // 32) * 4
    return np.frombuffer(stream.to_bytes(nbytes, "little"), "<i4")


def lines(values: np.ndarray, bits: int) -> np.ndarray:
    return np.stack([words(line, bits) for line in values.tolist()])


def unpacked(packed: torch.Tensor, bits: int) -> np.ndarray:
    """Invert `lines`; `bits` must divide 32."""
    streams = [int.from_bytes(line.tobytes(), "little") for line in packed.numpy()]
    count = packed.shape[1] * 32 // bits
    return np.array([[s >> bits * at & 2**bits - 1 for at in range(count)] for s in streams])


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def gptq(
    q: np.ndarray,
    zeros: np.ndarray,
    scales: torch.Tensor,
    bits: int,
    *,
    v2: bool = False,
    g_idx: np.ndarray | None = None,
) -> Tensors:
    """Pack q [rows, columns] with zero points and scales [groups, rows]."""
    stored = zeros if v2 else (zeros - 1) % 2**bits
    packed = {
        "qweight": tensor(lines(q, bits).T),
        "qzeros": tensor(lines(stored, bits)),
        "scales": scales,
    }
    return packed if g_idx is None else packed | {"g_idx": tensor(g_idx.astype(np.int32))}


def awq(q: np.ndarray, zeros: np.ndarray, scales: torch.Tensor) -> Tensors:
    """Pack q [rows, columns] with zero points and scales [groups, rows]."""

    def reordered(values: np.ndarray) -> np.ndarray:
        eights = values.reshape(len(values), -1, 8)
        return eights[:, :, AWQ_ORDER].reshape(len(values), -1)

    return {
        "qweight": tensor(lines(reordered(q.T), 4)),
        "qzeros": tensor(lines(reordered(zeros), 4)),
        "scales": scales,
    }


def nf4(indices: np.ndarray, absmax: np.ndarray, size: int, codebook: np.ndarray) -> Tensors:
    """Pack indices [rows, columns] into `codebook` [16], with an absmax per `size` indices."""
    flat = indices.reshape(-1).tolist() + [0] * (indices.size % 2)
    packed = [first * 16 + second for first, second in zip(flat[::2], flat[1::2], strict=True)]
    state = {"quant_type": "nf4", "blocksize": size, "dtype": "float16", "shape": indices.shape}
    return {
        "weight": torch.tensor(packed, dtype=torch.uint8)[:, None],
        "weight.absmax": tensor(absmax.astype(np.float32)),
        "weight.quant_map": tensor(codebook.astype(np.float32)),
        "weight.quant_state.bitsandbytes__nf4": torch.tensor(
            list(json.dumps(state).encode()), dtype=torch.uint8
        ),
    }


def opened(
    folder: Path, tensors: Mapping[str, torch.Tensor], settings: Mapping[str, Any]
) -> dict[str, StoredTensor]:
    """Write the tensors to a file and open it with our reader."""
    folder.mkdir(exist_ok=True)
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")
    checkpoint = Checkpoint.open(folder)
    return model_tensors(settings, checkpoint.tensors, checkpoint.read)


def under(module: str, tensors: Mapping[str, torch.Tensor]) -> Tensors:
    return {f"{module}.{name}": tensor for name, tensor in tensors.items()}
