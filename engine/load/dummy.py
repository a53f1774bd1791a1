"""Random weights, for benchmarks and tests without downloads."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from swiftchat.engine.cpu.native_weights import NativeWeight
from swiftchat.engine.gpu.linear.quantized import GpuQuantizedWeight
from swiftchat.engine.linear.factory import TorchWeights, WeightFactory
from swiftchat.engine.linear.w8a8 import W8A8Weight
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.load.assemble import NamedSlices, assemble
from swiftchat.engine.load.canonicalize import canonicalize
from swiftchat.engine.load.quantized import of_experts, quantized_experts
from swiftchat.engine.model.weights import DecoderWeights
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import canonical_tensors, expected_tensors, tensor_name
from swiftchat.weights.model.dummy import dummy_schemes
from swiftchat.weights.parallel.division import TensorSlice
from swiftchat.weights.parallel.tensor_parallel import Shard
from swiftchat.weights.quantization.quantize import W8A8
from swiftchat.weights.quantization.scheme import (
    ActivationQuantization,
    Float8,
    Int4,
    Int8,
    Mxfp4,
    Nvfp4,
    QuantizedMatrix,
    Scheme,
    slice_matrix,
)

# As peaked as a trained model's: top-p 0.95 then keeps a few tokens, not tens of thousands.
_LOGIT_STD = 4.0
_BETWEEN_E2M1 = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)  # bounds of the sizes of e2m1's numbers
_BRANCH_ENDS = ("o", "down", "expert_down", "experts_down", "shared_down", "mixer_out")


def dummy_weights(
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    seed: int = 0,
    shard: Shard | None = None,
    scheme: str | None = None,
    factory: WeightFactory | None = None,
) -> DecoderWeights:
    """Generate weights on the device, the same for the same seed, dtype and kind of device.

    With `shard` those of one rank: each tensor is generated whole and then cut, so that the shards
    of all ranks are those of one model. With `scheme` the matrices of `dummy_schemes` are quantized
    where `factory` supports it, and with a W8A8 scheme their activations too. By default `factory`
    makes weights for torch's operators.

    The spread of a matrix preserves the magnitude of its inputs, and the outputs of all layers
    together are about as large as an embedding, so that logits have a standard deviation near
    `_LOGIT_STD` at any depth. Embeddings that are also the `lm_head` have its spread.
    """
    shard = shard or Shard(config)
    placement = _RandomPlacement(shard, dtype, device, seed, scheme, factory or TorchWeights())
    return canonicalize(shard.local_config, assemble(shard, placement, dtype))


class _RandomPlacement:
    def __init__(
        self,
        shard: Shard,
        dtype: torch.dtype,
        device: torch.device,
        seed: int,
        scheme: str | None,
        factory: WeightFactory,
    ) -> None:
        config = shard.config
        self.factory = factory
        self._config, self._num_ranks, self._dtype, self._device = config, shard.size, dtype, device
        self._seed = seed
        self._generator = torch.Generator(device)
        self._kinds = {tensor_name(config, *place): place[0] for place in canonical_tensors(config)}
        self._shapes = expected_tensors(config)
        self._schemes = dummy_schemes(config, scheme)
        self._indices = {name: index for index, name in enumerate(self._shapes)}
        self._activations: ActivationQuantization | None = None
        # There are tens of thousands of experts: quantized ones beside a GPU are copies of one.
        self._copied: dict[tuple[WeightFactory, tuple[str, ...]], LinearWeight] = {}
        if scheme is not None and scheme in W8A8 and factory.quantizes_activations:
            self._activations = ActivationQuantization(W8A8[scheme])

    def tensor(self, slices: NamedSlices, *, dtype: torch.dtype | None = None) -> Tensor:
        tensor = self._own(self._random(slices), slices).to(dtype or self._dtype)
        return tensor.cpu() if self._is_on_host(slices) else tensor

    def weight(self, slices: NamedSlices, *, is_table: bool = False) -> LinearWeight:
        kinds = tuple(self._kinds[name] for name, _ in slices)
        key = self.factory.of(slices[0][0]), kinds
        if key in self._copied:
            return _copy(self._copied[key])
        weight = self._new_weight(slices, is_table=is_table)
        if kinds[0].startswith("expert_") and self._is_copied(weight):
            self._copied[key] = weight
        return weight

    def _new_weight(self, slices: NamedSlices, *, is_table: bool) -> LinearWeight:
        whole, factory = self._random(slices), self.factory.of(slices[0][0])
        weight = self._quantized(whole, slices)
        if weight is None or (is_table and not weight.supports_rows):
            own = self._own(whole, slices)
            own = own.cpu() if self._is_on_host(slices) else own
            weight = factory.plain(own)
        if self._activations is None or not factory.quantizes_activations:
            return weight
        return W8A8Weight(weight, self._activations) if slices[0][0] in self._schemes else weight

    def experts(self, slices: NamedSlices) -> Sequence[LinearWeight]:
        ((name, part),) = slices
        shape, factory = self._shapes[name], self.factory.of(name)
        key = factory, (self._kinds[name],)
        if key in self._copied:
            return [_copy(self._copied[key]) for _ in range(shape[0])]
        weights: Sequence[LinearWeight] | None = None
        if name in self._schemes and factory.keeps_quantized:
            matrices = of_experts(self._mxfp4(name), shape, part, slice_matrix)
            weights = quantized_experts(matrices, factory, self._dtype)
        if weights is None:
            return [factory.plain(each) for each in self.tensor(slices)]
        if self._is_copied(weights[0]):
            self._copied[key] = weights[0]
        return weights

    def _is_on_host(self, slices: NamedSlices) -> bool:
        return self.factory.of(slices[0][0]) is not self.factory

    def _is_copied(self, weight: LinearWeight) -> bool:
        """Return whether other experts are copies of this one."""
        is_beside = isinstance(weight, NativeWeight) and self._device.type != "cpu"
        return weight.is_quantized and (isinstance(weight, GpuQuantizedWeight) or is_beside)

    def _mxfp4(self, name: str) -> Mxfp4:
        """Return random experts, one below the other."""
        num_experts, columns, rows = self._shapes[name]
        self._generator.manual_seed(self._indices[name])
        shape = (num_experts * rows, columns // 2)
        values = torch.empty(shape, dtype=torch.uint8, device=self._device)
        values.random_(0, 256, generator=self._generator)
        # The elements' standard deviation is 2.9.
        _, std = _spread(self._config, self._kinds[name], self._shapes[name])
        exponent = 127 + round(math.log2(std / 2.9))
        scale = torch.full((len(values), columns // 32), exponent, dtype=torch.uint8)
        return Mxfp4(_numpy(values), _numpy(scale))

    def _random(self, slices: NamedSlices) -> Tensor:
        """Return the whole tensors of the names, one below the other."""
        names = [name for name, _ in slices]
        num_rows = sum(self._shapes[name][0] for name in names)
        shape = (num_rows, *self._shapes[names[0]][1:])
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
        mean, std = _spread(self._config, self._kinds[names[0]], self._shapes[names[0]])
        self._generator.manual_seed(len(self._indices) * self._seed + self._indices[names[0]])
        return tensor.normal_(mean, std, generator=self._generator)

    def _split(self, whole: Tensor, slices: NamedSlices) -> list[tuple[Tensor, TensorSlice]]:
        tensors = torch.split(whole, [self._shapes[name][0] for name, _ in slices])
        return list(zip(tensors, (part for _, part in slices), strict=True))

    def _quantized(self, whole: Tensor, slices: NamedSlices) -> LinearWeight | None:
        scheme = self._schemes.get(slices[0][0])
        factory = self.factory.of(slices[0][0])
        if scheme is None or not factory.keeps_quantized:
            return None
        parts = []
        for tensor, part in self._split(whole, slices):
            own = slice_matrix(_quantize(tensor, scheme), part.axis, part.spans)
            if own is None:
                return None
            parts.append(own)
        return factory.quantized(parts, self._dtype)

    def _own(self, whole: Tensor, slices: NamedSlices) -> Tensor:
        """Return the parts of this rank."""
        if self._num_ranks == 1:
            return whole
        own = [
            tensor.narrow(part.axis, first, end - first)
            for tensor, part in self._split(whole, slices)
            for first, end in part.spans
        ]
        return torch.cat(own, slices[0][1].axis)


def _quantize(matrix: Tensor, scheme: Scheme) -> QuantizedMatrix:
    """Round a matrix to the nearest values of the scheme."""
    kind, group = scheme
    num_rows = len(matrix)
    if kind is Int4:
        groups = matrix.float().view(num_rows, -1, group)
        scale = (groups.amax(2) - groups.amin(2)) / 15
        zero = (-groups.amin(2) / scale).round_().clamp_(0, 15)
        values = (groups / scale.unsqueeze(2) + zero.unsqueeze(2)).round_().clamp_(0, 15)
        low, high = values.view(num_rows, -1, 2).byte().unbind(2)
        return Int4(_numpy(low | high << 4), _numpy(scale), _numpy(zero))
    if kind is Mxfp4:
        groups = matrix.float().view(num_rows, -1, group)
        # The largest of a group becomes 4 or 6.
        exponents = torch.frexp(groups.abs().amax(2)).exponent - 3
        elements = _e2m1(torch.ldexp(groups, -exponents.unsqueeze(2)))
        return Mxfp4(elements, _numpy((exponents + 127).byte()))
    if kind is Nvfp4:
        groups = matrix.float().view(num_rows, -1, group)
        largest = groups.abs().amax(2) / 6
        row_scale = (largest.amax() / 448).expand(num_rows)
        scale = (largest / row_scale.unsqueeze(1)).to(torch.float8_e4m3fn)
        wide = scale.float() * row_scale.unsqueeze(1)
        elements = _e2m1(groups / wide.unsqueeze(2))
        return Nvfp4(elements, _numpy(scale.view(torch.uint8)), _numpy(row_scale))
    groups = matrix.view(num_rows, -1, group) if group else matrix.unsqueeze(1)
    largest = groups.abs().amax(2, keepdim=True).float()
    if kind is Int8:
        largest = largest[:, 0]
        values = (matrix * (127 / largest)).round_().char()
        return Int8(_numpy(values), _numpy(largest[:, 0] / 127))
    bits = (groups * (448 / largest)).to(torch.float8_e4m3fn).view(torch.uint8)
    return Float8(_numpy(bits.view(num_rows, -1)), _numpy(largest[:, :, 0] / 448))


def _e2m1(groups: Tensor) -> npt.NDArray[Any]:
    """Return the elements nearest to the numbers of groups, [rows, groups, size], two a byte."""
    scaled = groups.flatten(1)
    between = torch.tensor(_BETWEEN_E2M1, device=groups.device)
    elements = torch.bucketize(scaled.abs(), between) + 8 * scaled.signbit()
    low, high = elements.byte().view(len(scaled), -1, 2).unbind(2)
    return _numpy(low | high << 4)


def _copy(weight: LinearWeight) -> LinearWeight:
    if not isinstance(weight, GpuQuantizedWeight):
        return weight.reordered(torch.arange(weight.shape[0]))
    matrix, scale = weight.matrix, weight.matrix.row_scale
    row_scale = None if scale is None else scale.clone()
    return replace(weight, matrix=replace(matrix, tiles=matrix.tiles.clone(), row_scale=row_scale))


def _numpy(tensor: Tensor) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = tensor.cpu().numpy()
    return array


def _spread(config: ModelConfig, kind: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Mean and standard deviation of a tensor of this canonical name and shape."""
    branch = (2 * config.num_layers) ** -0.5  # every layer adds two branches
    end_std = branch if kind.removesuffix("_bias") in _BRANCH_ENDS else 1.0
    if kind.endswith(("_bias", "_correction")):
        return 0.0, 0.1 * end_std
    if kind in ("layer_scale", "router_scale", "expert_scales", "stream_scale"):
        return 1.0, 0.1
    if kind.endswith("_norm"):
        size = branch if kind.endswith("_out_norm") else 1.0
        has_offset = config.norm.unit_offset and kind != "mixer_norm"
        return size - has_offset, 0.1 * size
    if kind == "lm_head" or (kind == "embed" and config.head.tied):
        return 0.0, _LOGIT_STD * config.hidden_size**-0.5
    if kind in ("embed", "positions", "sinks"):
        return 0.0, 1.0
    fan_in = shape[-2] if kind in ARCHITECTURES[config.architecture].transposed else shape[-1]
    return 0.0, end_std * float(fan_in) ** -0.5
