"""The families that grew from Llama: RMSNorm or LayerNorm first, rotary embeddings, a gated FFN.

Facts and defaults are those of the models' classes in transformers; InternLM2's and ChatGLM's
of the code their makers publish with the weights.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from swiftchat.weights.architectures import llama_like_fields
from swiftchat.weights.architectures.architecture import Architecture
from swiftchat.weights.architectures.tensor_names import (
    FUSED_FFN,
    FUSED_QKV,
    LLAMA_TENSORS,
    QWEN_EXPERTS,
    SANDWICH,
    like_llama,
    table,
)


def _frozen(**values: Any) -> Mapping[str, Any]:
    return MappingProxyType(values)


_LLAMA_DEFAULTS = _frozen(
    max_position_embeddings=2048, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2
)
_QWEN_DEFAULTS = _frozen(
    max_position_embeddings=32768,
    rms_norm_eps=1e-6,
    num_key_value_heads=32,
    sliding_window=4096,
    use_sliding_window=False,
    max_window_layers=28,
)
_GLM_DEFAULTS = _frozen(
    max_position_embeddings=131_072,
    rms_norm_eps=1.5625e-7,
    num_key_value_heads=2,
    head_dim=128,
    attention_bias=True,
    partial_rotary_factor=0.5,
    eos_token_id=[151_329, 151_336, 151_338],
)
_GEMMA_DEFAULTS = _frozen(
    max_position_embeddings=8192,
    rms_norm_eps=1e-6,
    head_dim=256,
    bos_token_id=2,
    eos_token_id=1,
    tie_word_embeddings=True,
    hidden_act="gelu_pytorch_tanh",
)
_GEMMA2_DEFAULTS = _frozen(
    **_GEMMA_DEFAULTS, num_key_value_heads=4, sliding_window=4096, query_pre_attn_scalar=256
)
_GEMMA_READS = frozenset(
    {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"}
)
_PARTIAL = frozenset({"partial_rotary_factor"})

GATED_FAMILIES: Mapping[str, Architecture] = MappingProxyType(
    {
        "LlamaForCausalLM": Architecture(
            name="llama",
            model_type="llama",
            tensors=LLAMA_TENSORS,
            defaults=_LLAMA_DEFAULTS,
        ),
        "MistralForCausalLM": Architecture(
            name="mistral",
            model_type="mistral",
            tensors=LLAMA_TENSORS,
            defaults=_frozen(
                max_position_embeddings=4096 * 32,
                rms_norm_eps=1e-6,
                num_key_value_heads=8,
                sliding_window=4096,
                bos_token_id=1,
                eos_token_id=2,
            ),
        ),
        "Qwen2ForCausalLM": Architecture(
            name="qwen2",
            model_type="qwen2",
            tensors=LLAMA_TENSORS,
            defaults=_QWEN_DEFAULTS,
            facts=llama_like_fields.qwen2,
        ),
        "Qwen3ForCausalLM": Architecture(
            name="qwen3",
            model_type="qwen3",
            tensors=LLAMA_TENSORS,
            defaults=_frozen(**_QWEN_DEFAULTS, head_dim=128),
            facts=llama_like_fields.qwen3,
        ),
        "SmolLM3ForCausalLM": Architecture(
            name="smollm3",
            model_type="smollm3",
            tensors=LLAMA_TENSORS,
            facts=llama_like_fields.smollm3,
            reads=frozenset({"no_rope_layers"}),
            defaults=_frozen(
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
        "Phi3ForCausalLM": Architecture(
            name="phi3",
            model_type="phi3",
            facts=llama_like_fields.no_biases,
            reads=_PARTIAL,
            tensors=like_llama(
                {"qkv": "self_attn.qkv_proj.weight", "gate_up": "mlp.gate_up_proj.weight"},
                without=(*FUSED_QKV, *FUSED_FFN),
            ),
            defaults=_frozen(
                max_position_embeddings=4096,
                rms_norm_eps=1e-5,
                bos_token_id=1,
                eos_token_id=32_000,
            ),
        ),
        "Olmo2ForCausalLM": Architecture(
            name="olmo2",
            model_type="olmo2",
            facts=llama_like_fields.olmo2,
            tensors=like_llama(
                {
                    "attn_out_norm": "post_attention_layernorm.weight",
                    "mlp_out_norm": "post_feedforward_layernorm.weight",
                }
            ),
            defaults=_frozen(max_position_embeddings=2048, rms_norm_eps=1e-5, eos_token_id=50_279),
        ),
        "InternLM2ForCausalLM": Architecture(
            name="internlm2",
            model_type="internlm2",
            facts=llama_like_fields.internlm2,
            qkv_in_groups=True,
            tensors=table(
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
            defaults=_frozen(
                max_position_embeddings=2048,
                rms_norm_eps=1e-6,
                bias=True,
                bos_token_id=1,
                eos_token_id=2,
            ),
        ),
        "StableLmForCausalLM": Architecture(
            name="stablelm",
            model_type="stablelm",
            facts=llama_like_fields.stablelm,
            tensors=like_llama(
                {
                    "q_norm": "self_attn.q_layernorm.norms.{h}.weight",
                    "k_norm": "self_attn.k_layernorm.norms.{h}.weight",
                }
            ),
            fields=_frozen(rms_norm_eps="layer_norm_eps"),
            reads=_PARTIAL | {"use_parallel_residual", "qk_layernorm"},
            defaults=_frozen(
                max_position_embeddings=4096,
                layer_norm_eps=1e-5,
                num_key_value_heads=32,
                partial_rotary_factor=0.25,
                bos_token_id=0,
                eos_token_id=0,
            ),
        ),
        "GlmForCausalLM": Architecture(
            name="glm",
            model_type="glm",
            facts=llama_like_fields.glm,
            interleaved_rope=True,
            reads=_PARTIAL,
            tensors=like_llama({"gate_up": "mlp.gate_up_proj.weight"}, without=FUSED_FFN),
            defaults=_GLM_DEFAULTS,
        ),
        "Glm4ForCausalLM": Architecture(
            name="glm4",
            model_type="glm4",
            facts=llama_like_fields.glm4,
            interleaved_rope=True,
            reads=_PARTIAL,
            tensors=like_llama(
                {
                    "gate_up": "mlp.gate_up_proj.weight",
                    "attn_out_norm": "post_self_attn_layernorm.weight",
                    "mlp_out_norm": "post_mlp_layernorm.weight",
                },
                without=FUSED_FFN,
            ),
            defaults=_GLM_DEFAULTS,
        ),
        "ChatGLMModel": Architecture(
            name="chatglm",
            model_type="chatglm",
            facts=llama_like_fields.chatglm,
            prefix="transformer.",
            fields=_frozen(
                vocab_size="padded_vocab_size",
                num_hidden_layers="num_layers",
                intermediate_size="ffn_hidden_size",
                head_dim="kv_channels",
                max_position_embeddings="seq_length",
                rms_norm_eps="layernorm_epsilon",
            ),
            tensors=table(
                {
                    "qkv": "self_attention.query_key_value.weight",
                    "qkv_bias": "self_attention.query_key_value.bias",
                    "o": "self_attention.dense.weight",
                    "gate_up": "mlp.dense_h_to_4h.weight",
                    "down": "mlp.dense_4h_to_h.weight",
                    "attn_norm": "input_layernorm.weight",
                    "mlp_norm": "post_attention_layernorm.weight",
                },
                embed="transformer.embedding.word_embeddings.weight",
                final_norm="transformer.encoder.final_layernorm.weight",
                lm_head="transformer.output_layer.weight",
                layer="transformer.encoder.layers.{i}.",
            ),
            defaults=_frozen(layernorm_epsilon=1e-5, seq_length=2048, kv_channels=128),
        ),
        "GemmaForCausalLM": Architecture(
            name="gemma",
            model_type="gemma",
            facts=llama_like_fields.gemma,
            tensors=LLAMA_TENSORS,
            defaults=_frozen(**_GEMMA_DEFAULTS, num_key_value_heads=16),
        ),
        "Gemma2ForCausalLM": Architecture(
            name="gemma2",
            model_type="gemma2",
            facts=llama_like_fields.gemma2,
            tensors=like_llama(SANDWICH),
            fields=_frozen(hidden_act="hidden_activation"),
            reads=_GEMMA_READS,
            defaults=_frozen(
                **_GEMMA2_DEFAULTS, attn_logit_softcapping=50.0, final_logit_softcapping=30.0
            ),
        ),
        "Gemma3ForCausalLM": Architecture(
            name="gemma3",
            model_type="gemma3_text",
            facts=llama_like_fields.gemma3,
            tensors=like_llama(SANDWICH),
            fields=_frozen(
                hidden_act="hidden_activation", sliding_window_pattern="_sliding_window_pattern"
            ),
            reads=_GEMMA_READS,
            defaults=_frozen(
                **{**_GEMMA2_DEFAULTS, "max_position_embeddings": 131_072},
                rope_theta=1e6,
                sliding_window_pattern=6,
            ),
        ),
        "MixtralForCausalLM": Architecture(
            name="mixtral",
            model_type="mixtral",
            facts=llama_like_fields.mixture,
            reads=frozenset({"num_local_experts"}),
            tensors=like_llama(
                {
                    "router": "block_sparse_moe.gate.weight",
                    "expert_gate": "block_sparse_moe.experts.{e}.w1.weight",
                    "expert_up": "block_sparse_moe.experts.{e}.w3.weight",
                    "expert_down": "block_sparse_moe.experts.{e}.w2.weight",
                },
                without=("gate", "up", "down"),
            ),
            defaults=_frozen(
                max_position_embeddings=4096 * 32,
                rms_norm_eps=1e-5,
                num_key_value_heads=8,
                rope_theta=1e6,
                num_local_experts=8,
                num_experts_per_tok=2,
                bos_token_id=1,
                eos_token_id=2,
            ),
        ),
        "Qwen3MoeForCausalLM": Architecture(
            name="qwen3_moe",
            model_type="qwen3_moe",
            facts=llama_like_fields.qwen3_moe,
            reads=frozenset({"num_local_experts", "num_experts", "moe_intermediate_size"}),
            fields=_frozen(num_local_experts="num_experts"),
            tensors=like_llama(QWEN_EXPERTS),
            defaults=_frozen(
                intermediate_size=6144,
                max_position_embeddings=32768,
                rms_norm_eps=1e-6,
                num_key_value_heads=4,
                use_sliding_window=False,
                num_local_experts=128,
                num_experts_per_tok=8,
                moe_intermediate_size=768,
                decoder_sparse_step=1,
            ),
        ),
    }
)
