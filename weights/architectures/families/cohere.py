"""Cohere: Command R and Command A."""

from collections.abc import Sequence
from dataclasses import replace

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    WINDOW_KEYS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.attention import HeadNorms
from swiftchat.weights.architectures.parts.expert_readers import (
    EXPERTS,
    SHARED_EXPERTS,
    listed_dense,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_EXPERTS,
    MAX_LAYERS,
    MAX_WIDTH,
    flag,
    integer,
    invalid,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layer_readers import every_nth_full, full_layers
from swiftchat.weights.architectures.parts.layers import sparse, unrotated, windowed
from swiftchat.weights.architectures.parts.mlp import Moe
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def _kinds(keys: Keys, first_dense: int) -> list[str]:
    """Return the kinds of attention; the first dense layers have a pattern of their own."""
    kinds = keys.layer_types
    if kinds is not None:
        return kinds
    dense = integer(keys, "prefix_dense_sliding_window_pattern", 1, MAX_LAYERS)
    others = integer(keys, "sliding_window_pattern", 1, MAX_LAYERS)
    counts = ((first_dense, dense), (keys.num_layers - first_dense, others))
    return [
        "sliding_attention" if (i + 1) % pattern else "full_attention"
        for count, pattern in counts
        for i in range(count)
    ]


def _router(keys: Keys) -> RouterConfig:
    kind = keys.get("expert_selection_fn")
    if kind == "softmax":  # over the chosen experts
        return RouterConfig(normalized=True)
    if kind == "sigmoid":
        return RouterConfig("sigmoid", normalized=flag(keys, "norm_topk_prob"))
    raise invalid("expert_selection_fn", "softmax or sigmoid", kind)


def _experts(keys: Keys) -> Moe:
    num_shared = optional_integer(keys, "num_shared_experts", 0, MAX_EXPERTS) or 0
    out_scale, strategy = 1.0, keys.get("shared_expert_combination_strategy")
    if num_shared:
        if strategy not in ("sum", "average"):
            raise invalid("shared_expert_combination_strategy", "sum or average", strategy)
        out_scale = 0.5 if strategy == "average" else 1.0
    return keys.moe(
        _router(keys),
        num_experts=integer(keys, "num_experts", 1, MAX_EXPERTS),
        expert_size=keys.intermediate_size,
        shared="num_shared_experts",
        out_scale=out_scale,
    )


def _cohere2_moe(keys: Keys) -> ModelConfig:
    first = optional_integer(keys, "first_k_dense_replace", 0, keys.num_layers) or 0
    kinds, dense = _kinds(keys, first), listed_dense(keys, first)
    if keys.get("rope_scaling"):  # the reference does not read it
        raise invalid("rope_scaling", "absent, and rope_parameters instead", "an object")
    size = optional_integer(keys, "prefix_dense_intermediate_size", 1, MAX_WIDTH)
    layers = keys.layers(
        attention=keys.attention(rope=keys.rope(interleaved=True)),
        mlp=keys.mlp(intermediate_size=size or keys.intermediate_size, bias=False),
        is_parallel=True,
        shared_norm=True,
    )
    layers = sparse(windowed(layers, keys.windows(kinds)), _experts(keys), dense)
    rotates_dense = integer(keys, "prefix_dense_sliding_window_pattern", 1, MAX_LAYERS) == 1
    full = full_layers(kinds)
    is_rms = keys.get("rms_norm_eps") is not None
    eps = number(keys, "rms_norm_eps" if is_rms else "layer_norm_eps", above=0.0, below=1.0)
    return keys.model(
        unrotated(layers, full - dense if rotates_dense else full),
        norm=keys.norm("rms" if is_rms else "layer", eps=eps),
        head=keys.head(scale=number(keys, "logit_scale", above=0.0, below=1e6)),
    )


def _model(keys: Keys, windows: Sequence[int | None]) -> ModelConfig:
    norms = HeadNorms("heads") if flag(keys, "use_qk_norm") else None
    layers = keys.layers(
        attention=keys.attention(head_norms=norms, rope=keys.rope(interleaved=True)),
        mlp=keys.mlp(bias=False),
        is_parallel=True,
        shared_norm=True,
    )
    scale = number(keys, "logit_scale", above=0.0, below=1e6)
    norm, head = keys.norm("layer"), keys.head(scale=scale)
    return keys.model(windowed(layers, windows), norm=norm, head=head)


def _cohere(keys: Keys) -> ModelConfig:
    return _model(keys, [None] * keys.num_layers)


def _cohere2(keys: Keys) -> ModelConfig:
    kinds = keys.layer_types
    if kinds is None:
        kinds = every_nth_full(keys, integer(keys, "sliding_window_pattern", 1, MAX_LAYERS))
    model = _model(keys, keys.windows(kinds))
    return replace(model, layers=unrotated(model.layers, full_layers(kinds)))


_DEFAULTS = frozen(
    max_position_embeddings=8192,
    layer_norm_eps=1e-5,
    logit_scale=0.0625,
    tie_word_embeddings=True,
    bos_token_id=5,
    eos_token_id=255_001,
)


ARCHITECTURES: Architectures = {
    "Cohere2MoeForCausalLM": Architecture(
        model_type="cohere2_moe",
        build=_cohere2_moe,
        supported_keys=frozenset({"logit_scale", "num_experts"}) | WINDOW_KEYS,
        tensors=llama_tensors({**EXPERTS, **SHARED_EXPERTS}),
        defaults=frozen(
            **_DEFAULTS,
            vocab_size=256_000,
            hidden_size=8192,
            intermediate_size=22_528,
            num_hidden_layers=40,
            num_attention_heads=64,
            head_dim=128,
            sliding_window=4096,
            sliding_window_pattern=4,
            prefix_dense_sliding_window_pattern=1,
            num_experts=8,
            num_experts_per_tok=2,
            expert_selection_fn="softmax",
            shared_expert_combination_strategy="average",
            norm_topk_prob=True,
        ),
    ),
    "CohereForCausalLM": Architecture(
        model_type="cohere",
        build=_cohere,
        supported_keys=frozenset({"logit_scale", "use_qk_norm"}),
        renamed=frozen(rms_norm_eps="layer_norm_eps"),
        tensors=LLAMA_TENSORS,
        defaults=frozen(**_DEFAULTS, rope_theta=5e5),
    ),
    "Cohere2ForCausalLM": Architecture(
        model_type="cohere2",
        build=_cohere2,
        supported_keys=frozenset({"logit_scale"}) | WINDOW_KEYS,
        renamed=frozen(rms_norm_eps="layer_norm_eps"),
        tensors=LLAMA_TENSORS,
        defaults=frozen(**_DEFAULTS, sliding_window=4096, sliding_window_pattern=4),
    ),
}
