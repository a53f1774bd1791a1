"""Prediction heads as modules of torch: EAGLE-3 and Medusa, with their losses."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from examples import Examples
from torch import Tensor, nn

from swiftchat.engine.model.rope import cos_sin_table
from swiftchat.weights.architectures.parts.rope import RopeConfig

# Returns the model's probabilities for hidden states [n, hidden_size] that its LM head reads.
Targets = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Loss:
    """The mean cross-entropy to distributions, in nats, and the share of equal best ids."""

    value: Tensor
    agreement: Tensor

    @classmethod
    def of(cls, logits: Tensor, targets: Tensor) -> "Loss":
        same = (logits.argmax(1) == targets.argmax(1)).float().mean()
        return cls(F.cross_entropy(logits.float(), targets), same)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self._eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self._eps)


class SelfAttention(nn.Module):
    """Attention whose keys and values come from the first pass and from the token's own chain."""

    def __init__(self, config: dict[str, Any], cos_sin: Tensor) -> None:
        super().__init__()
        width, self._dim = config["hidden_size"], config["head_dim"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self._groups = heads // kv_heads
        self._cos_sin = nn.Buffer(cos_sin, persistent=False)
        self.q_proj = nn.Linear(2 * width, heads * self._dim, bias=False)
        self.k_proj = nn.Linear(2 * width, kv_heads * self._dim, bias=False)
        self.v_proj = nn.Linear(2 * width, kv_heads * self._dim, bias=False)
        self.o_proj = nn.Linear(heads * self._dim, width, bias=False)

    def forward(self, x: Tensor, passes: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Attend in pass s = len(passes) of a chain, and append this pass's keys and values.

        In pass s token i ends a chain of s tokens: it sees the keys of pass 0 up to token i − s,
        and those of pass r of token i − s + r.
        """
        length, s = x.shape[1], len(passes)
        q, k = self._rotate(self._heads(self.q_proj(x))), self._rotate(self._heads(self.k_proj(x)))
        k, v = (t.repeat_interleave(self._groups, 1) for t in (k, self._heads(self.v_proj(x))))
        passes.append((k, v))
        keys, values = passes[0]
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril(-s)
        scores = [(q @ keys.transpose(2, 3)).masked_fill(~mask, -math.inf)]
        chain = [tuple(t.roll(s - r, 2) for t in passes[r]) for r in range(1, s + 1)]
        scores += [(q * own).sum(3, keepdim=True) for own, _ in chain]
        weights = (torch.cat(scores, 3) / math.sqrt(self._dim)).softmax(3)
        out = weights[..., :length] @ values
        for r, (_, own) in enumerate(chain):
            out = out + weights[..., length + r, None] * own
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, self._dim)).transpose(1, 2)

    def _rotate(self, x: Tensor) -> Tensor:
        cos, sin = self._cos_sin[: x.shape[2]].chunk(2, 1)
        first, second = x.chunk(2, 3)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], 3)


class MLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MidLayer(nn.Module):
    def __init__(self, config: dict[str, Any], cos_sin: Tensor) -> None:
        super().__init__()
        width, eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm, self.hidden_norm = RMSNorm(width, eps), RMSNorm(width, eps)
        self.post_attention_layernorm = RMSNorm(width, eps)
        self.self_attn = SelfAttention(config, cos_sin)
        self.mlp = MLP(width, config["intermediate_size"])

    def forward(self, x: Tensor, embedded: Tensor, passes: list[tuple[Tensor, Tensor]]) -> Tensor:
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(x)], 2)
        x = x + self.self_attn(both, passes)
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle3(nn.Module):
    """The head of `config`; its state dict has the names of the files."""

    def __init__(self, config: dict[str, Any], num_joined: int) -> None:
        super().__init__()
        width = config["hidden_size"]
        rope = RopeConfig.from_hf(config, config["head_dim"])
        positions = config["max_position_embeddings"]
        cos_sin = cos_sin_table(rope, config["head_dim"], positions, torch.device("cpu"))
        self.fc = nn.Linear(num_joined, width, bias=False)
        self.midlayer = MidLayer(config, cos_sin)
        self.norm = RMSNorm(width, config["rms_norm_eps"])
        self.lm_head = nn.Linear(width, config["draft_vocab_size"], bias=False)

    def losses(
        self, batch: Examples, embedded: Tensor, targets: Targets, num_passes: int
    ) -> list[Loss]:
        """Return the loss of each pass; in pass s > 0 the head reads its own hidden states.

        `embedded` are the embeddings of `batch.following`. A token is scored by the distribution of
        the id after that one.
        """
        x, passes, found = self.fc(batch.joined.float()), list[tuple[Tensor, Tensor]](), []
        is_scored = batch.is_answer[:, 1:].clone()
        is_scored[:, :num_passes] = False  # a chain of s tokens has s tokens before it
        scored = is_scored.flatten().nonzero()[:, 0]
        expected = targets(batch.labels[:, 1:].flatten(0, 1)[scored])
        for _ in range(num_passes):
            x = self.midlayer(x, embedded, passes)
            logits = self.lm_head(self.norm(x[:, :-1].flatten(0, 1)[scored]))
            found.append(Loss.of(logits, expected))
            x = x.roll(1, 1)
        return found


class Medusa(nn.Module):
    """Heads of one residual block each, before the LM head of the model."""

    def __init__(self, num_heads: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(num_heads))
        for block in self.blocks:
            nn.init.zeros_(block.weight)
            nn.init.zeros_(block.bias)

    def losses(self, batch: Examples, targets: Targets, lm_head: Tensor) -> list[Loss]:
        """Return the loss of each head; head h predicts the id h + 2 tokens after its own."""
        found = []
        for h, block in enumerate(self.blocks):
            is_scored = batch.is_answer[:, : -h - 1] & batch.is_answer[:, h + 1 :]
            x = batch.labels[:, : -h - 1][is_scored].float()
            expected = targets(batch.labels[:, h + 1 :][is_scored])
            found.append(Loss.of((x + F.silu(block(x))) @ lm_head.T, expected))
        return found
