"""Google: Gemma 1 to 3."""

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    WINDOW_KEYS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.attention import HeadNorms
from swiftchat.weights.architectures.parts.fields import MAX_LAYERS, integer, number
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layer_readers import every_nth_full
from swiftchat.weights.architectures.parts.layers import Layers, windowed
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.rope import layer_ropes


def _model(keys: Keys, layers: Layers) -> ModelConfig:
    embeddings = keys.embeddings(scale=keys.hidden_size**0.5)
    return keys.model(layers, norm=keys.norm(unit_offset=True), embeddings=embeddings)


def _gemma1(keys: Keys) -> ModelConfig:
    # The first published files say "gelu" but were trained with the approximation.
    legacy = keys.get("hidden_act") == "gelu"
    activation = keys.activation("gelu_tanh" if legacy else None)
    return _model(keys, keys.layers(mlp=keys.mlp(activation=activation, bias=False)))


def _gemma2(keys: Keys) -> ModelConfig:
    layers = keys.layers(mlp=keys.mlp(bias=False), norm_order="sandwich")
    return _model(keys, windowed(layers, keys.windows(every_nth_full(keys, 2))))


def _vaultgemma(keys: Keys) -> ModelConfig:
    layers = keys.layers(mlp=keys.mlp(bias=False))
    return _model(keys, windowed(layers, keys.windows(every_nth_full(keys, 2))))


def _gemma3(keys: Keys) -> ModelConfig:
    local_theta = number(keys, "rope_local_base_freq", above=0.0, below=1e12, default=1e4)
    rope, local_rope = layer_ropes(keys, keys.head_dim, local_theta)
    pattern = integer(keys, "sliding_window_pattern", 1, MAX_LAYERS)
    attention = keys.attention(head_norms=HeadNorms("head"), rope=rope)
    layers = keys.layers(attention=attention, mlp=keys.mlp(bias=False), norm_order="sandwich")
    windows = keys.windows(every_nth_full(keys, pattern))
    return _model(keys, windowed(layers, windows, local_rope))


_DEFAULTS = frozen(
    max_position_embeddings=8192,
    rms_norm_eps=1e-6,
    head_dim=256,
    bos_token_id=2,
    eos_token_id=1,
    tie_word_embeddings=True,
    hidden_act="gelu_pytorch_tanh",
)

_DEFAULTS_2 = frozen(
    **_DEFAULTS, num_key_value_heads=4, sliding_window=4096, query_pre_attn_scalar=256
)

_KEYS_2 = frozenset({"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"})

_TENSORS_2 = llama_tensors(
    {
        "attn_out_norm": "post_attention_layernorm.weight",
        "mlp_norm": "pre_feedforward_layernorm.weight",
        "mlp_out_norm": "post_feedforward_layernorm.weight",
    }
)


ARCHITECTURES: Architectures = {
    "GemmaForCausalLM": Architecture(
        model_type="gemma",
        build=_gemma1,
        tensors=LLAMA_TENSORS,
        defaults=frozen(**_DEFAULTS, num_key_value_heads=16),
    ),
    "Gemma2ForCausalLM": Architecture(
        model_type="gemma2",
        build=_gemma2,
        tensors=_TENSORS_2,
        renamed=frozen(hidden_act="hidden_activation"),
        supported_keys=_KEYS_2 | WINDOW_KEYS,
        defaults=frozen(**_DEFAULTS_2, attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
    ),
    "VaultGemmaForCausalLM": Architecture(
        model_type="vaultgemma",
        build=_vaultgemma,
        tensors=llama_tensors({"mlp_norm": "pre_feedforward_layernorm.weight"}),
        renamed=frozen(hidden_act="hidden_activation"),
        supported_keys=_KEYS_2 | WINDOW_KEYS,
        defaults=frozen(**_DEFAULTS_2, attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
    ),
    "Gemma3ForCausalLM": Architecture(
        model_type="gemma3_text",
        short_name="gemma3",
        build=_gemma3,
        tensors=_TENSORS_2,
        renamed=frozen(
            hidden_act="hidden_activation", sliding_window_pattern="_sliding_window_pattern"
        ),
        supported_keys=_KEYS_2 - {"attn_logit_softcapping"} | WINDOW_KEYS,
        rejected_keys=frozenset({"use_bidirectional_attention"}),
        defaults=frozen(
            **{**_DEFAULTS_2, "max_position_embeddings": 131_072},
            rope_theta=1e6,
            sliding_window_pattern=6,
        ),
    ),
}
