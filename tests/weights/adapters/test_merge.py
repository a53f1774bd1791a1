"""A merged model has the logits of the base with the adapter; checked against PEFT's model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from tests.support import adapters, tiny

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"fan_in_fan_out": True, "use_dora": True}),
    # Its head is tied to the embeddings, which alone change.
    "gemma2": ("gemma2", {"target_modules": ["embed_tokens", "q_proj"]}),
    "llama": ("llama", {"modules_to_save": ["lm_head", "norm"]}),
}


@pytest.mark.parametrize("case", CASES)
def test_merged_models_equal_peft(case: str, tmp_path: Path) -> None:
    family, settings = CASES[case]
    reference = tiny.make_with_reference(family, tmp_path / "base")
    settings = {"target_modules": adapters.targets(family), **settings}
    folder, model = adapters.make_adapter(tmp_path / "adapter", reference, **settings)
    convert(tmp_path / "base", tmp_path / "merged", adapters=[(folder, 1.0)])
    ids = tiny.random_ids(9)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
    (ours,) = adapters.logits(tiny.engine(tmp_path / "merged"), [(ids, None)])
    assert (ours - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert Model.open(tmp_path / "merged").config.tied_embeddings == (family == "gpt2")
