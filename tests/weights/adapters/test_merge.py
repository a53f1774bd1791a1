"""A merged model has the logits of the base with the adapter; checked against PEFT's model."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from swiftchat.errors import BadModelFile
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from tests.support import adapters, tiny

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"fan_in_fan_out": True, "use_dora": True}),
    # Its head is tied to the embeddings, which alone change.
    "gemma2": ("gemma2", {"target_modules": ["embed_tokens", "q_proj"]}),
    "llama": ("llama", {"modules_to_save": ["lm_head", "norm"]}),
    "llama-tokens": ("llama", {"trainable_token_indices": [5, 7, 30]}),
    "gemma2-tokens": ("gemma2", {"trainable_token_indices": [9, 2]}),
    "gemma2-tokens-saved": (
        "gemma2",
        {"trainable_token_indices": [9, 2], "modules_to_save": ["norm"]},
    ),
    "gpt-neox": ("gpt-neox", {"lora_bias": True}),
}
STAY_TIED = ("gpt2", "gemma2-tokens", "gemma2-tokens-saved")


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
    assert Model.open(tmp_path / "merged").config.head.tied == (case in STAY_TIED)


def test_a_bias_without_a_place_is_refused(tmp_path: Path) -> None:
    """The Llama has no biases; merging must not drop the adapter's."""
    reference = tiny.make_with_reference("llama", tmp_path / "base")
    settings = {"target_modules": ["q_proj"], "lora_bias": True}
    folder, _ = adapters.make_adapter(tmp_path / "adapter", reference, **settings)
    with pytest.raises(BadModelFile, match=r"no tensor .*q_proj.bias") as error:
        convert(tmp_path / "base", tmp_path / "merged", adapters=[(folder, 1.0)])
    assert "--lora" in error.value.hint and not (tmp_path / "merged").exists()


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
@pytest.mark.parametrize(
    "targets", [["q_proj", "v_proj"], r".*language_model.*\.(q|v)_proj", "all-linear"]
)
def test_adapters_of_a_multimodal_class_fit_its_language_model(
    tmp_path: Path, prefix: str, targets: object
) -> None:
    reference = tiny.make_with_reference("llama", tmp_path / "base")
    names = ["q_proj", "v_proj"]
    folder, model = adapters.make_adapter(tmp_path / "adapter", reference, target_modules=names)
    path = folder / "adapter_model.safetensors"
    start = "base_model.model."
    tensors = {
        name.replace(f"{start}model.", start + prefix): value
        for name, value in load_file(path).items()
    }
    save_file(tensors, path)
    adapters.change_settings(folder, target_modules=targets)
    convert(tmp_path / "base", tmp_path / "merged", adapters=[(folder, 1.0)])
    ids = tiny.random_ids(9)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
    (ours,) = adapters.logits(tiny.engine(tmp_path / "merged"), [(ids, None)])
    assert (ours - expected).abs().max() <= 1e-4 * expected.abs().max()
