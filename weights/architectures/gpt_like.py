"""The families that grew from GPT: LayerNorm, an FFN without a gate, biases nearly everywhere.

Facts and defaults are those of the models' classes in transformers; ChatGLM-6B's of the code its
makers publish with the weights.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from swiftchat.weights.architectures import gpt_like_fields
from swiftchat.weights.architectures.architecture import Architecture
from swiftchat.weights.architectures.tensor_names import table

_ATTENTION_AND_FFN = {
    "qkv": "self_attention.query_key_value.weight",
    "qkv_bias": "self_attention.query_key_value.bias",
    "o": "self_attention.dense.weight",
    "o_bias": "self_attention.dense.bias",
    "up": "mlp.dense_h_to_4h.weight",
    "up_bias": "mlp.dense_h_to_4h.bias",
    "down": "mlp.dense_4h_to_h.weight",
    "down_bias": "mlp.dense_4h_to_h.bias",
    "attn_norm": "input_layernorm.weight",
    "attn_norm_bias": "input_layernorm.bias",
    "mlp_norm": "post_attention_layernorm.weight",
    "mlp_norm_bias": "post_attention_layernorm.bias",
}
_GPT_FIELDS = MappingProxyType(
    {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "intermediate_size": "n_inner",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    }
)


def _defaults(**values: Any) -> Mapping[str, Any]:
    return MappingProxyType(values)


CLASSIC_FAMILIES: Mapping[str, Architecture] = MappingProxyType(
    {
        "GPT2LMHeadModel": Architecture(
            name="gpt2",
            model_type="gpt2",
            facts=gpt_like_fields.gpt2,
            fields=_GPT_FIELDS,
            prefix="transformer.",
            transposed=frozenset({"qkv", "o", "up", "down"}),
            tensors=table(
                {
                    "qkv": "attn.c_attn.weight",
                    "qkv_bias": "attn.c_attn.bias",
                    "o": "attn.c_proj.weight",
                    "o_bias": "attn.c_proj.bias",
                    "up": "mlp.c_fc.weight",
                    "up_bias": "mlp.c_fc.bias",
                    "down": "mlp.c_proj.weight",
                    "down_bias": "mlp.c_proj.bias",
                    "attn_norm": "ln_1.weight",
                    "attn_norm_bias": "ln_1.bias",
                    "mlp_norm": "ln_2.weight",
                    "mlp_norm_bias": "ln_2.bias",
                },
                embed="transformer.wte.weight",
                positions="transformer.wpe.weight",
                final_norm="transformer.ln_f.weight",
                final_norm_bias="transformer.ln_f.bias",
                lm_head="lm_head.weight",
                layer="transformer.h.{i}.",
            ),
            defaults=_defaults(
                n_positions=1024,
                layer_norm_epsilon=1e-5,
                activation_function="gelu_new",
                scale_attn_weights=True,
                tie_word_embeddings=True,
                bos_token_id=50_256,
                eos_token_id=50_256,
            ),
        ),
        "GPTJForCausalLM": Architecture(
            name="gptj",
            model_type="gptj",
            facts=gpt_like_fields.gpt_j,
            fields=_GPT_FIELDS,
            prefix="transformer.",
            interleaved_rope=True,
            reads=frozenset({"rotary_dim"}),
            tensors=table(
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
                embed="transformer.wte.weight",
                final_norm="transformer.ln_f.weight",
                final_norm_bias="transformer.ln_f.bias",
                lm_head="lm_head.weight",
                lm_head_bias="lm_head.bias",
                layer="transformer.h.{i}.",
            ),
            defaults=_defaults(
                n_positions=2048,
                rotary_dim=64,
                layer_norm_epsilon=1e-5,
                activation_function="gelu_new",
                bos_token_id=50_256,
                eos_token_id=50_256,
            ),
        ),
        "GPTNeoXForCausalLM": Architecture(
            name="gpt_neox",
            model_type="gpt_neox",
            facts=gpt_like_fields.gpt_neox,
            qkv_in_groups=True,
            fields=_defaults(
                rms_norm_eps="layer_norm_eps",
                partial_rotary_factor="rotary_pct",
                rope_theta="rotary_emb_base",
            ),
            reads=frozenset({"use_parallel_residual", "partial_rotary_factor"}),
            tensors=table(
                {
                    name: rest.replace("self_attention.", "attention.")
                    for name, rest in _ATTENTION_AND_FFN.items()
                },
                embed="gpt_neox.embed_in.weight",
                final_norm="gpt_neox.final_layer_norm.weight",
                final_norm_bias="gpt_neox.final_layer_norm.bias",
                lm_head="embed_out.weight",
                layer="gpt_neox.layers.{i}.",
            ),
            defaults=_defaults(
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
        "PhiForCausalLM": Architecture(
            name="phi",
            model_type="phi",
            facts=gpt_like_fields.phi,
            reads=frozenset({"partial_rotary_factor"}),
            fields=_defaults(rms_norm_eps="layer_norm_eps"),
            tensors=table(
                {
                    "q": "self_attn.q_proj.weight",
                    "k": "self_attn.k_proj.weight",
                    "v": "self_attn.v_proj.weight",
                    "q_bias": "self_attn.q_proj.bias",
                    "k_bias": "self_attn.k_proj.bias",
                    "v_bias": "self_attn.v_proj.bias",
                    "o": "self_attn.dense.weight",
                    "o_bias": "self_attn.dense.bias",
                    "up": "mlp.fc1.weight",
                    "up_bias": "mlp.fc1.bias",
                    "down": "mlp.fc2.weight",
                    "down_bias": "mlp.fc2.bias",
                    "attn_norm": "input_layernorm.weight",
                    "attn_norm_bias": "input_layernorm.bias",
                },
                embed="model.embed_tokens.weight",
                final_norm="model.final_layernorm.weight",
                final_norm_bias="model.final_layernorm.bias",
                lm_head="lm_head.weight",
                lm_head_bias="lm_head.bias",
                layer="model.layers.{i}.",
            ),
            defaults=_defaults(
                max_position_embeddings=2048,
                layer_norm_eps=1e-5,
                hidden_act="gelu_new",
                partial_rotary_factor=0.5,
                bos_token_id=1,
                eos_token_id=2,
            ),
        ),
        "Starcoder2ForCausalLM": Architecture(
            name="starcoder2",
            model_type="starcoder2",
            facts=gpt_like_fields.starcoder2,
            fields=_defaults(rms_norm_eps="norm_epsilon"),
            tensors=table(
                {
                    "q": "self_attn.q_proj.weight",
                    "k": "self_attn.k_proj.weight",
                    "v": "self_attn.v_proj.weight",
                    "q_bias": "self_attn.q_proj.bias",
                    "k_bias": "self_attn.k_proj.bias",
                    "v_bias": "self_attn.v_proj.bias",
                    "o": "self_attn.o_proj.weight",
                    "o_bias": "self_attn.o_proj.bias",
                    "up": "mlp.c_fc.weight",
                    "up_bias": "mlp.c_fc.bias",
                    "down": "mlp.c_proj.weight",
                    "down_bias": "mlp.c_proj.bias",
                    "attn_norm": "input_layernorm.weight",
                    "attn_norm_bias": "input_layernorm.bias",
                    "mlp_norm": "post_attention_layernorm.weight",
                    "mlp_norm_bias": "post_attention_layernorm.bias",
                },
                embed="model.embed_tokens.weight",
                final_norm="model.norm.weight",
                final_norm_bias="model.norm.bias",
                lm_head="lm_head.weight",
                layer="model.layers.{i}.",
            ),
            defaults=_defaults(
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
        "OPTForCausalLM": Architecture(
            name="opt",
            model_type="opt",
            facts=gpt_like_fields.opt,
            prefix="model.",
            fields=_defaults(intermediate_size="ffn_dim", hidden_act="activation_function"),
            tensors=table(
                {
                    "q": "self_attn.q_proj.weight",
                    "k": "self_attn.k_proj.weight",
                    "v": "self_attn.v_proj.weight",
                    "q_bias": "self_attn.q_proj.bias",
                    "k_bias": "self_attn.k_proj.bias",
                    "v_bias": "self_attn.v_proj.bias",
                    "o": "self_attn.out_proj.weight",
                    "o_bias": "self_attn.out_proj.bias",
                    "up": "fc1.weight",
                    "up_bias": "fc1.bias",
                    "down": "fc2.weight",
                    "down_bias": "fc2.bias",
                    "attn_norm": "self_attn_layer_norm.weight",
                    "attn_norm_bias": "self_attn_layer_norm.bias",
                    # OPT calls "final" what comes before a layer's FFN, and the last one too.
                    "mlp_norm": "final_layer_norm.weight",
                    "mlp_norm_bias": "final_layer_norm.bias",
                },
                embed="model.decoder.embed_tokens.weight",
                positions="model.decoder.embed_positions.weight",
                project_in="model.decoder.project_in.weight",
                project_out="model.decoder.project_out.weight",
                final_norm="model.decoder.final_layer_norm.weight",
                final_norm_bias="model.decoder.final_layer_norm.bias",
                lm_head="lm_head.weight",
                layer="model.decoder.layers.{i}.",
            ),
            defaults=_defaults(
                max_position_embeddings=2048,
                ffn_dim=3072,
                activation_function="relu",
                do_layer_norm_before=True,
                enable_bias=True,
                layer_norm_elementwise_affine=True,
                word_embed_proj_dim=768,
                tie_word_embeddings=True,
                bos_token_id=2,
                eos_token_id=2,
            ),
        ),
        "BloomForCausalLM": Architecture(
            name="bloom",
            model_type="bloom",
            facts=gpt_like_fields.bloom,
            prefix="transformer.",
            qkv_in_groups=True,
            fields=_defaults(
                hidden_size="n_embed",
                num_hidden_layers="n_layer",
                num_attention_heads="n_head",
                max_position_embeddings="seq_length",
                rms_norm_eps="layer_norm_epsilon",
            ),
            tensors=table(
                _ATTENTION_AND_FFN,
                embed="transformer.word_embeddings.weight",
                embed_norm="transformer.word_embeddings_layernorm.weight",
                embed_norm_bias="transformer.word_embeddings_layernorm.bias",
                final_norm="transformer.ln_f.weight",
                final_norm_bias="transformer.ln_f.bias",
                lm_head="lm_head.weight",
                layer="transformer.h.{i}.",
            ),
            defaults=_defaults(
                max_position_embeddings=2048,
                layer_norm_epsilon=1e-5,
                tie_word_embeddings=True,
                bos_token_id=1,
                eos_token_id=2,
            ),
        ),
        "FalconForCausalLM": Architecture(
            name="falcon",
            model_type="falcon",
            facts=gpt_like_fields.falcon,
            prefix="transformer.",
            qkv_in_groups=True,
            reads=frozenset({"parallel_attn", "alibi"}),
            fields=_defaults(
                hidden_size="n_embed",
                num_hidden_layers="n_layer",
                num_attention_heads="n_head",
                num_kv_heads="n_head_kv",
                rms_norm_eps="layer_norm_epsilon",
                hidden_act="activation",
            ),
            tensors=table(
                _ATTENTION_AND_FFN,
                embed="transformer.word_embeddings.weight",
                final_norm="transformer.ln_f.weight",
                final_norm_bias="transformer.ln_f.bias",
                lm_head="lm_head.weight",
                layer="transformer.h.{i}.",
            ),
            two_norm_tensors=table(
                {
                    "attn_norm": "ln_attn.weight",
                    "attn_norm_bias": "ln_attn.bias",
                    "mlp_norm": "ln_mlp.weight",
                    "mlp_norm_bias": "ln_mlp.bias",
                },
                layer="transformer.h.{i}.",
            ),
            defaults=_defaults(
                max_position_embeddings=2048,
                layer_norm_epsilon=1e-5,
                activation="gelu",
                multi_query=True,
                parallel_attn=True,
                tie_word_embeddings=True,
                bos_token_id=11,
                eos_token_id=11,
            ),
        ),
        "ChatGLMForConditionalGeneration": Architecture(
            # The first generation; see `ChatGLMModel` for the others.
            name="chatglm-6b",
            model_type="chatglm",
            facts=gpt_like_fields.chatglm_6b,
            prefix="transformer.",
            qkv_in_groups=True,
            fields=_defaults(
                num_hidden_layers="num_layers",
                intermediate_size="inner_hidden_size",
                max_position_embeddings="max_sequence_length",
                rms_norm_eps="layernorm_epsilon",
            ),
            tensors=table(
                {
                    name: rest.replace("self_attention.", "attention.")
                    for name, rest in _ATTENTION_AND_FFN.items()
                },
                embed="transformer.word_embeddings.weight",
                final_norm="transformer.final_layernorm.weight",
                final_norm_bias="transformer.final_layernorm.bias",
                lm_head="lm_head.weight",
                layer="transformer.layers.{i}.",
            ),
            defaults=_defaults(
                position_encoding_2d=True, max_sequence_length=2048, layernorm_epsilon=1e-5
            ),
        ),
    }
)
