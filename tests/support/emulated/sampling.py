"""The kernels from logits to the next step's inputs as torch calls; see `kernels.py`."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.sampling import sampler


def _penalties(a: Any) -> None:
    """Apply what all rows have; no test on emulated kernels uses these controls."""
    assert not a.has_bias.any() and not a.has_mask.any() and not a.min_context_lens.any()


def _argmax(a: Any) -> None:
    maxima, ids = a.logits.max(1)
    a.max_logits.copy_(maxima)
    a.ids.copy_(ids)


def _sample(a: Any) -> None:
    a.out.copy_(a.argmax_ids)
    for row, temperature in enumerate(a.temperature.tolist()):
        if temperature > 0:
            params = SamplingParams(
                temperature=temperature,
                top_k=int(a.top_k[row]),
                top_p=float(a.top_p[row]),
                min_p=float(a.min_p[row]),
            )
            tokens, seed = [0] * int(a.positions[row]), int(a.seeds[row]) % 2**64
            a.out[row] = sampler.sample(a.logits[row], tokens, len(tokens), params, seed)


def _advance(a: Any) -> None:
    step = int(a.step)
    a.step += 1
    size = 1 << a.log2_block_size
    for row, sampled in enumerate(a.sampled.tolist()):
        token = sampled if a.id_map is None or sampled < 0 else int(a.id_map[sampled])
        a.ring[step % a.ring_steps, row] = token
        if length := int(a.context_lens[row]):
            a.tokens[row] = max(token, 0)
            block, place = divmod(length, size)
            inside = block < a.max_blocks
            a.positions[row] += inside
            a.context_lens[row] += inside
            a.slot_mapping[row] = a.block_tables[row, block] * size + place if inside else -1


SAMPLING: Mapping[str, Callable[[Any], None]] = MappingProxyType(
    {"penalties": _penalties, "argmax": _argmax, "sample": _sample, "advance": _advance}
)
