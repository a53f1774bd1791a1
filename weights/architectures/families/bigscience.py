"""BigScience and BigCode: BLOOM and StarCoder 2."""

from swiftchat.weights.architectures.parts.architecture import (
    WINDOW_KEYS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import flag
from swiftchat.weights.architectures.parts.gpt_readers import BLOOM_LAYER, mlp_width
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.model import ModelConfig


def _bloom(keys: Keys) -> ModelConfig:
    attention = keys.attention(
        num_kv_heads=keys.num_heads, bias=True, rope=None, scores=keys.scores(alibi_scale=1.0)
    )
    mlp = keys.mlp(
        intermediate_size=mlp_width(keys, None),
        activation=keys.activation("gelu_tanh", gated=False),
        bias=True,
    )
    return keys.model(
        keys.layers(attention=attention, mlp=mlp),
        norm=keys.norm("layer", has_bias=True),
        embeddings=keys.embeddings(has_norm=True),
    )


def _starcoder2(keys: Keys) -> ModelConfig:
    bias = flag(keys, "use_bias")
    attention = keys.attention(bias=bias, scores=keys.scores(window=keys.window()))
    mlp = keys.mlp(activation=keys.activation(gated=False), bias=bias)
    layers = keys.layers(attention=attention, mlp=mlp)
    return keys.model(layers, norm=keys.norm("layer", has_bias=True))


ARCHITECTURES: Architectures = {
    "BloomForCausalLM": Architecture(
        model_type="bloom",
        build=_bloom,
        rejected_keys=frozenset({"apply_residual_connection_post_layernorm"}),
        prefix="transformer.",
        qkv_in_groups=True,
        renamed=frozen(
            hidden_size="n_embed",
            num_hidden_layers="n_layer",
            num_attention_heads="n_head",
            max_position_embeddings="seq_length",
            rms_norm_eps="layer_norm_epsilon",
        ),
        tensors=tensor_names(
            BLOOM_LAYER,
            embed="transformer.word_embeddings.weight",
            embed_norm="transformer.word_embeddings_layernorm.weight",
            embed_norm_bias="transformer.word_embeddings_layernorm.bias",
            final_norm="transformer.ln_f.weight",
            final_norm_bias="transformer.ln_f.bias",
            lm_head="lm_head.weight",
            layer="transformer.h.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            layer_norm_epsilon=1e-5,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "Starcoder2ForCausalLM": Architecture(
        model_type="starcoder2",
        build=_starcoder2,
        renamed=frozen(rms_norm_eps="norm_epsilon"),
        supported_keys=WINDOW_KEYS,
        tensors=llama_tensors(
            {
                "up": "mlp.c_fc.weight",
                "up_bias": "mlp.c_fc.bias",
                "down": "mlp.c_proj.weight",
                "down_bias": "mlp.c_proj.bias",
            },
            without=("gate", "gate_bias", "q_norm", "k_norm"),
        ),
        defaults=frozen(
            max_position_embeddings=4096,
            norm_epsilon=1e-5,
            num_key_value_heads=2,
            hidden_act="gelu_pytorch_tanh",
            use_bias=True,
            tie_word_embeddings=True,
            bos_token_id=50_256,
            eos_token_id=50_256,
        ),
    ),
}
