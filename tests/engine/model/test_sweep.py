"""The architectures of the installed transformers: equal or refused, never wrong.

One tiny model for each supported architecture that `test_architectures.py` does not cover; the
others only by their configuration. `python -m tests.sweep` compares variants of all keys.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.multimodal import MULTIMODAL
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import shard_of, tp_choices
from tests.support import reference, tiny
from tests.support.thread_communicator import ThreadCommunicator, run_ranks

MULTIMODAL_CLASSES = {reference.MODEL_TYPES[each] for each in reference.MULTIMODAL_TYPES}
REFUSED = [
    model_type
    for model_type in reference.CAUSAL_TYPES
    if reference.MODEL_TYPES[model_type] not in {*ARCHITECTURES, *MULTIMODAL}
]
# What ranks divide in a way of its own.
DIVIDED = (
    *("afmoe", "cohere", "cohere2_moe", "exaone4", "glm4_moe", "granitemoeshared", "laguna"),
    *("bailing_hybrid", "mimo_v2_flash", "minimax_m2", "olmo"),
    *("apertus", "apertus1p5_text", "gemma4_text", "llama4_text"),
    *("deepseek_v2", "deepseek_v3", "deepseek_v32", "longcat_flash", "mistral4", "youtu"),
    *("bamba", "falcon_h1", "falcon_mamba", "granitemoehybrid", "jamba", "kimi_linear", "lfm2"),
    *("lfm2_moe", "lfm3", "mamba2", "qwen3_5_text"),
    *("mamba", "nemotron_h", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_next"),
)
# One for each kind of mixer and of latent attention.
DUMMY = (
    *("bailing_hybrid", "deepseek_v3", "falcon_h1", "gemma4_text", "jamba", "kimi_linear", "lfm2"),
    *("mamba2", "minimax", "qwen3_next"),
)


@pytest.fixture(scope="module", params=reference.SWEPT_TYPES)
def swept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp(request.param)
    expected = reference.copy_reference(request.param, folder)
    return request.param, folder, expected


@tiny.each_backend
def test_logits_equal_those_of_transformers(swept, native: bool) -> None:
    """Prefill in chunks, with a cached prefix, and token by token."""
    _, folder, expected = swept
    outcome = reference.outcome(folder, expected, native=native)
    assert outcome == "equal" or (native and outcome.startswith("torch: no kernel")), outcome
    assert not Model.open(folder).checkpoint().unread


@pytest.mark.parametrize("swept", DIVIDED, indirect=True)
def test_ranks_equal_transformers(swept) -> None:
    _, folder, expected = swept
    config, ids = Model.open(folder).config, reference.prompt_ids()
    size = tp_choices(config)[1]

    def run(rank: int, ranks: ThreadCommunicator) -> torch.Tensor:
        bench = tiny.Bench(folder, shard=shard_of(config, size, rank), ranks=ranks)
        return bench.last_logits(ids)

    for logits in run_ranks(size, run):
        assert (logits - expected[-1]).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("swept", DUMMY, indirect=True)
def test_dummy_weights_generate(swept) -> None:
    _, folder, _ = swept
    settings = EngineConfig(device="cpu", dtype="float32", dummy=str(folder / "config.json"))
    engine = build_engine(Path(), settings)
    ids, _ = tiny.run(engine, {1: tiny.random_ids(9)}, SamplingParams(temperature=0, max_tokens=3))
    assert ids[1]


# Published names of models whose classes in transformers have other names or need more packages.
OUTER_CLASSES = {
    *("Gemma3nForConditionalGeneration", "KimiK25ForConditionalGeneration", "Phi4MMForCausalLM"),
    *("Qwen2_5OmniForConditionalGeneration", "Qwen2_5OmniModel"),
    *("Qwen3OmniMoeForConditionalGeneration", "KimiVLForConditionalGeneration"),
}


def test_every_multimodal_class_has_a_test_model() -> None:
    assert set(MULTIMODAL) == MULTIMODAL_CLASSES | OUTER_CLASSES


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("Qwen2_5OmniModel", "qwen2_5_omni_thinker"),
        ("Qwen2_5OmniForConditionalGeneration", "qwen2_5_omni_thinker"),
        ("Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe_thinker"),
    ],
)
def test_language_models_of_whole_omni_models(outer: str, inner: str, tmp_path: Path) -> None:
    """Beside the model that answers in text, they have one that speaks."""
    expected = reference.copy_reference(inner, tmp_path)
    file = tmp_path / "model.safetensors"
    thinker = {
        name if name.startswith("thinker.") else f"thinker.{name}": tensor
        for name, tensor in load_file(file).items()
    }
    save_file({**thinker, "talker.model.embed_tokens.weight": torch.ones(2, 2)}, file)
    config = json.loads((tmp_path / "config.json").read_text())
    whole = {"architectures": [outer], "thinker_config": config, "talker_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    assert reference.outcome(tmp_path, expected) == "equal"


def test_phi_4_multimodal_as_published_has_adapters_beside_its_matrices(tmp_path: Path) -> None:
    expected = reference.copy_reference("phi4_multimodal", tmp_path)
    file, tensors = tmp_path / "model.safetensors", dict[str, torch.Tensor]()
    for name, tensor in load_file(file).items():
        matrix = name.removesuffix(".weight")
        if name.startswith("model.layers.") and matrix.endswith("_proj"):
            tensors[f"{matrix}.base_layer.weight"] = tensor
            tensors[f"{matrix}.lora_A.vision.weight"] = torch.ones(2, 2)
        else:
            tensors[name] = tensor
    save_file(tensors, file)
    reference.edit_config(tmp_path, architectures=["Phi4MMForCausalLM"], model_type="phi4mm")
    assert reference.outcome(tmp_path, expected) == "equal"


def test_language_model_of_gemma_3n_equals_the_text_model(tmp_path: Path) -> None:
    """Transformers makes the whole model only with a package for its vision part."""
    expected = reference.copy_reference("gemma3n_text", tmp_path)
    file = tmp_path / "model.safetensors"
    text = {f"model.language_{name}": tensor for name, tensor in load_file(file).items()}
    vision = {"model.vision_tower.timm_model.conv_stem.conv.weight": torch.ones(2, 2)}
    save_file({**text, **vision}, file)
    config = json.loads((tmp_path / "config.json").read_text())
    outer = {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n"}
    (tmp_path / "config.json").write_text(json.dumps({**outer, "text_config": config}))
    assert reference.outcome(tmp_path, expected) == "equal"
    opened = Model.open(tmp_path)
    assert opened.checkpoint().unused == list(vision)
    assert any("only the language model" in note for note in opened.notes)


@pytest.mark.parametrize("model_type", reference.MULTIMODAL_TYPES)
def test_language_models_equal_those_of_multimodal_models(model_type: str, tmp_path: Path) -> None:
    """Also after a conversion, which writes the language model alone."""
    expected = reference.copy_reference(model_type, tmp_path)
    assert reference.outcome(tmp_path, expected) == "equal"
    opened = Model.open(tmp_path)
    assert opened.checkpoint().unused
    assert any("only the language model" in note for note in opened.notes)
    convert(tmp_path, tmp_path / "converted")
    assert reference.outcome(tmp_path / "converted", expected) == "equal"
    assert not Model.open(tmp_path / "converted").notes


def test_flat_and_short_multimodal_configs_are_read() -> None:
    """Qwen2-VL before `text_config`, and Gemma 3 4B, which leaves out most sizes."""
    sizes = {
        "vocab_size": 97,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "intermediate_size": 80,
    }
    flat = read_model_config(
        {
            **sizes,
            "architectures": ["Qwen2_5_VLForConditionalGeneration"],
            "model_type": "qwen2_5_vl",
            "num_key_value_heads": 2,
            "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
            "vision_config": {"depth": 32},
        }
    )
    assert (flat.architecture, flat.hidden_size) == ("Qwen2ForCausalLM", 48)
    text = {"hidden_size": 2560, "num_hidden_layers": 34, "model_type": "gemma3_text"}
    short = read_model_config(
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "eos_token_id": [1, 106],
            "text_config": {**text, "intermediate_size": 10_240, "sliding_window": 1024},
        }
    )
    assert (short.attention.num_heads, short.attention.head_dim) == (8, 256)
    assert short.vocab_size == 262_208 and short.eos_ids == (1, 106) and short.head.tied


@pytest.mark.parametrize("model_type", REFUSED)
def test_other_architectures_are_refused(model_type: str) -> None:
    class_name = reference.MODEL_TYPES[model_type]
    with pytest.raises(BadModelFile, match="unknown architecture"):
        read_model_config({"architectures": [class_name], "model_type": model_type})
