"""What goes into a model's matrices while it reads a text: second moments, or how large it is.

A process of its own, for who must not import torch: a request comes by stdin, lines of
"done total" go to stdout, the moments into a folder.
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
from swiftchat.engine.linear.quantized import Weight
from swiftchat.engine.load.loader import load_weights
from swiftchat.engine.model.decoder import Decoder, LayerWeights
from swiftchat.engine.model.kv_cache import KVCache, LayerKV
from swiftchat.engine.model.torch_ops import TorchOps, TorchPlan
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.scheduler import Row
from swiftchat.engine.schedule.scheduler import Sequence as TokenSequence
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.model.directory import Model

# Of a layer, whose inputs are watched; "v" are those of qkv's values.
FIELDS = ("qkv", "o", "gate_up", "down")
VALUES = "v"
_CONTEXT_TOKENS = 1024
_BLOCK_SIZE = 64
_MOST_BYTES = 1 << 30  # of moments that are in memory at a time


class _Watched(TorchOps):
    """The decoder's operations, watching the rows x that go into some of its matrices.

    x·xᵀ is added to sums of two axes; those of one become each column's largest size.
    What goes into the values counts as attention mixes it: values are linear in their inputs, so
    that the values a head's scores mix are those of the mixed inputs. Many heads read little but
    the first token, whose values a text's plain sum hardly knows.
    """

    def __init__(self, config: ModelConfig, ctx_size_tokens: int) -> None:
        super().__init__(config, ctx_size_tokens, torch.device("cpu"))
        self._sizes = config.num_heads, config.num_kv_heads, config.head_dim
        self.sums: dict[int, Tensor] = {}  # by the id of the weight
        self.sums_of_values: dict[int, Tensor] = {}  # by the layer
        self._read = torch.empty(0)  # by the last matrix that is watched

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        found = self.sums.get(id(weight))
        if found is not None:
            self._read = x
            _add(found, x)
        return super().linear(x, weight, bias)

    def attend(
        self,
        plan: TorchPlan,
        layer: int,
        qkv: Tensor,
        kv: LayerKV,
        norms: tuple[Tensor, Tensor] | None,
        sinks: Tensor | None,
    ) -> Tensor:
        found = self.sums_of_values.get(layer)
        if found is not None:
            heads, kv_heads, size = self._sizes
            values = (heads + kv_heads) * size
            mixed = []
            # The inputs take the place of every head's values, as many columns as fit at a time.
            for start in range(0, self._read.shape[1], size):
                columns = self._read[:, start : start + size]
                padded = F.pad(columns, (0, size - columns.shape[1]))
                inputs = torch.cat([qkv[:, :values], padded.repeat(1, kv_heads)], 1)
                out = super().attend(plan, layer, inputs, kv, norms, sinks)
                mixed.append(out.view(len(qkv), heads, size)[..., : columns.shape[1]])
            for head in range(heads):
                _add(found, torch.cat([out[:, head] for out in mixed], 1))
        return super().attend(plan, layer, qkv, kv, norms, sinks)


def _add(found: Tensor, x: Tensor) -> None:
    wide = x.float()
    if found.ndim == 2:
        found.addmm_(wide.t(), wide)
    else:
        torch.maximum(found, wide.abs().amax(0), out=found)


@torch.inference_mode()
def write_moments(
    path: Path,
    ids: Sequence[int],
    folder: Path,
    on_progress: Callable[[int, int], None],
    num_axes: int = 2,
) -> None:
    """Read `ids` with the model at `path`; write `folder`/LAYER-FIELD.npy for each of its matrices.

    Each is fp32 [inputs, inputs], the sum over all tokens, or with one axis [inputs], the largest
    size of each; FIELD is one of `FIELDS`, or "v" for the values' rows of qkv, of two axes the sum
    over all heads and the tokens of every other context: it takes longer than all else. The text
    is read in contexts of 1024 tokens, as often as the moments of some layers fill the memory set
    aside for them. Not for mixtures of experts, which have other matrices.
    """
    model = Model.open(path)
    config, cpu = model.config, torch.device("cpu")
    dtype: torch.dtype = getattr(torch, config.dtype)
    checkpoint = model.checkpoint()
    weights = load_weights(config, checkpoint, dtype, cpu, lambda *_: None)
    context = min(_CONTEXT_TOKENS, config.max_context_tokens)
    ops = _Watched(config, context)
    decoder = Decoder(config, weights, ops)
    cache = KVCache(config, -(-context // _BLOCK_SIZE), _BLOCK_SIZE, dtype, cpu)
    rounds = list(_rounds(weights.layers, num_axes))
    for number, layers in enumerate(rounds):
        names = {
            f"{i}-{field}": getattr(weights.layers[i], field) for i in layers for field in FIELDS
        }
        ops.sums = {id(w): torch.zeros((w.shape[1],) * num_axes) for w in names.values()}
        of_qkv = {i: ops.sums[id(weights.layers[i].qkv)] for i in layers}
        of_values: dict[int, Tensor] = {}
        if num_axes == 2:
            of_values = {i: torch.zeros_like(found) for i, found in of_qkv.items()}
        for start in range(0, len(ids), context):
            ops.sums_of_values = of_values if start // context % 2 == 0 else {}
            _read(decoder, cache, ids[start : start + context])
            on_progress(number * len(ids) + start, len(rounds) * len(ids))
        for name, weight in names.items():
            np.save(folder / f"{name}.npy", ops.sums.pop(id(weight)).numpy())
        for i, found in (of_values or of_qkv).items():
            np.save(folder / f"{i}-{VALUES}.npy", found.numpy())


def _rounds(layers: Sequence[LayerWeights], num_axes: int) -> Iterator[range]:
    """Layers whose moments are together in memory."""
    fields = (*FIELDS, "qkv") if num_axes == 2 else FIELDS  # a second for the values
    each = 4 * sum(getattr(layers[0], field).shape[1] ** num_axes for field in fields)
    step = max(1, _MOST_BYTES // each)
    for first in range(0, len(layers), step):
        yield range(first, min(first + step, len(layers)))


def _read(decoder: Decoder, cache: KVCache, ids: Sequence[int]) -> None:
    sequence = TokenSequence(0, list(ids), SamplingParams())
    sequence.block_table = list(range(-(-len(ids) // _BLOCK_SIZE)))
    decoder.forward(Batch.pack([Row(sequence, len(ids))], _BLOCK_SIZE), cache)


def main() -> None:
    request = json.load(sys.stdin)
    write_moments(
        Path(request["model"]),
        request["ids"],
        Path(request["folder"]),
        lambda done, total: print(done, total, flush=True),
        request["num_axes"],
    )


if __name__ == "__main__":
    main()
