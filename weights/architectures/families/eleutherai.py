"""EleutherAI: GPT-J and GPT-NeoX."""

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    Architectures,
    frozen,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import MAX_WIDTH, flag, integer, optional_integer
from swiftchat.weights.architectures.parts.gpt_readers import GPT_KEYS, NEOX_LAYER, mlp_width
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.rope import RopeConfig


def _gpt_j(keys: Keys) -> ModelConfig:
    head_dim = keys.hidden_size // keys.num_heads
    # The base is fixed, and there is no scaling.
    rotary_dim = optional_integer(keys, "rotary_dim", 2, head_dim)
    layers = keys.layers(
        attention=keys.attention(
            num_kv_heads=keys.num_heads,
            bias=False,
            rope=RopeConfig(rotary_dim=rotary_dim, interleaved=True),
        ),
        mlp=keys.mlp(
            intermediate_size=mlp_width(keys, "n_inner"),
            activation=keys.activation(gated=False),
            bias=True,
        ),
        is_parallel=True,
        shared_norm=True,
    )
    norm, head = keys.norm("layer", has_bias=True), keys.head(bias=True)
    return keys.model(layers, norm=norm, head=head)


def _gpt_neox(keys: Keys) -> ModelConfig:
    heads = keys.num_heads
    head_dim = integer(keys, "hidden_size", heads, MAX_WIDTH) // heads
    layers = keys.layers(
        attention=keys.attention(num_kv_heads=heads, rope=keys.rope(head_dim)),
        mlp=keys.mlp(activation=keys.activation(gated=False), bias=True),
        is_parallel=flag(keys, "use_parallel_residual"),
    )
    return keys.model(layers, norm=keys.norm("layer", has_bias=True))


ARCHITECTURES: Architectures = {
    "GPTJForCausalLM": Architecture(
        model_type="gptj",
        build=_gpt_j,
        renamed=GPT_KEYS,
        prefix="transformer.",
        supported_keys=frozenset({"rotary_dim"}),
        tensors=tensor_names(
            {
                "q": "attn.q_proj.weight",
                "k": "attn.k_proj.weight",
                "v": "attn.v_proj.weight",
                "o": "attn.out_proj.weight",
                "up": "mlp.fc_in.weight",
                "up_bias": "mlp.fc_in.bias",
                "down": "mlp.fc_out.weight",
                "down_bias": "mlp.fc_out.bias",
                "attn_norm": "ln_1.weight",
                "attn_norm_bias": "ln_1.bias",
            },
            layer="transformer.h.{i}.",
            embed="transformer.wte.weight",
            final_norm="transformer.ln_f.weight",
            final_norm_bias="transformer.ln_f.bias",
            lm_head="lm_head.weight",
            lm_head_bias="lm_head.bias",
        ),
        defaults=frozen(
            n_positions=2048,
            rotary_dim=64,
            layer_norm_epsilon=1e-5,
            activation_function="gelu_new",
            bos_token_id=50_256,
            eos_token_id=50_256,
        ),
    ),
    "GPTNeoXForCausalLM": Architecture(
        model_type="gpt_neox",
        build=_gpt_neox,
        qkv_in_groups=True,
        renamed=frozen(
            rms_norm_eps="layer_norm_eps",
            partial_rotary_factor="rotary_pct",
            rope_theta="rotary_emb_base",
        ),
        supported_keys=frozenset({"use_parallel_residual", "partial_rotary_factor"}),
        tensors=tensor_names(
            NEOX_LAYER,
            embed="gpt_neox.embed_in.weight",
            final_norm="gpt_neox.final_layer_norm.weight",
            final_norm_bias="gpt_neox.final_layer_norm.bias",
            lm_head="embed_out.weight",
            layer="gpt_neox.layers.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            layer_norm_eps=1e-5,
            hidden_act="gelu",
            partial_rotary_factor=0.25,
            attention_bias=True,
            use_parallel_residual=True,
            bos_token_id=0,
            eos_token_id=2,
        ),
    ),
}
