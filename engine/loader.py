"""Brings a checkpoint's tensors to the device: mapped, not read, on the CPU."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from swiftchat.engine.decoder import DecoderWeights, LayerWeights
from swiftchat.weights.checkpoint import Checkpoint
from swiftchat.weights.config import ModelConfig
from swiftchat.weights.families import tensor_name

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def load_weights(
    config: ModelConfig,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: Callable[[int, int], None],
) -> DecoderWeights:
    """Make the decoder's weights from a checked checkpoint.

    On the CPU, tensors of the wanted dtype are views of the mapped files: nothing is copied but
    matrices that one product reads together (q k v, gate up) and that do not lie together in
    the file. `on_progress` gets (layers done, layers). The checkpoint must stay open.
    """

    def stacked(canonical: Sequence[str], layer: int | None = None) -> Tensor:
        names = [tensor_name(config, name, layer) for name in canonical]
        return _stack(checkpoint, names).to(device=device, dtype=dtype)

    def optional(present: bool, canonical: Sequence[str], layer: int) -> Tensor | None:
        return stacked(canonical, layer) if present else None

    layers = []
    for i in range(config.num_layers):
        layers.append(
            LayerWeights(
                attn_norm=stacked(["attn_norm"], i),
                qkv=stacked(["q", "k", "v"], i),
                qkv_bias=optional(config.attention_bias, ["q_bias", "k_bias", "v_bias"], i),
                o=stacked(["o"], i),
                o_bias=optional(config.output_bias, ["o_bias"], i),
                mlp_norm=stacked(["mlp_norm"], i),
                gate_up=stacked(["gate", "up"], i),
                gate_up_bias=optional(config.mlp_bias, ["gate_bias", "up_bias"], i),
                down=stacked(["down"], i),
                down_bias=optional(config.mlp_bias, ["down_bias"], i),
            )
        )
        on_progress(i + 1, config.num_layers)
    embed = stacked(["embed"])
    lm_head = embed if config.tied_embeddings else stacked(["lm_head"])
    return DecoderWeights(embed, layers, stacked(["final_norm"]), lm_head)


def _stack(checkpoint: Checkpoint, names: Sequence[str]) -> Tensor:
    """The named tensors under each other; a view of the file where they lie so already."""
    infos = [checkpoint.tensors[name] for name in names]
    first = infos[0]
    end = first.offset
    for info in infos:
        if (info.file, info.offset, info.dtype) != (first.file, end, first.dtype):
            return torch.cat([_view(checkpoint, name) for name in names])
        end += info.nbytes
    rows = sum(info.shape[0] for info in infos)
    return _view(checkpoint, names[0], (rows, *first.shape[1:]))


def _view(checkpoint: Checkpoint, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
    info = checkpoint.tensors[name]
    shape = info.shape if shape is None else shape
    dtype = _DTYPES[info.dtype]
    flat = torch.frombuffer(
        checkpoint.map(info.file), dtype=torch.uint8, offset=info.offset,
        count=torch.Size(shape).numel() * dtype.itemsize,
    )  # fmt: skip
    if flat.data_ptr() % dtype.itemsize:  # an odd header length in somebody else's file
        flat = flat.clone()
    return flat.view(dtype).view(shape)
