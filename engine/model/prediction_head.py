"""A prediction head: one more layer of a model, which continues its hidden states."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.head_cache import HeadCache
from swiftchat.engine.model.hidden_states import HiddenStates
from swiftchat.engine.schedule.batch import Batch, Span
from swiftchat.weights.architectures.parts.layers import Norm

Chain = Callable[[int, int, Sequence[int], int], list[int]]
"""`PredictionHead.chain`."""


class HeadInput(Protocol):
    """What comes before the layer of a head. All states are fp32."""

    @property
    def hidden_layers(self) -> Collection[int]:
        """The hidden states of the model that it reads, as in `HiddenStates`."""

    def features(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """Return what the head reads of the hidden states of tokens, [n, hidden_size]."""

    def stream(self, decoder: Decoder, plan: Any, features: Tensor) -> Tensor:
        """Return the stream before the layer, given the features of the tokens before: a copy."""


@dataclass(frozen=True)
class PredictionHead:
    """A decoder of one layer that predicts the token after the next one.

    The layer reads each token with the features of the token before it, so the first token of a
    sequence is no key. Token i has its features, keys and values in slot i of the sequence's
    blocks, as in the model's own layers, and they depend on nothing behind it.

    `decoder` has the embeddings, the layer, the last norm and the LM head. With `chains_normed` a
    hidden state of the head itself is continued behind its last norm. `token_ids` int32 [rows of
    the LM head] are the ids that the rows stand for.
    """

    name: str
    decoder: Decoder
    inputs: HeadInput
    cache: HeadCache
    token_ids: Tensor
    chains_normed: bool = False

    @property
    def hidden_layers(self) -> Collection[int]:
        return self.inputs.hidden_layers

    def store(self, batch: Batch | Any, hidden: HiddenStates) -> None:
        """Write features, keys and values of a batch whose hidden states are known."""
        size = self.cache.kv.block_size
        if isinstance(batch, Batch):
            plan = self.decoder.ops.plan(batch, self.cache.kv)
            previous = torch.tensor(batch.previous_slots(size), device=self.token_ids.device)
        else:
            plan, previous = batch, batch.previous_slots(size)
        features = self.cache.features
        features.write(plan.slot_mapping, self.inputs.features(hidden.found))
        x = self.inputs.stream(self.decoder, plan, features.read(previous))
        (layer,), (kv,) = self.decoder.layers(), self.cache.kv.layers
        layer.store(plan, x, kv)

    def forward(self, plan: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute tokens whose predecessors have the features x; write their keys and values.

        Returns the features of the tokens themselves, as far as the head knows them, and the
        logits of the tokens after them, fp32 [n, rows of the LM head].
        """
        x = self.inputs.stream(self.decoder, plan, x)
        normed = self.decoder.forward_layers(plan, x, self.cache.kv)
        after = normed.float() if self.chains_normed else x
        return after, self.decoder.raw_logits(plan, normed)

    @torch.inference_mode()
    def chain(self, token: int, position: int, table: Sequence[int], num_tokens: int) -> list[int]:
        """Return the most probable tokens after `token`, each computed from the one before.

        All tokens before `position`, that of `token`, are in the blocks of the table, which has
        room for `num_tokens` more.
        """
        size, found = self.cache.kv.block_size, list[int]()
        places = range(position - 1, position + num_tokens)
        slots = [table[i // size] * size + i % size for i in places]
        x = self.cache.features.read(torch.tensor(slots[:1], device=self.token_ids.device))
        for at, slot in enumerate(slots[1:], position):
            span = Span(0, 1, at + 1, list(table))
            plan = self.decoder.ops.plan(
                Batch([token], [at], [slot], [0], [span], []), self.cache.kv
            )
            x, logits = self.forward(plan, x)
            token = int(self.token_ids[logits.argmax()])
            found.append(token)
        return found


@dataclass(frozen=True)
class Eagle3Input:
    """The input of an EAGLE-3 head: several hidden states of the model, projected by `project`.

    With a `norm` the layer adds to its normed input. What else it reads is its `TokenInput`.
    """

    hidden_layers: tuple[int, ...]
    project: LinearWeight
    eps: float
    norm: Tensor | None = None

    def features(self, hidden: Mapping[int, Tensor]) -> Tensor:
        joined = torch.cat([hidden[layer] for layer in self.hidden_layers], 1)
        return self.project.matmul_fp32(joined.to(self.project.dtype))

    def stream(self, decoder: Decoder, plan: Any, features: Tensor) -> Tensor:
        if self.norm is None:
            return features.clone()
        return F.rms_norm(features, self.norm.shape, self.norm.float(), self.eps)


@dataclass(frozen=True)
class MtpInput:
    """The input of a layer for multi-token prediction: the model's last norm, and embeddings.

    `project` joins their norms. `model_norm` are the weights of the last norm of the model, behind
    its `num_layers` layers. All norms are as `kind`, with fp32 weights.
    """

    num_layers: int
    model_norm: Tensor
    embedding_norm: Tensor
    hidden_norm: Tensor
    project: LinearWeight
    kind: Norm

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        return (self.num_layers,)

    def features(self, hidden: Mapping[int, Tensor]) -> Tensor:
        return self._norm(hidden[self.num_layers], self.model_norm)

    def stream(self, decoder: Decoder, plan: Any, features: Tensor) -> Tensor:
        embeddings = self._norm(decoder.embed(plan), self.embedding_norm)
        both = torch.cat([embeddings, self._norm(features, self.hidden_norm)], 1)
        return self.project.matmul_fp32(both.to(self.project.dtype))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight + float(self.kind.unit_offset), self.kind.eps)
