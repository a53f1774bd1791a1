"""Vendors with one dense model."""

from dataclasses import replace

from swiftchat.weights.architectures.families.ibm import (
    GRANITE_DEFAULTS,
    MULTIPLIERS,
    granite_model,
    granite_scores,
    multiplier,
)
from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    SEPARATE_GATE_UP,
    WINDOW_KEYS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.attention import HeadNorms
from swiftchat.weights.architectures.parts.fields import flag, integer, invalid
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layer_readers import UNGATED
from swiftchat.weights.architectures.parts.layers import unrotated, windowed
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.variants import TypeVariant


def _nanochat(keys: Keys) -> ModelConfig:
    attention = keys.attention(
        rope=replace(keys.rope(), reversed=True),
        head_norms=HeadNorms("head", after_rope=True, has_weights=False),
    )
    mlp = keys.mlp(activation=keys.activation(gated=False), bias=False)
    return keys.model(
        keys.layers(attention=attention, mlp=mlp),
        norm=keys.norm(has_weights=False),
        embeddings=keys.embeddings(has_norm=True),
    )


def _hyperclovax(keys: Keys) -> ModelConfig:
    scores = keys.scores() if keys.get("attention_multiplier") is None else granite_scores(keys)
    order = "sandwich" if flag(keys, "use_post_norm") else "pre"
    layers = keys.layers(attention=keys.attention(scores=scores), norm_order=order)
    model = granite_model(keys, layers)
    if order == "sandwich" and model.residual_scale != 1.0:
        # The norms of branches would need an epsilon of their own.
        raise invalid("residual_multiplier", "1 with use_post_norm", model.residual_scale)
    return replace(model, head=keys.head(scale=multiplier(keys, "logits_scaling")))


def _smollm3(keys: Keys) -> ModelConfig:
    count, rotated = keys.num_layers, keys.get("no_rope_layers")
    if rotated is None:
        interval = integer(keys, "no_rope_layer_interval", 1, 2**30)
        rotated = [int((i + 1) % interval != 0) for i in range(count)]
    if not isinstance(rotated, list) or len(rotated) != count:
        raise invalid("no_rope_layers", f"a list of {count} numbers", rotated)
    # Despite its name, the list has 1 for layers with rotary embeddings.
    rotated = [integer({"no_rope_layers": each}, "no_rope_layers", 0, 1) for each in rotated]
    has_windows = flag(keys, "use_sliding_window") and keys.get("sliding_window") is not None
    kinds = ["full_attention" if each else "sliding_attention" for each in rotated]
    layers = windowed(keys.layers(), keys.windows(kinds if has_windows else None, switched=True))
    return keys.model(unrotated(layers, [i for i, each in enumerate(rotated) if not each]))


def _internlm2(keys: Keys) -> ModelConfig:
    attention = keys.attention(bias=flag(keys, "bias"))
    return keys.model(keys.layers(attention=attention, mlp=keys.mlp(bias=False)))


def _stablelm(keys: Keys) -> ModelConfig:
    is_parallel = flag(keys, "use_parallel_residual")
    attention = keys.attention(
        bias=flag(keys, "use_qkv_bias"),
        output_bias=False,
        head_norms=HeadNorms("heads") if flag(keys, "qk_layernorm") else None,
    )
    layers = keys.layers(
        attention=attention,
        mlp=keys.mlp(bias=False),
        is_parallel=is_parallel,
        shared_norm=is_parallel,
    )
    return keys.model(layers, norm=keys.norm("layer", has_bias=True))


def _jais2(keys: Keys) -> ModelConfig:
    layers = keys.layers(mlp=keys.mlp(activation=keys.activation(gated=False)))
    return keys.model(layers, norm=keys.norm("layer", has_bias=True))


def _seed_oss(keys: Keys) -> ModelConfig:
    attention = keys.attention(output_bias=flag(keys, "attention_out_bias"))
    return keys.model(keys.layers(attention=attention))


def _helium(keys: Keys) -> ModelConfig:
    attention = keys.attention(output_bias=False, rope=keys.rope(interleaved=True))
    return keys.model(keys.layers(attention=attention))


ARCHITECTURES: Architectures = {
    "NanoChatForCausalLM": Architecture(
        model_type="nanochat",
        build=_nanochat,
        supported_keys=frozenset({"final_logit_softcapping"}),
        tensors=llama_tensors(
            {"up": "mlp.fc1.weight", "down": "mlp.fc2.weight"}, without=(*SEPARATE_GATE_UP, "down")
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-6,
            hidden_act="relu2",
            final_logit_softcapping=15.0,
            bos_token_id=0,
            eos_token_id=1,
        ),
    ),
    "HyperCLOVAXForCausalLM": Architecture(
        model_type="hyperclovax",
        build=_hyperclovax,
        supported_keys=MULTIPLIERS,
        tensors=llama_tensors(
            {"attn_out_norm": "post_norm1.weight", "mlp_out_norm": "post_norm2.weight"}
        ),
        defaults=frozen(**GRANITE_DEFAULTS, use_post_norm=True),
    ),
    "SmolLM3ForCausalLM": Architecture(
        model_type="smollm3",
        build=_smollm3,
        tensors=LLAMA_TENSORS,
        supported_keys=frozenset({"no_rope_layers"}) | WINDOW_KEYS,
        defaults=frozen(
            max_position_embeddings=32768,
            rms_norm_eps=1e-6,
            num_key_value_heads=4,
            rope_theta=2e6,
            use_sliding_window=False,
            no_rope_layer_interval=4,
            tie_word_embeddings=True,
            bos_token_id=128_000,
            eos_token_id=128_001,
        ),
    ),
    "InternLM2ForCausalLM": Architecture(
        model_type="internlm2",
        build=_internlm2,
        qkv_in_groups=True,
        tensors=tensor_names(
            {
                "qkv": "attention.wqkv.weight",
                "qkv_bias": "attention.wqkv.bias",
                "o": "attention.wo.weight",
                "o_bias": "attention.wo.bias",
                "gate": "feed_forward.w1.weight",
                "up": "feed_forward.w3.weight",
                "down": "feed_forward.w2.weight",
                "attn_norm": "attention_norm.weight",
                "mlp_norm": "ffn_norm.weight",
            },
            embed="model.tok_embeddings.weight",
            final_norm="model.norm.weight",
            lm_head="output.weight",
            layer="model.layers.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-6,
            bias=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "StableLmForCausalLM": Architecture(
        model_type="stablelm",
        build=_stablelm,
        tensors=llama_tensors(
            {
                "q_norm": "self_attn.q_layernorm.norms.{h}.weight",
                "k_norm": "self_attn.k_layernorm.norms.{h}.weight",
            }
        ),
        renamed=frozen(rms_norm_eps="layer_norm_eps"),
        supported_keys=frozenset(
            {"partial_rotary_factor", "use_parallel_residual", "qk_layernorm"}
        ),
        defaults=frozen(
            max_position_embeddings=4096,
            layer_norm_eps=1e-5,
            num_key_value_heads=32,
            partial_rotary_factor=0.25,
            bos_token_id=0,
            eos_token_id=0,
        ),
    ),
    "Jais2ForCausalLM": Architecture(
        model_type="jais2",
        build=_jais2,
        tensors=UNGATED,
        renamed=frozen(rms_norm_eps="layer_norm_eps"),
        defaults=frozen(
            max_position_embeddings=8192,
            layer_norm_eps=1e-5,
            hidden_act="relu2",
            attention_bias=True,
            mlp_bias=True,
            bos_token_id=0,
            eos_token_id=150_024,
        ),
    ),
    "SeedOssForCausalLM": Architecture(
        model_type="seed_oss",
        build=_seed_oss,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=524_288,
            rms_norm_eps=1e-6,
            num_key_value_heads=8,
            head_dim=128,
            attention_bias=True,
            bos_token_id=0,
            eos_token_id=2,
        ),
    ),
    "HeliumForCausalLM": Architecture(
        model_type="helium",
        build=_helium,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=4096,
            rms_norm_eps=1e-8,
            num_key_value_heads=20,
            head_dim=128,
            rope_theta=1e5,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}

VARIANTS = (
    TypeVariant(
        "LlamaForCausalLM",
        "internlm3",
        renamed=frozen(attention_bias="qkv_bias", mlp_bias="bias"),
        defaults=frozen(max_position_embeddings=32_768, rms_norm_eps=1e-5, num_key_value_heads=2),
    ),
    TypeVariant(
        "LlamaForCausalLM",
        "iquestcoder",
        defaults=frozen(max_position_embeddings=131_072, rms_norm_eps=1e-5, num_key_value_heads=8),
    ),
)
