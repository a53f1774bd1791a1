"""`config.json` as people have it: other classes, names of dtypes, ids of no token, stretches."""

from typing import Any

import pytest
import transformers

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.parts.variants import TypeVariant
from swiftchat.weights.architectures.registry import CLASS_OF_TYPE, VARIANTS

SIZES = {
    "vocab_size": 400,
    "hidden_size": 512,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 64,
}
LLAMA = {**SIZES, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}


@pytest.mark.parametrize(
    "names",
    [
        None,
        [],
        ["LlamaForSequenceClassification"],
        ["LlamaModel"],
        ["MyFancyForCausalLM"],
        ["MyFancyForCausalLM", "LlamaForCausalLM"],
        ["LlamaForCausalLM", "LlamaModel"],
    ],
)
def test_the_type_decides_where_no_class_is_known(names: list[str] | None) -> None:
    found = read_model_config({**LLAMA, "architectures": names})
    assert found == read_model_config(LLAMA)


@pytest.mark.parametrize("names", ["LlamaForCausalLM", [3], {"a": 1}, 5])
def test_classes_that_are_no_list_of_names_raise_an_error(names: object) -> None:
    with pytest.raises(BadModelFile, match="architectures must be a list of names"):
        read_model_config({**LLAMA, "architectures": names})


def test_neither_class_nor_type_raises_an_error() -> None:
    for kind in (None, "unheard"):
        with pytest.raises(BadModelFile, match="architectures is missing"):
            read_model_config({**LLAMA, "architectures": None, "model_type": kind})


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("half", "float16"),
        ("float", "float32"),
        ("torch.bfloat16", "bfloat16"),
        ("float64", "float32"),
        ("auto", "bfloat16"),
        ("float8_e4m3fn", "bfloat16"),
        (None, "float32"),
    ],
)
def test_names_of_dtypes(name: str | None, dtype: str) -> None:
    for field in ("dtype", "torch_dtype"):
        assert read_model_config({**LLAMA, field: name}).dtype == dtype


def test_minus_one_is_no_token() -> None:
    found = read_model_config({**LLAMA, "bos_token_id": -1, "eos_token_id": [-1, 7]})
    assert (found.bos_id, found.eos_ids) == (None, (7,))
    for bad in (-2, 400):
        with pytest.raises(BadModelFile, match="eos_token_id"):
            read_model_config({**LLAMA, "eos_token_id": bad})


@pytest.mark.parametrize(
    ("rope", "published", "longest"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 128, 512),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 512, 512),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 600, 600),
        ({"type": "yarn", "factor": 2.0}, 128, 256),
        ({"rope_type": "linear", "factor": 4.0}, 128, 512),
        ({"rope_type": "dynamic", "factor": 4.0}, 128, 128),
        (None, 128, 128),
    ],
)
def test_stretched_embeddings_allow_a_longer_context(
    rope: dict[str, Any] | None, published: int, longest: int
) -> None:
    config = {**LLAMA, "rope_scaling": rope, "max_position_embeddings": published}
    found = read_model_config(config)
    assert (found.max_context_tokens, found.longest_context_tokens) == (published, longest)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.model_type)
def test_the_type_decides_where_several_share_a_class(variant: TypeVariant) -> None:
    """Both as transformers saves them and with the fewest keys."""
    name, kind = variant.class_name, variant.model_type
    theirs = transformers.AutoConfig.for_model(kind, **SIZES)
    saved = theirs.to_dict() | {"architectures": [name]}
    fewest = SIZES | {"architectures": [name], "model_type": kind}
    for config in (saved, fewest):
        ours = read_model_config(config)
        assert ours.norm.eps == theirs.rms_norm_eps
        assert ours.max_context_tokens == theirs.max_position_embeddings
        assert ours.rope is not None
        assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
        assert ours.attention.num_kv_heads == theirs.num_key_value_heads
        assert ours.attention.bias == bool(getattr(theirs, "attention_bias", False))
        if ours.moe is not None:
            assert ours.moe.num_experts == theirs.n_routed_experts
            assert ours.moe.experts_per_token == theirs.num_experts_per_tok
            assert (ours.attention.head_norms is not None) == bool(
                getattr(theirs, "use_qk_norm", False)
            )
    assert CLASS_OF_TYPE[kind] in (name, "ExaoneForCausalLM")


def test_the_keys_of_a_type_are_read() -> None:
    config = {**LLAMA, "model_type": "internlm3", "qkv_bias": True, "bias": True}
    found = read_model_config(config)
    assert found.attention.bias and found.mlp is not None and found.mlp.bias
    assert found.norm.eps == 1e-5
