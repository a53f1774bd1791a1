"""The operations that a decoder computes with: what each device implements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.kv_cache import KVCache, LayerKV
from swiftchat.engine.model.latent_attention import LatentWeights
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.moe import Experts
from swiftchat.engine.model.per_layer import PerLayerBranch, PerLayerTable
from swiftchat.engine.schedule.batch import Batch


@dataclass(frozen=True)
class AttentionInputs:
    """What the attention of a layer reads besides the batch's queries, keys and values.

    `norms` are the weights of the query and key norms, which come first.
    """

    layer: int
    kv: LayerKV
    norms: tuple[Tensor, Tensor] | None = None
    sinks: Tensor | None = None
    latent: LatentWeights | None = None


class Ops(Protocol):
    """The operations of a model on one device: the decoder computes with nothing else.

    So they can also be recorded (`engine.cpu.recorder`). `plan` moves a batch to the device; its
    result is passed to the operations that need it. The residual stream x is fp32
    [n, hidden_size]; all other activations have the weights' dtype.
    """

    heads_first: bool  # the layout of the KV cache

    def plan(self, batch: Batch, cache: KVCache) -> Any: ...
    def embed(self, plan: Any, table: LinearWeight) -> Tensor:
        """Look up the batch's ids in this rank's rows of the table: fp32 [n, hidden_size].

        Ids of other ranks give zeros.
        """

    def add_positions_(self, plan: Any, x: Tensor, table: Tensor) -> None:
        """Add the rows of the table [num_positions, hidden_size] at the batch's positions to x."""

    def scale_(self, x: Tensor, scale: float | Tensor) -> None:
        """Multiply the stream in place, by a number or a tensor [1] or [hidden_size]."""

    def per_layer_embeddings(self, plan: Any, x: Tensor, table: PerLayerTable) -> Sequence[Tensor]:
        """Return the embeddings of the batch's ids for each layer: [n, width] each.

        x is the stream before the first layer.
        """

    def per_layer_branch(self, x: Tensor, own: Tensor, branch: PerLayerBranch) -> Tensor:
        """Return the branch of a layer's embeddings [n, width] for the stream: fp32."""

    def sparsify_(self, gate_up: Tensor, deviations: float) -> None:
        """Replace each gate by what it exceeds the mean of its row plus so many deviations by.

        In place; gates below it become 0.
        """

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return x in another dtype, possibly x itself."""

    def copy(self, x: Tensor, scale: float) -> Tensor:
        """Return x multiplied by `scale` in fp32, which nothing overwrites later."""

    def norm_(self, x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Add a branch's output to the stream in place; return the stream's norm."""

    def add_(self, x: Tensor, delta: Tensor) -> None:
        """Add a branch's output to the stream in place."""

    def add_norm_(self, x: Tensor, delta: Tensor, weight: Tensor) -> None:
        """Add the RMSNorm of a branch's output to the stream in place."""

    def replace_(self, x: Tensor, normed: Tensor, scale: float) -> None:
        """Overwrite the stream with its norm, multiplied by `scale`."""

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the sum of two branches' outputs, which may overwrite x."""

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor: ...
    def attend(self, plan: Any, qkv: Tensor, inputs: AttentionInputs) -> Tensor:
        """Rotate, write keys and values to the layer's cache, attend: [n, num_heads * value_dim].

        Overwrites `qkv`.
        """

    def store(self, plan: Any, qkv: Tensor, inputs: AttentionInputs) -> None:
        """Write keys and values to the layer's cache, as `attend` does, without attention."""

    def mix(
        self, plan: Any, layer: int, x: Tensor, mixer: MixerWeights, ranks: Communicator
    ) -> Tensor:
        """Return the output of a layer's mixer, and advance the states of the batch's rows.

        With several `ranks` it is this rank's part of the output, before the all-reduce.
        """

    def split_gate(self, qkv: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return q k v and gates of [n, `width` queries, `width` gates, keys and values]."""

    def clamp_(self, x: Tensor, limit: float) -> None:
        """Limit all elements of x to ±`limit` in place."""

    def xielu(self, x: Tensor, scales: Tensor) -> Tensor:
        """Return the activation xIELU (arXiv:2411.13010) of x, with a layer's `scales` fp32 [2]."""

    def norm_inside(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return the RMSNorm of activations within a branch, in their dtype."""

    def gate(self, x: Tensor, scores: Tensor, *, softplus: bool = False) -> Tensor:
        """Return x times the sigmoid, or softplus, of `scores`, which may overwrite x."""

    def act_and_mul(self, gate_up: Tensor) -> Tensor:
        """Return activation(gate) * up of [n, 2 * intermediate_size], the gate first.

        Without a gate, return the activation of [n, intermediate_size].
        """

    def moe(
        self, layer: int, x: Tensor, experts: Experts, router_input: Tensor | None = None
    ) -> Tensor:
        """Return the weighted sum of the chosen experts' outputs: fp32 [n, hidden_size].

        The router reads x, or `router_input` if it is given.
        """

    def logits_rows(self, plan: Any, x: Tensor) -> Tensor:
        """Select the rows whose logits are computed."""

    def logits(self, x: Tensor, lm_head: LinearWeight, bias: Tensor | None) -> Tensor:
        """Return fp32 [n, vocab_size]."""

    def softcap_(self, logits: Tensor, cap: float) -> Tensor:
        """Replace logits x by cap·tanh(x / cap) in place and return them."""

    def copy_blocks(self, cache: KVCache, copies: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination), in all layers."""
