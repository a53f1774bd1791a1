"""The order of rows and columns of gated DeltaNet in GGUF files.

llama.cpp's kernels want the first value head of every key head, then the second of each, and so
on; Hugging Face's files have the value heads of a key head together. Queries and keys keep their
order.
"""

import numpy as np

from swiftchat.weights.architectures.parts.mixers import GatedDelta
from swiftchat.weights.formats.arrays import Places
from swiftchat.weights.quantization.scheme import Spans

_BY_HEAD = frozenset({"mixer_b", "mixer_a", "mixer_decay", "mixer_step_bias"})


def value_rows(mixer: GatedDelta, canonical: str) -> Places | None:
    """Return where a file has each row of a tensor in Hugging Face's order; None: the same."""
    if mixer.num_key_heads == mixer.num_value_heads:
        return None
    if canonical in _BY_HEAD:
        return _taken_in_turns(mixer, 1)
    if canonical == "mixer_z":
        return _taken_in_turns(mixer, mixer.value_dim)
    if canonical in ("mixer_qkv", "mixer_conv"):
        start = 2 * mixer.num_key_heads * mixer.key_dim
        return np.concatenate([np.arange(start), start + _taken_in_turns(mixer, mixer.value_dim)])
    return None


def value_columns(mixer: GatedDelta) -> Spans | None:
    """Return where a file has the columns of `mixer_out` of each head; None: in their order."""
    if mixer.num_key_heads == mixer.num_value_heads:
        return None
    width = mixer.value_dim
    return [(head * width, (head + 1) * width) for head in _taken_in_turns(mixer, 1).tolist()]


def grouped_rows(mixer: GatedDelta) -> Places:
    """Return where each row of `mixer_qkvz` is in the file's queries, keys, values and gates."""
    rows = mixer.input_rows
    assert rows is not None
    return np.argsort(rows[: mixer.shapes(1)["mixer_qkvz"][0]])


def _taken_in_turns(mixer: GatedDelta, width: int) -> Places:
    """Return where each of `width` elements of every value head is."""
    keys = mixer.num_key_heads
    elements = np.arange(mixer.num_value_heads * width).reshape(-1, keys, width)
    return elements.swapaxes(0, 1).reshape(-1)
