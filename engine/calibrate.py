"""Collect calibration statistics: second moments or maxima of the inputs of a model's matrices.

Run as a process of its own by programs that must not import torch: reads a JSON request from
stdin, prints lines "done total" and writes the statistics to a folder.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.load.loader import load_weights
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.ops import AttentionInputs
from swiftchat.engine.model.weights import LayerWeights
from swiftchat.engine.reference.ops import TorchOps, TorchPlan
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import Row, TokenSequence
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.model.directory import Model

# The matrices of a layer whose inputs are measured; VALUES are the value rows of qkv.
FIELDS = ("qkv", "o", "gate_up", "down")
VALUES = "v"
_CONTEXT_TOKENS = 1024
_BLOCK_SIZE = 64
_MAX_STATISTICS_BYTES = 1 << 30  # in memory at a time


class _CalibrationOps(TorchOps):
    """The decoder's operations, which accumulate statistics of the inputs x of some matrices.

    Accumulators of two axes collect the sum of x·xᵀ, those of one axis the largest magnitude of
    each column. For the value rows, the inputs are first mixed by the attention scores: attention
    is linear in the values, so it mixes the inputs of the value rows in the same way. A plain sum
    would hardly count the first token, to which many heads pay most of their attention.
    """

    def __init__(self, config: ModelConfig, ctx_size_tokens: int) -> None:
        super().__init__(config, ctx_size_tokens, torch.device("cpu"))
        self._sizes = (
            config.attention.num_heads,
            config.attention.num_kv_heads,
            config.attention.head_dim,
        )
        self.by_weight: dict[int, Tensor] = {}  # accumulators by the id of the weight
        self.values_by_layer: dict[int, Tensor] = {}
        self._last_input = torch.empty(0)  # of the last measured matrix

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        accumulator = self.by_weight.get(id(weight))
        if accumulator is not None:
            self._last_input = x
            _accumulate(accumulator, x)
        return super().linear(x, weight, bias)

    def attend(self, plan: TorchPlan, qkv: Tensor, inputs: AttentionInputs) -> Tensor:
        accumulator = self.values_by_layer.get(inputs.layer)
        if accumulator is not None:
            num_heads, num_kv_heads, head_dim = self._sizes
            first_value = (num_heads + num_kv_heads) * head_dim
            mixed = []
            # Replace every head's values by head_dim columns of the inputs at a time.
            for start in range(0, self._last_input.shape[1], head_dim):
                columns = self._last_input[:, start : start + head_dim]
                padded = F.pad(columns, (0, head_dim - columns.shape[1]))
                replaced = torch.cat([qkv[:, :first_value], padded.repeat(1, num_kv_heads)], 1)
                out = super().attend(plan, replaced, inputs)
                mixed.append(out.view(len(qkv), num_heads, head_dim)[..., : columns.shape[1]])
            for head in range(num_heads):
                _accumulate(accumulator, torch.cat([out[:, head] for out in mixed], 1))
        return super().attend(plan, qkv, inputs)


def _accumulate(accumulator: Tensor, x: Tensor) -> None:
    x = x.float()
    if accumulator.ndim == 2:
        accumulator.addmm_(x.t(), x)
    else:
        torch.maximum(accumulator, x.abs().amax(0), out=accumulator)


@torch.inference_mode()
def write_statistics(
    path: Path,
    ids: Sequence[int],
    folder: Path,
    on_progress: Callable[[int, int], None],
    num_axes: int = 2,
) -> None:
    """Read `ids` with the model at `path`; write `folder`/LAYER-FIELD.npy for each of its matrices.

    For `num_axes` 2 each is the second moments, fp32 [columns, columns], summed over all tokens;
    for 1 the largest magnitudes, fp32 [columns]. FIELD is one of `FIELDS`, or "v" for the value
    rows of qkv, whose second moments are summed over all heads and the tokens of every other
    context, because they take most of the time. The text is read in contexts of 1024 tokens, once
    for each group of layers whose statistics fit into memory. MoE models are not supported.
    """
    model = Model.open(path)
    config, cpu = model.config, torch.device("cpu")
    dtype: torch.dtype = getattr(torch, config.dtype)
    weights = load_weights(config, model.checkpoint(), dtype, cpu, lambda *_: None)
    context = min(_CONTEXT_TOKENS, config.max_context_tokens)
    ops = _CalibrationOps(config, context)
    decoder = Decoder(config, weights, ops)
    cache = KVCache(config, -(-context // _BLOCK_SIZE), _BLOCK_SIZE, dtype, cpu)
    groups = list(_layer_groups(weights.layers, num_axes))
    for group, layers in enumerate(groups):
        matrices = {
            f"{i}-{field}": getattr(weights.layers[i], field) for i in layers for field in FIELDS
        }
        ops.by_weight = {id(w): torch.zeros((w.shape[1],) * num_axes) for w in matrices.values()}
        qkv = {i: ops.by_weight[id(weights.layers[i].qkv)] for i in layers}
        values: dict[int, Tensor] = {}
        if num_axes == 2:
            values = {i: torch.zeros_like(accumulator) for i, accumulator in qkv.items()}
        for start in range(0, len(ids), context):
            ops.values_by_layer = values if start // context % 2 == 0 else {}
            _prefill(decoder, cache, ids[start : start + context])
            on_progress(group * len(ids) + start, len(groups) * len(ids))
        for name, weight in matrices.items():
            np.save(folder / f"{name}.npy", ops.by_weight.pop(id(weight)).numpy())
        for i, accumulator in (values or qkv).items():
            np.save(folder / f"{i}-{VALUES}.npy", accumulator.numpy())


def _layer_groups(layers: Sequence[LayerWeights], num_axes: int) -> Iterator[range]:
    """Divide the layers into groups whose statistics fit into memory together."""
    fields = (*FIELDS, "qkv") if num_axes == 2 else FIELDS  # VALUES has the size of qkv
    layer_bytes = 4 * sum(getattr(layers[0], field).shape[1] ** num_axes for field in fields)
    size = max(1, _MAX_STATISTICS_BYTES // layer_bytes)
    for first in range(0, len(layers), size):
        yield range(first, min(first + size, len(layers)))


def _prefill(decoder: Decoder, cache: KVCache, ids: Sequence[int]) -> None:
    sequence = TokenSequence(0, list(ids), SamplingParams())
    sequence.block_table = list(range(-(-len(ids) // _BLOCK_SIZE)))
    decoder.forward(Batch.pack([Row(sequence, len(ids))], _BLOCK_SIZE), cache)


def main() -> None:
    request = json.load(sys.stdin)
    write_statistics(
        Path(request["model"]),
        request["ids"],
        Path(request["folder"]),
        lambda done, total: print(done, total, flush=True),
        request["num_axes"],
    )


if __name__ == "__main__":
    main()
