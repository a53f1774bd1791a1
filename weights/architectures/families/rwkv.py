"""RWKV-4: time mixing instead of attention, channel mixing instead of an MLP.

Defaults and overrides are those of the model class in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.state_space import MAX_STATE_CONTEXT
from swiftchat.weights.architectures.parts.architecture import (
    LAYER_NORM_UNGATED,
    Architecture,
    frozen,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_WIDTH,
    Fields,
    hidden_size,
    invalid,
    num_layers,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.rwkv import Rwkv

_LAST_NORM_EPS = 1e-5


def _rwkv(config: Fields) -> Mapping[str, Any]:
    hidden = hidden_size(config)
    eps = number(config, "layer_norm_epsilon", above=0.0, below=1.0)
    if eps != _LAST_NORM_EPS:  # the last norm has this one in any case
        raise invalid("layer_norm_epsilon", str(_LAST_NORM_EPS), eps)
    # `rescale_every` divides stream and matrices by 2 now and then: against overflows of fp16.
    return {
        **LAYER_NORM_UNGATED,
        "norm_eps": eps,
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 2,
        "rope": None,
        "activation": "relu2",
        "attention_bias": False,
        "mlp_bias": False,
        "embedding_norm": True,
        "intermediate_size": optional_integer(config, "intermediate_size", 1, MAX_WIDTH)
        or 4 * hidden,
        "max_context_tokens": MAX_STATE_CONTEXT,
        "mixer_layers": frozenset(range(num_layers(config))),
        "mixer": Rwkv(
            hidden, optional_integer(config, "attention_hidden_size", 1, MAX_WIDTH) or hidden
        ),
    }


RWKV: Mapping[str, Architecture] = {
    "RwkvForCausalLM": Architecture(
        name="rwkv",
        model_type="rwkv",
        overrides=_rwkv,
        prefix="rwkv.",
        tensors=tensor_names(
            {
                "attn_norm": "ln1.weight",
                "attn_norm_bias": "ln1.bias",
                "mlp_norm": "ln2.weight",
                "mlp_norm_bias": "ln2.bias",
                "mixer_in": "attention.receptance.weight",
                "mixer_key": "attention.key.weight",
                "mixer_value": "attention.value.weight",
                "mixer_out": "attention.output.weight",
                "mixer_decay": "attention.time_decay",
                "mixer_skip": "attention.time_first",
                "mixer_mean_k": "attention.time_mix_key",
                "mixer_mean_v": "attention.time_mix_value",
                "mixer_mean_r": "attention.time_mix_receptance",
                "up": "feed_forward.key.weight",
                "down": "feed_forward.value.weight",
                "channel_gate": "feed_forward.receptance.weight",
                "channel_mean_k": "feed_forward.time_mix_key",
                "channel_mean_r": "feed_forward.time_mix_receptance",
            },
            embed="rwkv.embeddings.weight",
            embed_norm="rwkv.blocks.0.pre_ln.weight",
            embed_norm_bias="rwkv.blocks.0.pre_ln.bias",
            final_norm="rwkv.ln_out.weight",
            final_norm_bias="rwkv.ln_out.bias",
            lm_head="head.weight",
            layer="rwkv.blocks.{i}.",
        ),
        defaults=frozen(
            vocab_size=50_277,
            hidden_size=4096,
            num_hidden_layers=32,
            num_attention_heads=1,
            layer_norm_epsilon=1e-5,
            bos_token_id=0,
            eos_token_id=0,
        ),
    ),
}
