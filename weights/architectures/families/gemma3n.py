"""Google: Gemma 3n."""

from dataclasses import replace

from swiftchat.weights.architectures.families.gemma4 import (
    PER_LAYER_BRANCH,
    PER_LAYER_TENSORS,
    gemma4_embeddings,
    kv_sources,
    layer_kinds,
)
from swiftchat.weights.architectures.parts.architecture import (
    WINDOW_KEYS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.attention import HeadNorms, Values
from swiftchat.weights.architectures.parts.fields import MAX_WIDTH, flag, integer, invalid, number
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layers import Streams, windowed
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.rope import layer_ropes


def _gemma3n(keys: Keys) -> ModelConfig:
    local_theta = number(keys, "rope_local_base_freq", above=0.0, below=1e12, default=1e4)
    rope, local_rope = layer_ropes(keys, keys.head_dim, local_theta)
    kinds = layer_kinds(keys, 5)
    attention = keys.attention(
        values=Values(keys.head_dim, normalized=True),
        scores=keys.scores(scale=1.0),
        rope=rope,
        head_norms=HeadNorms("head"),
    )
    alike = keys.layers(attention=attention, mlp=None, norm_order="sandwich")
    of_layers = zip(
        windowed(alike, keys.windows(kinds), local_rope),
        _widths(keys),
        _sparsity(keys),
        kv_sources(keys, kinds),
        strict=True,
    )
    layers = tuple(
        replace(
            layer.with_attention(kv_source=source),
            mlp=keys.mlp(intermediate_size=width, bias=False, sparsity=sparsity),
        )
        for layer, width, sparsity, source in of_layers
    )
    integer(keys, "hidden_size_per_layer_input", 1, MAX_WIDTH)  # not optional
    count = integer(keys, "altup_num_inputs", 2, _MAX_STREAMS)
    streams = Streams(
        count=count,
        active=integer(keys, "altup_active_idx", 0, count - 1),
        scaled=flag(keys, "altup_correct_scale"),
        residual_rank=integer(keys, "laurel_rank", 1, MAX_WIDTH),
    )
    return keys.model(layers, embeddings=gemma4_embeddings(keys), streams=streams)


def _widths(keys: Keys) -> list[int]:
    """Return the MLP width of each layer, from a list or one number."""
    name, count = "intermediate_size", keys.num_layers
    found = keys.get(name)
    if not isinstance(found, list):
        return [keys.intermediate_size] * count
    if len(found) != count:
        raise invalid(name, f"a number or a list of {count} numbers", found)
    return [integer({name: width}, name, 1, MAX_WIDTH) for width in found]


def _sparsity(keys: Keys) -> tuple[float, ...]:
    """Return the share of gates of each layer that become 0."""
    name, count = "activation_sparsity_pattern", keys.num_layers
    found = keys.get(name)
    if found is None:
        first = _SPARSE_LAYERS if count > _SPARSE_LAYERS else 0
        found = [_SPARSITY] * first + [0.0] * (count - first)
    if not isinstance(found, list) or len(found) != count:
        raise invalid(name, f"a list of {count} numbers", found)
    return tuple(number({name: share}, name, above=-1e-9, below=1.0) for share in found)


_MAX_STREAMS = 64

_SPARSE_LAYERS, _SPARSITY = 10, 0.95


ARCHITECTURES: Architectures = {
    "Gemma3nForCausalLM": Architecture(
        model_type="gemma3n_text",
        short_name="gemma3n",
        build=_gemma3n,
        tensors={
            **PER_LAYER_TENSORS,
            "stream_in": "model.altup_projections.{s}.weight",
            "stream_out": "model.altup_unembed_projections.{s}.weight",
            **llama_tensors(
                {
                    "attn_out_norm": "post_attention_layernorm.weight",
                    "mlp_norm": "pre_feedforward_layernorm.weight",
                    "mlp_out_norm": "post_feedforward_layernorm.weight",
                    "stream_scale": "altup.correct_output_scale",
                    "stream_router": "altup.modality_router.weight",
                    "stream_router_norm": "altup.router_norm.weight",
                    "stream_predict": "altup.prediction_coefs.weight",
                    "stream_correct": "altup.correction_coefs.weight",
                    "residual_left": "laurel.linear_left.weight",
                    "residual_right": "laurel.linear_right.weight",
                    "residual_norm": "laurel.post_laurel_norm.weight",
                    **PER_LAYER_BRANCH,
                }
            ),
        },
        renamed=frozen(hidden_act="hidden_activation"),
        supported_keys=frozenset({"final_logit_softcapping"}) | WINDOW_KEYS,
        defaults=frozen(
            max_position_embeddings=32_768,
            rms_norm_eps=1e-6,
            hidden_activation="gelu_pytorch_tanh",
            head_dim=256,
            num_key_value_heads=2,
            num_kv_shared_layers=15,
            sliding_window=512,
            rope_theta=1e6,
            final_logit_softcapping=30.0,
            hidden_size_per_layer_input=256,
            vocab_size_per_layer_input=262_144,
            altup_num_inputs=4,
            altup_active_idx=0,
            altup_correct_scale=True,
            laurel_rank=64,
            bos_token_id=2,
            eos_token_id=1,
            tie_word_embeddings=True,
        ),
    ),
}
