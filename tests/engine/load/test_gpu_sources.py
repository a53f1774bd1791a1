"""Converted checkpoints of every layout and quantization format: the same ids on GPU and CPU."""

from pathlib import Path

import pytest

from swiftchat.engine.api.params import SamplingParams
from swiftchat.weights.convert.convert import convert
from tests.support import checkpoint_layouts, gpt2_layouts, tiny, tiny_llama
from tests.support.quantized_models import FORMATS, quantized_model

pytestmark = pytest.mark.gpu


def assert_the_same_answer(folder: Path) -> None:
    prompts = {i: tiny.random_ids(5 + 13 * i, seed=i) for i in range(3)}
    params = SamplingParams(temperature=0, max_tokens=12)
    on_cpu, _ = tiny.run(tiny.engine(folder), prompts, params)
    assert tiny.run(tiny.engine(folder, device="cuda"), prompts, params)[0] == on_cpu


@pytest.mark.parametrize("name", checkpoint_layouts.LLAMA)
def test_llama_checkpoints_of_every_layout_on_a_gpu(name: str, tmp_path: Path) -> None:
    model = tiny_llama.tiny_llama(
        vocab_size=104, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4
    )
    source = checkpoint_layouts.LLAMA[name](tmp_path / "in", model.requires_grad_(False))
    convert(source, tmp_path / "out", dtype="float32")
    assert_the_same_answer(tmp_path / "out")


@pytest.mark.parametrize("name", checkpoint_layouts.GPT2)
def test_gpt2_checkpoints_of_every_layout_on_a_gpu(name: str, tmp_path: Path) -> None:
    source = checkpoint_layouts.GPT2[name](tmp_path / "in", gpt2_layouts.tiny_gpt2())
    convert(source, tmp_path / "out")
    assert_the_same_answer(tmp_path / "out")


@pytest.mark.parametrize("name", FORMATS)
def test_every_quantization_format_on_a_gpu(name: str, tmp_path: Path) -> None:
    quantized_model(tmp_path / "in", *FORMATS[name])
    convert(tmp_path / "in", tmp_path / "out", dtype="float32")
    assert_the_same_answer(tmp_path / "out")
