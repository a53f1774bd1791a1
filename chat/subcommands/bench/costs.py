"""Minimum FLOP of a prefill and minimum bytes read by a decode step."""

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swiftchat.engine.api.protocol import EngineInfo
    from swiftchat.weights.architectures.parts.model import ModelConfig


@dataclass(frozen=True)
class Costs:
    """Costs of a model's shape on a running engine."""

    shape: "ModelConfig"
    info: "EngineInfo"

    def prefill_flop(self, num_tokens: int) -> float:
        """Return multiplications plus additions of a prompt; logits for its last token only."""
        shape = self.shape
        chosen = 0 if shape.moe is None else shape.moe.experts_per_token
        num_weights = self._num_weights() + chosen * self._num_weights(expert=True)
        # Attention: q·k and score·v, for each query and each key in its context.
        elements = sum(each.head_dim + each.values.dim for each in shape.attentions)
        flop_per_pair = 2 * shape.attention.num_heads * elements
        num_pairs = sum(map(self._attended, range(1, num_tokens + 1)))
        logits = 2 * shape.vocab_size * shape.hidden_size
        return num_tokens * 2 * num_weights + flop_per_pair * num_pairs + logits

    def step_bytes(self, prompt: int, answer: int, batch: int) -> float:
        """Return the bytes that one rank reads in a decode step.

        The mean over the steps after the first token. With pipeline stages, which read one after
        the other, the sum over one rank of each stage.
        """
        shape, info = self.shape, self.info
        contexts = [self._attended(prompt + i) for i in range(1, answer)]
        kv_bytes = info.cache_bytes / info.cache_tokens * statistics.mean(contexts)
        # The lower bound: all rows choose the same experts.
        moe = shape.moe
        unused = 0.0 if moe is None else 1 - moe.experts_per_token / moe.num_experts
        read_bytes = info.weights_bytes - info.table_bytes - unused * info.expert_bytes
        return read_bytes + batch * kv_bytes

    def _num_weights(self, expert: bool = False) -> int:
        """Return the elements of all layers' matrices: shared ones, or those of one expert."""
        from swiftchat.weights.architectures.tensors import layer_tensors, shape_by_place

        shape_of = shape_by_place(self.shape)
        return sum(
            math.prod(shape_of(name, layer)[-2:])
            for layer in range(self.shape.num_layers)
            for name in layer_tensors(self.shape, layer)
            if name.startswith("expert") == expert
            and not name.endswith("_bias")
            and len(shape_of(name, layer)) > 1
        )

    def _attended(self, context_len: int) -> int:
        windows = [each.scores.window for each in self.shape.attentions if each.scores.window]
        return min([context_len, *windows[:1]])
