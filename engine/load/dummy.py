"""Random weights: to time and to test without downloads."""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from swiftchat.engine.linear.quantized import Weight, has_rows
from swiftchat.engine.linear.w8a8 import W8A8Weight
from swiftchat.engine.load.canonicalize import arrange
from swiftchat.engine.load.loader import assemble
from swiftchat.engine.load.packing import Pack, Use
from swiftchat.engine.model.decoder import DecoderWeights
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import canonical_tensors, expected_tensors, tensor_name
from swiftchat.weights.model.dummy import dummy_schemes
from swiftchat.weights.parallel.tensor_parallel import Shard, TensorSlice
from swiftchat.weights.quantization.quantize import W8A8
from swiftchat.weights.quantization.scheme import (
    ActivationQuantization,
    Float8,
    Int4,
    Int8,
    QuantizedMatrix,
    Scheme,
    slice_matrix,
)

# As peaked as a trained model's: top-p 0.95 then keeps a few tokens, not tens of thousands.
_LOGIT_STD = 4.0
_BRANCH_ENDS = ("o", "down", "expert_down", "experts_down", "shared_down")


def dummy_weights(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    seed: int = 0,
    share: Shard | None = None,
    form: str | None = None,
    pack: Pack | None = None,
) -> DecoderWeights:
    """Weights generated on the device, the same for the same seed, dtype and kind of device.

    With `share` those of one rank: each tensor is generated whole, by itself, and then cut, so
    that all ranks together have what one has. With a `form` and a way to `pack`, the matrices of
    `dummy_schemes` are rounded and packed, and with one of `W8A8` their inputs rounded too.

    The spread of a matrix keeps the size of what goes through it, and what the layers add to
    the residual stream together is about as large as an embedding, so that logits have a
    standard deviation near `_LOGIT_STD` at any depth. Where embeddings serve as `lm_head` too,
    they have the spread of that.
    """
    share = share or Shard(config)
    generator = torch.Generator(device)
    kinds = {tensor_name(config, *place): place[0] for place in canonical_tensors(config)}
    shapes, forms = expected_tensors(config), dummy_schemes(config, form)
    numbers = {name: number for number, name in enumerate(shapes)}

    def random(wanted: Sequence[tuple[str, TensorSlice]], use: Use) -> Weight:
        names = [name for name, _ in wanted]
        rows = [shapes[name][0] for name in names]
        tensor = torch.empty((sum(rows), *shapes[names[0]][1:]), dtype=dtype, device=device)
        mean, std = _spread(config, kinds[names[0]], shapes[names[0]])
        generator.manual_seed(len(numbers) * seed + numbers[names[0]])
        tensor.normal_(mean, std, generator=generator)
        each = list(zip(torch.split(tensor, rows), (part for _, part in wanted), strict=True))
        its = forms.get(names[0])
        if its is not None and pack is not None:
            kept = [
                slice_matrix(_rounded(whole, its), part.axis, part.spans) for whole, part in each
            ]
            together = [own for own in kept if own is not None]
            packed = pack(together, dtype) if len(together) == len(kept) else None
            if packed is not None and (use != "lookup" or has_rows(packed)):
                return packed
        if share.size == 1:
            return tensor
        own = [
            whole.narrow(part.axis, first, end - first)
            for whole, part in each
            for first, end in part.spans
        ]
        return torch.cat(own, wanted[0][1].axis)

    def with_rounding(wanted: Sequence[tuple[str, TensorSlice]], use: Use) -> Weight:
        weight = random(wanted, use)
        rounding = ActivationQuantization(W8A8[form]) if form is not None and form in W8A8 else None
        return W8A8Weight(weight, rounding) if rounding and wanted[0][0] in forms else weight

    return arrange(share.local_config, assemble(share, with_rounding, dtype))


def _rounded(matrix: Tensor, kept: Scheme) -> QuantizedMatrix:
    """A matrix in the nearest numbers of the form."""
    form, group = kept
    rows = len(matrix)
    if form is Int4:
        groups = matrix.float().view(rows, -1, group)
        scale = (groups.amax(2) - groups.amin(2)) / 15
        zero = (-groups.amin(2) / scale).round_().clamp_(0, 15)
        numbers = (groups / scale.unsqueeze(2) + zero.unsqueeze(2)).round_().clamp_(0, 15)
        low, high = numbers.view(rows, -1, 2).byte().unbind(2)
        return Int4(_numpy(low | high << 4), _numpy(scale), _numpy(zero))
    largest = matrix.abs().amax(1, keepdim=True).float()
    if form is Int8:
        numbers = (matrix * (127 / largest)).round_().char()
        return Int8(_numpy(numbers), _numpy(largest[:, 0] / 127))
    bits = (matrix * (448 / largest)).to(torch.float8_e4m3fn).view(torch.uint8)
    return Float8(_numpy(bits), _numpy(largest[:, 0] / 448))


def _numpy(tensor: Tensor) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = tensor.cpu().numpy()
    return array


def _spread(config: ModelConfig, kind: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of a tensor of this canonical name and shape."""
    branch = (2 * config.num_layers) ** -0.5  # two branches a layer are added up
    of_branch = branch if kind.removesuffix("_bias") in _BRANCH_ENDS else 1.0
    if kind.endswith("_bias"):
        return 0.0, 0.1 * of_branch
    if kind.endswith("_norm"):
        size = branch if kind.endswith("_out_norm") else 1.0
        return size - config.norm_unit_offset, 0.1 * size
    if kind == "lm_head" or (kind == "embed" and config.tied_embeddings):
        return 0.0, _LOGIT_STD * config.hidden_size**-0.5
    if kind in ("embed", "positions"):
        return 0.0, 1.0
    if kind == "sinks":
        return 0.0, 1.0
    fan_in = shape[-2] if kind in ARCHITECTURES[config.architecture].transposed else shape[-1]
    return 0.0, of_branch * float(fan_in) ** -0.5
