"""Rounding equals torch; elements too large for the dtype raise an error."""

from pathlib import Path

import numpy as np
import pytest
import torch

from swiftchat.errors import BadModelFile
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.quantization.rounding import to_bfloat16
from tests.support.gguf import tiny as tiny_gguf
from tests.support.tiny_llama import entry_names, tiny_llama


def test_rounding_to_bfloat16_equals_torch() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint64)
    elements = bits.astype(np.uint32).view(np.float32)
    elements = elements[np.abs(elements) < 3.38e38]
    ties = (np.arange(2000, dtype=np.uint32) << 15 | 0x3F800000).view(np.float32)
    for array in (elements, ties):
        ours = to_bfloat16(array)
        assert ours is not None
        theirs = torch.from_numpy(array).to(torch.bfloat16).view(torch.uint16).numpy()
        assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("element", "dtype", "message"),
    [
        (1e5, "float16", "too large for float16"),
        (3.4e38, "bfloat16", "too large for bfloat16"),
        (np.inf, "float32", "not finite"),
        (np.nan, "bfloat16", "not finite"),
    ],
)
def test_elements_too_large_for_the_dtype_raise_an_error(
    tmp_path: Path, element: float, dtype: str, message: str
) -> None:
    model = tiny_llama()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = element
    tiny_gguf.write(tmp_path / "tiny.gguf", model)
    with pytest.raises(BadModelFile, match=f"layers.1.mlp.up_proj.weight .*{message}"):
        convert(tmp_path / "tiny.gguf", tmp_path / "out", dtype=dtype)
    assert entry_names(tmp_path) == ["tiny.gguf"]
