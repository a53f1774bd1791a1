"""Medusa heads: each predicts one of the following tokens from the model's last hidden state."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.gpu.capture import Captured, captured
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.head_cache import Features
from swiftchat.engine.model.hidden_states import LAST_NORM, HiddenStates
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.speculation.proposer import Stopwatch


@dataclass(frozen=True)
class MedusaHead:
    """The residual blocks of a head, a matrix and a bias each, and its matrix to the vocabulary."""

    blocks: Sequence[tuple[LinearWeight, Tensor]]
    lm_head: LinearWeight

    def token(self, x: Tensor) -> Tensor:
        """Return the most probable id for a hidden state [1, width] of the matrices' dtype: [1]."""
        for matrix, bias in self.blocks:
            x = x + F.silu(matrix.matmul(x, bias))
        return self.lm_head.matmul_fp32(x).argmax(1)


class MedusaHeads:
    """Proposes one chain of tokens: the most probable one of each head.

    Cai et al., 2024 (arXiv:2401.10774), without their tree of candidates. They read what the LM
    head reads, of the token from whose logits the newest one was sampled.
    """

    name = "medusa"
    hidden_layers = (LAST_NORM,)

    @torch.inference_mode()
    def __init__(
        self,
        heads: Sequence[MedusaHead],
        features: Features,
        block_size: int,
        step_s: float | None = None,
    ) -> None:
        """Use `step_s` as the duration of proposing a token in seconds, or measure it."""
        self._heads, self._stopwatch = heads, Stopwatch(step_s)
        self._features, self._block_size = features, block_size
        weight = heads[0].lm_head
        self._device = weight.tensors[0].device
        # What the graphs read; they return the ids of the first heads, by the number of heads.
        self._x = torch.zeros(1, weight.shape[1], dtype=weight.dtype, device=self._device)
        self._graphs: dict[int, Captured[Tensor]] = {}
        if self._device.type == "cuda":
            for number in range(len(heads), 0, -1):  # all of them load the kernels
                is_loaded = number < len(heads)
                self._graphs[number] = captured(partial(self._ids, number), is_loaded=is_loaded)

    @property
    def step_s(self) -> float | None:
        return self._stopwatch.step_s

    def store(self, batch: Batch | Any, hidden: HiddenStates) -> None:
        """Keep what the LM head reads of a batch; nothing of one that has no logits."""
        if LAST_NORM in hidden.found:
            slots = torch.as_tensor(batch.logits_slots, device=self._device)
            self._features.write(slots, hidden.found[LAST_NORM])

    def propose(self, sequence: TokenSequence, num_tokens: int) -> list[int]:
        heads, position = self._heads[:num_tokens], sequence.num_computed - 1
        if position < 0 or not heads:
            return []
        block, offset = divmod(position, self._block_size)
        slot = sequence.block_table[block] * self._block_size + offset
        with self._stopwatch.measured(len(heads)):
            self._x.copy_(self._features.read(torch.tensor([slot], device=self._device)))
            graph = self._graphs.get(len(heads))
            ids = self._ids(len(heads)) if graph is None else graph.replay()
            return ids.tolist()

    def _ids(self, num_heads: int) -> Tensor:
        return torch.cat([head.token(self._x) for head in self._heads[:num_heads]])

    def forget(self, sequence: TokenSequence) -> None:
        """Do nothing: the blocks of the sequence are all that there is."""
