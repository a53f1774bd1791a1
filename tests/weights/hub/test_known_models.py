"""The table of known models: short names, sizes, architectures."""

import math
import re

import pytest

from swiftchat.engine.api.memory_estimate import kv_bytes_per_token
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import shape_by_place
from swiftchat.weights.hub.known_models import (
    DEFAULT_MODEL,
    KnownModel,
    known_models,
    short_name_of,
    short_names,
    sources_of,
)
from swiftchat.weights.hub.names import HubName
from swiftchat.weights.model.dummy import DUMMY_CONFIGS
from swiftchat.weights.parallel.tensor_parallel import Shard

MODELS = list(known_models().values())
# The shapes in `DUMMY_CONFIGS` of models in the table.
SHAPES = {
    "llama3.2:1b": "llama-3.2-1b",
    "llama3.1:8b": "llama-3.1-8b",
    "llama3.1:70b": "llama-3.1-70b",
    "llama4:109b-a17b": "llama-4-scout",
    "gemma3:4b": "gemma-3-4b",
    "gemma4:e2b": "gemma-4-e2b",
    "gemma4:e4b": "gemma-4-e4b",
    "gemma4:26b-a4b": "gemma-4-26b-a4b",
    "gemma4:31b": "gemma-4-31b",
    "gpt-oss:20b": "gpt-oss-20b",
    "granite4:7b-a1b": "granite-4-h-tiny",
    "lfm2:1.2b": "lfm2-1.2b",
    "qwen3:30b-a3b": "qwen3-30b-a3b",
    "qwen3-next:80b-a3b": "qwen3-next-80b-a3b",
    "qwen3.5:4b": "qwen3.5-4b",
    "smollm2:135m": "smollm2-135m",
}
UNITS = {"b": 1e9, "m": 1e6}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_each_row_is_well_formed(model: KnownModel) -> None:
    assert re.fullmatch(r"[a-z0-9.-]+(:[a-z0-9.-]+)?", model.name)
    assert model.architecture in ARCHITECTURES
    assert re.fullmatch(r"20[12]\d-(0[1-9]|1[0-2])", model.date)
    assert re.fullmatch(r"[\w.-]+", model.license)
    assert 0 < model.active_parameters <= model.parameters
    assert model.kv_bytes_per_token > 0 and model.context_tokens >= 1024
    published = [form.bits for form in model.forms if not form.source.endswith("bit")]
    assert published and published == sorted(set(published))
    others = [form.bits for form in model.forms[len(published) :]]
    assert others in ([], [4, 8]) and not {*others} & {*published}
    for form in model.forms:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+(:[A-Z0-9_]+|:[48]bit)?", form.source)
        assert HubName.parse(form.source).model == form.source
        assert form.name == f"{model.name}-{form.bits}bit"
        assert form.bytes_per_token <= form.size_bytes


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_the_size_in_a_name_is_that_of_the_model(model: KnownModel) -> None:
    """`30b-a3b` is 30 billion parameters, of which a token takes 3 billion."""
    size = model.name.partition(":")[2]
    if found := re.fullmatch(r"([\d.]+)([bm])(?:-a([\d.]+)b)?", size):
        named = float(found[1]) * UNITS[found[2]]
        assert model.parameters == pytest.approx(named, rel=0.25, abs=0.65 * UNITS[found[2]])
        active = float(found[3] or 0) * 1e9
        is_dense = found[3] is None and not model.name.startswith("gpt-oss")
        assert (model.active_parameters == model.parameters) == is_dense
        assert found[3] is None or model.active_parameters == pytest.approx(active, rel=0.5)
    else:
        assert size in ("", "mini", "medium", "large", "xl", "8x7b", "e2b", "e4b")


@pytest.mark.parametrize("name", SHAPES)
def test_sizes_are_those_of_the_shape(name: str) -> None:
    config = read_model_config(dict(DUMMY_CONFIGS[SHAPES[name]]))
    model, shape_of = known_models()[name], shape_by_place(config)
    num_parameters = sum(
        math.prod(shape_of(*place[:2])) for place, _ in Shard(config).own_tensors()
    )
    assert model.parameters == pytest.approx(num_parameters, rel=0.01)
    assert model.kv_bytes_per_token == kv_bytes_per_token(config, 2)
    assert config.max_context_tokens >= model.context_tokens
    assert DUMMY_CONFIGS[SHAPES[name]]["architectures"] == [model.architecture]


def test_short_names_are_unique_and_lead_back() -> None:
    assert len(short_names()) >= 60
    models = known_models()
    names = {*models, *(form.name for model in models.values() for form in model.forms)}
    sources = [sources_of(name)[0] for name in names]
    assert set(map(short_name_of, sources)) == {
        name if form is model.forms[0] else form.name
        for name, model in known_models().items()
        for form in model.forms
    }
    firsts = [model.forms[0].source for model in MODELS]
    assert len(set(firsts)) == len(firsts)


def test_a_short_name_is_the_four_bit_files_where_they_are_published() -> None:
    gguf = "Qwen/Qwen3-8B-GGUF"
    assert sources_of("Qwen3:8B") == (f"{gguf}:Q4_K_M", f"{gguf}:Q8_0", "Qwen/Qwen3-8B")
    assert sources_of("qwen3:8b-8bit") == (f"{gguf}:Q8_0",)
    assert sources_of("qwen3:8b-16bit") == ("Qwen/Qwen3-8B",)
    assert sources_of("gpt-oss:20b") == sources_of("gpt-oss:20b-4bit") == ("openai/gpt-oss-20b",)
    assert sources_of("qwen3:9b") == sources_of("qwen3:8b-16bits") == sources_of("") == ()
    assert sources_of("smollm2:135m")[0].endswith(DEFAULT_MODEL)
    assert short_name_of(f"{gguf}:q4_k_m") == short_name_of(f"{gguf}:UD-Q4_K_M") == "qwen3:8b"
    assert short_name_of(f"{gguf}:Q5_K_M") is None


def test_forms_that_are_not_published_are_quantized_on_arrival() -> None:
    repo = "microsoft/Phi-3-mini-4k-instruct"
    assert sources_of("phi3:mini") == (repo, f"{repo}:4bit", f"{repo}:8bit")
    assert sources_of("phi3:mini-4bit") == sources_of("Phi3:mini:4bit") == (f"{repo}:4bit",)
    assert sources_of("qwen3:8b:8bit") == sources_of("qwen3:8b-8bit")
    assert sources_of("gpt2-4bit") == sources_of("gpt-oss:20b-8bit") == ()
    assert short_name_of(f"{repo}:4bit") == "phi3:mini-4bit"
