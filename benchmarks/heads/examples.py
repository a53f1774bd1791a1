"""The hidden states of texts, and batches of them to train heads."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from texts import Text
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.model.hidden_states import HiddenStates
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import Row, TokenSequence


@dataclass(frozen=True)
class Recorded:
    """A text with its hidden states, fp16 [tokens, …] on the engine's device.

    `joined` are those that an EAGLE-3 head reads, `normed` those that the LM head reads.
    """

    text: Text
    joined: Tensor
    normed: Tensor


@torch.inference_mode()
def record(engine: Engine, texts: Sequence[Text], layers: Sequence[int]) -> list[Recorded]:
    """Compute the texts once more, all tokens of some texts in one pass.

    The blocks of the engine's cache are overwritten: it must not be used for answers after this.
    """
    started, found, last = time.monotonic(), list[Recorded](), engine.decoder.config.num_layers
    for some in _passes(engine, texts):
        hidden = HiddenStates((*dict.fromkeys(layers), last))
        engine.decoder.forward(_batch(engine, some), engine.cache, hidden)
        states = hidden.found
        joined = torch.cat([states[layer].half() for layer in layers], 1)
        normed = last_norm(engine, states[last]).half()
        sizes = [len(text.tokens) for text in some]
        parts = zip(some, joined.split(sizes), normed.split(sizes), strict=True)
        found += [Recorded(*part) for part in parts]
    num_tokens = sum(len(text.tokens) for text in texts)
    print(f"hidden states of {num_tokens} tokens in {time.monotonic() - started:.1f} s", flush=True)
    return found


def last_norm(engine: Engine, x: Tensor) -> Tensor:
    """Return what the model's last norm makes of the last layer's output, fp32."""
    config, weights = engine.decoder.config, engine.decoder.weights
    if weights.final_norm is None:
        return x
    scale = weights.final_norm.float() + float(config.norm.unit_offset)
    if config.norm.kind == "rms":
        return F.rms_norm(x, scale.shape, scale, config.norm.eps)
    shift = weights.final_norm_bias
    bias = None if shift is None else shift.float()
    return F.layer_norm(x, scale.shape, scale, bias, config.norm.eps)


def _passes(engine: Engine, texts: Sequence[Text]) -> Iterator[list[Text]]:
    """Divide the texts into groups that one forward pass takes."""
    size = engine.config.block_size
    room = min(engine.scheduler.chunk_tokens, engine.allocator.num_free * size)
    some, num_tokens = list[Text](), 0
    for text in texts:
        needed = -(-len(text.tokens) // size) * size
        if some and num_tokens + needed > room:
            yield some
            some, num_tokens = [], 0
        some.append(text)
        num_tokens += needed
    if some:
        yield some


def _batch(engine: Engine, texts: Sequence[Text]) -> Batch:
    rows, first, size = list[Row](), 0, engine.config.block_size
    for key, text in enumerate(texts):
        sequence = TokenSequence(key, text.tokens, SamplingParams())
        end = first + -(-len(text.tokens) // size)
        sequence.block_table, first = list(range(first, end)), end
        rows.append(Row(sequence, len(text.tokens)))
    return Batch.pack(rows, size)


@dataclass(frozen=True)
class Examples:
    """Conversations of one training step, padded to n tokens.

    Token i has the joined hidden states `joined[:, i]` and the next id `following[:, i]`; its
    position is i. `labels[:, i]` are the model's hidden states from which that id was sampled,
    where `is_answer`.
    """

    joined: Tensor
    following: Tensor
    labels: Tensor
    is_answer: Tensor

    @classmethod
    def of(cls, some: Sequence[Recorded], device: str) -> Self:
        length = max(len(one.text.tokens) for one in some) - 1
        ids = torch.zeros(len(some), length, dtype=torch.int64)
        is_answer = torch.zeros(len(some), length, dtype=torch.bool)
        for row, one in enumerate(some):
            tokens = one.text.tokens
            ids[row, : len(tokens) - 1] = torch.tensor(tokens[1:])
            is_answer[row, one.text.answer - 1 : len(tokens) - 1] = True
        pad = torch.nn.utils.rnn.pad_sequence
        joined = pad([one.joined[:-1] for one in some], batch_first=True)
        labels = pad([one.normed[:-1] for one in some], batch_first=True)
        return cls(*(each.to(device) for each in (joined, ids, labels, is_answer)))
