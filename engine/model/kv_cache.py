"""The tensors of the KV cache."""

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from swiftchat.engine.model.int5_kv import packed_sizes
from swiftchat.engine.model.quantized_kv import SCHEMES, QuantizedKV
from swiftchat.engine.model.state_cache import StateCache
from swiftchat.weights.architectures.config import ModelConfig

LayerKV = Tensor | QuantizedKV
T = TypeVar("T")


class SharedBlocks(Protocol):
    """What else belongs to the tokens of each block: tensors [_, num_blocks, …]."""

    @property
    def tensors(self) -> Sequence[Tensor]: ...


class KVCache:
    """Keys and values of every layer, allocated once.

    `layers[i]` is [num_blocks, block_size, 2 * num_kv_heads, head_dim]: a token's keys of all
    heads, then its values, so that one write stores both. With `heads_first`, the layout of the
    kernels, it is [num_blocks, 2 * num_kv_heads, block_size, head_dim]: a head's part of a block is
    contiguous. With latent attention a token has one row of `LatentAttention.cached_dim` elements
    instead: its latent and its rotated key. With `kv_dtype` int8, fp8 or int5 it is a `QuantizedKV`
    of that layout. `tensors` hold all layers with rows of one width, [num_layers, num_blocks, ...],
    one group after the other, and those of `share_blocks`; a copy of a block copies each of them.
    On the CPU the system commits
    the memory of a block when it is first written. Layers with a mixer have an empty tensor in
    `layers`, none in `tensors`, and `states` with `num_states` slots. `numbers` are the places of
    the other layers among those with keys and values of their own; layers that share them have the
    same place and the same tensor.
    """

    def __init__(
        self,
        config: ModelConfig,
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        heads_first: bool = False,
        kv_dtype: str = "auto",
        num_states: int = 0,
    ) -> None:
        places = {layer: i for i, layer in enumerate(config.attention_layers)}
        self.numbers: dict[int, int] = {}
        row_shapes: list[tuple[int, int]] = []
        for i, layer in enumerate(config.layers):
            if layer.attention is not None:
                source = layer.attention.kv_source
                self.numbers[i] = places[i if source is None else source]
                row_shapes += [layer.attention.cached_rows] if source is None else []
        self._groups = list(dict.fromkeys(row_shapes)) or [config.attention.cached_rows]
        self._places = [
            (self._groups.index(each), row_shapes[:i].count(each))
            for i, each in enumerate(row_shapes)
        ]
        self.is_quantized = kv_dtype in SCHEMES
        self._own: tuple[Tensor, ...] = ()
        self._shared: tuple[Tensor, ...] = ()
        own: list[Sequence[LayerKV]] = []
        for rows, width in self._groups:
            block = (rows, block_size) if heads_first else (block_size, rows)
            shape = (row_shapes.count((rows, width)), num_blocks, *block)
            if kv_dtype == "int5":
                sizes = [
                    (heads, block_size, size) if heads_first else (block_size, heads, size)
                    for heads, size in packed_sizes(rows, width)
                ]
                values, key_bits, value_bits = (
                    torch.empty(*shape[:2], *size, dtype=torch.int8, device=device)
                    for size in sizes
                )
                scales = torch.empty(shape, device=device)
                self._own += (values, key_bits, value_bits, scales)
                parts = zip(values, scales, key_bits, value_bits, strict=True)
                own.append([QuantizedKV(kv_dtype, *each) for each in parts])
            elif self.is_quantized:
                values = torch.empty(*shape, width, dtype=torch.int8, device=device)
                scales = torch.empty(shape, device=device)
                self._own += (values, scales)
                pairs = zip(values, scales, strict=True)
                own.append([QuantizedKV(kv_dtype, *each) for each in pairs])
            else:
                self._own += (torch.empty(*shape, width, dtype=dtype, device=device),)
                own.append(self._own[-1].unbind())
        empty: LayerKV = torch.empty(0, device=device)
        in_order = [*self.by_number(own), empty]
        self.layers = [in_order[self.numbers.get(i, -1)] for i in range(config.num_layers)]
        self.states = StateCache(config, num_states, device)
        self.block_size, self._heads_first = block_size, heads_first

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self._own + self._shared

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors) + self.states.num_bytes

    def share_blocks(self, other: SharedBlocks) -> None:
        """Let blocks have more tensors: those of a prediction head are copied with them."""
        self._shared += tuple(other.tensors)

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination), in all layers, one after the other."""
        for source, destination in copies:
            if source != destination:
                for tensor in self.tensors:
                    tensor[:, destination] = tensor[:, source]

    def first_not_finite(self, block_table: Sequence[int], num_tokens: int) -> int | None:
        """Return the first layer with an infinite or NaN value for these tokens, if there is one.

        In a quantized cache such a row has a scale that is not finite.
        """
        blocks = list(block_table[: -(-num_tokens // self.block_size)])
        per_group = len(self._own) // len(self._groups)
        last = self._own[per_group - 1 :: per_group]
        for layer, number in self.numbers.items():
            group, place = self._places[number]
            rows = last[group][place, blocks]
            rows = rows.transpose(1, 2) if self._heads_first else rows
            if not rows.flatten(0, 1)[:num_tokens].isfinite().all():
                return layer
        return None

    def slot_ranges(self, first: int, num_tokens: int) -> list[Tensor]:
        """View adjacent slots: [num_layers, num_tokens, 2 * num_kv_heads, head_dim] a group.

        Not for a quantized cache or `heads_first`.
        """
        return [each.flatten(1, 2)[:, first : first + num_tokens] for each in self._own]

    def by_number(self, groups: Sequence[Sequence[T]]) -> Sequence[T]:
        """Return what each group has for its layers, in the order of `numbers`."""
        if len(groups) == 1:
            return groups[0]
        return [groups[group][place] for group, place in self._places]


def independent_copies(copies: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Divide copies (source, destination) into groups that may each be made in any order.

    One group after the other, the result is that of all copies in their order.
    """
    together: list[tuple[int, int]] = []
    for source, destination in copies:
        if source == destination:
            continue
        sources = {earlier for earlier, _ in together}
        destinations = {earlier for _, earlier in together}
        if destination in sources | destinations or source in destinations:
            yield together
            together = []
        together.append((source, destination))
    if together:
        yield together
