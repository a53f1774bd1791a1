"""Tiny random models of every family, made with transformers, and runs of the engine on them."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Finished, Logprob, Tokens
from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.load.loader import load_weights
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.torch_ops import TorchOps
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.blocks import BlockAllocator
from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.engine.schedule.scheduler import Sequence as TokenSequence
from swiftchat.errors import SwiftchatError
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import Shard
from tests.support import tiny_chatglm

VOCAB_SIZE = 97
BLOCK_SIZE = 4

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Ten times the usual spread, so that logits differ by more than rounding.
    "initializer_range": 0.2,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-mha": ("Llama", {"num_key_value_heads": 6}),
    "llama-wide-heads": ("Llama", {"head_dim": 16}),
    "llama3-rope": ("Llama", {"rope_parameters": _LLAMA3_ROPE}),
    "linear-rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 7}),
}


_GPT = {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 256}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
}
_SU = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.5],
    "long_factor": [1.0, 2.0, 7.5],
}
_WINDOWS = {"use_sliding_window": True, "sliding_window": 7}

# The other architectures: name in transformers, and the sizes of a tiny model.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", {}),
    "qwen2-windows": ("Qwen2", {**_WINDOWS, "max_window_layers": 1}),
    "qwen2-yarn": ("Qwen2", {"rope_parameters": _YARN}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5}),  # the fourth layer is not rotated
    "phi3": ("Phi3", {"sliding_window": 11}),
    "phi3-short-context": (
        "Phi3",
        {"rope_parameters": _SU, "original_max_position_embeddings": 256},
    ),
    "phi3-long-context": ("Phi3", {"rope_parameters": _SU, "original_max_position_embeddings": 4}),
    "olmo2": ("Olmo2", {}),
    "stablelm": ("StableLm", {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    "stablelm-parallel": ("StableLm", {"use_parallel_residual": True}),
    "stablelm-2-12b": ("StableLm", {"use_parallel_residual": True, "qk_layernorm": True}),
    "glm": ("Glm", {"head_dim": 8}),
    "glm4": ("Glm4", {"head_dim": 8}),
    "gemma": ("Gemma", {"head_dim": 16, "num_key_value_heads": 1}),
    "gemma2": ("Gemma2", {"head_dim": 8, "sliding_window": 9, "query_pre_attn_scalar": 24}),
    "gemma3": (
        # With the usual pattern all three layers would have a window.
        "Gemma3",
        {
            "head_dim": 8,
            "sliding_window": 9,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 24,
            "final_logit_softcapping": 5.0,
        },
    ),
    "gpt2": ("GPT2", _GPT),
    "gpt-j": ("GPTJ", {**_GPT, "rotary_dim": 4}),
    "gpt-neox": ("GPTNeoX", {"rotary_pct": 0.5}),
    "gpt-neox-serial": ("GPTNeoX", {"use_parallel_residual": False, "attention_bias": False}),
    "phi": ("Phi", {}),
    "starcoder2": ("Starcoder2", {"sliding_window": 9}),
    "opt": ("OPT", {"ffn_dim": 80, "word_embed_proj_dim": 48}),
    "opt-350m": ("OPT", {"ffn_dim": 80, "word_embed_proj_dim": 32, "do_layer_norm_before": False}),
    "bloom": ("Bloom", {"n_layer": 3, "n_head": 6}),
    "falcon-7b": ("Falcon", {}),
    "falcon-40b": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-11b": (
        "Falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon-serial": ("Falcon", {"multi_query": False, "parallel_attn": False, "bias": True}),
    "falcon-rw": (
        "Falcon",
        {
            "alibi": True,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
            # With more than four heads bf16 rounds some slopes.
            "num_attention_heads": 4,
            "hidden_size": 32,
        },
    ),
    "gpt-oss": (
        "GptOss",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "head_dim": 8,
            "sliding_window": 7,
            "swiglu_limit": 1.5,
            "rope_parameters": {**_YARN, "truncate": False, "factor": 32.0},
        },
    ),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": None}),
    "qwen3-moe": (
        "Qwen3Moe",
        {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8},
    ),
    "qwen3-moe-normalized": (
        "Qwen3Moe",
        {
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
            "head_dim": 8,
            "norm_topk_prob": True,
        },
    ),
    "qwen3-moe-mixed": (
        "Qwen3Moe",
        {
            "num_experts": 3,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "head_dim": 8,
            "mlp_only_layers": [1],
            "num_hidden_layers": 5,
            "decoder_sparse_step": 2,
        },
    ),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            "num_experts": 5,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            **_WINDOWS,
            "max_window_layers": 2,
            "mlp_only_layers": [1],
        },
    ),
}
# Architectures that the CUDA kernels do not support.
NOT_ON_KERNELS = ("gpt-oss", "chatglm-6b")
_CONFIGS = {"Gemma3": "Gemma3TextConfig"}
_MODELS = {"GPT2": "GPT2LMHeadModel"}


def make(variant: str, folder: Path, **sizes: Any) -> transformers.PreTrainedModel:
    """Save a random fp32 model of this variant in `folder` and return it.

    `sizes` go before the variant's own, but for those transformers does not have.
    """
    if variant in REPACKED:
        return REPACKED[variant](folder)
    family, changes = VARIANTS.get(variant) or FAMILIES[variant]
    name = _CONFIGS.get(family, f"{family}Config")
    config = getattr(transformers, name)(**{**_SIZES, "pad_token_id": 0, **changes, **sizes})
    torch.manual_seed(20)
    # Eager attention honors the sliding window everywhere, but adds Falcon's ALiBi twice.
    config._attn_implementation = "sdpa" if changes.get("alibi") else "eager"
    model = getattr(transformers, _MODELS.get(family, f"{family}ForCausalLM"))(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
        elif "norm" in name or "ln_" in name:
            mean = 0.0 if family.startswith("Gemma") else 1.0
            torch.nn.init.normal_(parameter, mean=mean, std=0.1)
        elif family in ("OPT", "Falcon") and parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return model


def make_internlm2(folder: Path) -> transformers.PreTrainedModel:
    """InternLM2 is Llama with queries, keys and values in one tensor, by groups of heads."""
    model = make("llama", folder)
    tensors = dict(model.state_dict())
    renamed = {"model.tok_embeddings.weight": tensors.pop("model.embed_tokens.weight")}
    renamed["output.weight"] = tensors.pop("lm_head.weight")
    renamed["model.norm.weight"] = tensors.pop("model.norm.weight")
    for i in range(3):
        here = f"model.layers.{i}."
        q, k, v = (
            tensors.pop(f"{here}self_attn.{name}_proj.weight").view(2, -1, 8, 48) for name in "qkv"
        )
        renamed[f"{here}attention.wqkv.weight"] = torch.cat([q, k, v], 1).reshape(-1, 48)
        for ours, theirs in {
            "attention.wo": "self_attn.o_proj",
            "feed_forward.w1": "mlp.gate_proj",
            "feed_forward.w3": "mlp.up_proj",
            "feed_forward.w2": "mlp.down_proj",
            "attention_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
        }.items():
            renamed[f"{here}{ours}.weight"] = tensors.pop(f"{here}{theirs}.weight")
    assert not tensors
    rope = {"type": "dynamic", "factor": 2.0}
    _write(folder, "InternLM2ForCausalLM", renamed, bias=False, rope_scaling=rope)
    return model


def make_chatglm(folder: Path) -> transformers.PreTrainedModel:
    """ChatGLM2 and 3 are transformers' Glm with other tensor names."""
    model = make("glm", folder)
    tensors = dict(model.state_dict())
    start = "transformer."
    renamed = {f"{start}embedding.word_embeddings.weight": tensors.pop("model.embed_tokens.weight")}
    renamed[f"{start}output_layer.weight"] = tensors.pop("lm_head.weight")
    renamed[f"{start}encoder.final_layernorm.weight"] = tensors.pop("model.norm.weight")
    renamed[f"{start}rotary_pos_emb.inv_freq"] = torch.zeros(2)
    for i in range(3):
        here, there = f"model.layers.{i}.", f"{start}encoder.layers.{i}."
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"{here}self_attn.{name}_proj.{kind}") for name in "qkv"]
            renamed[f"{there}self_attention.query_key_value.{kind}"] = torch.cat(parts)
        for ours, theirs in {
            "self_attention.dense": "self_attn.o_proj",
            "mlp.dense_h_to_4h": "mlp.gate_up_proj",
            "mlp.dense_4h_to_h": "mlp.down_proj",
            "input_layernorm": "input_layernorm",
            "post_attention_layernorm": "post_attention_layernorm",
        }.items():
            renamed[f"{there}{ours}.weight"] = tensors.pop(f"{here}{theirs}.weight")
    assert not tensors
    _write(
        folder,
        "ChatGLMModel",
        renamed,
        padded_vocab_size=VOCAB_SIZE,
        num_layers=3,
        ffn_hidden_size=80,
        kv_channels=8,
        seq_length=256,
        add_qkv_bias=True,
        rmsnorm=True,
        layernorm_epsilon=model.config.rms_norm_eps,
        multi_query_attention=True,
        multi_query_group_num=2,
        post_layer_norm=True,
        add_bias_linear=False,
    )
    return model


def _write(folder: Path, architecture: str, tensors: dict[str, torch.Tensor], **own: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    known = {"hidden_size", "num_attention_heads", "bos_token_id", "eos_token_id"}
    if architecture != "ChatGLMModel":
        known |= {*_SIZES, "rms_norm_eps"}
    kept = {key: value for key, value in config.items() if key in known}
    (folder / "config.json").write_text(
        json.dumps({**kept, **own, "architectures": [architecture]})
    )
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "model.safetensors")


# Architectures that transformers lacks: repacked from others, or with a reference of their own.
REPACKED: dict[str, Callable[[Path], Any]] = {
    "internlm2": make_internlm2,
    "chatglm3": make_chatglm,
    "chatglm-6b": lambda folder: tiny_chatglm.make(folder, VOCAB_SIZE),
}


def random_ids(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


def plain_tensor(weight: LinearWeight) -> torch.Tensor:
    """The tensor of a weight that must be plain."""
    assert isinstance(weight, PlainWeight)
    return weight.tensor


class Bench:
    """A decoder with a cache and a scheduler, without the generation loop on top."""

    def __init__(
        self,
        folder: Path,
        num_blocks: int = 64,
        block_size: int = BLOCK_SIZE,
        chunk_tokens: int = 512,
        shard: Shard | None = None,
        ranks: Communicator | None = None,
        dtype: torch.dtype = torch.float32,
        kv_dtype: str = "auto",
    ) -> None:
        model = Model.open(folder)
        config = model.config if shard is None else shard.local_config
        self.checkpoint = model.checkpoint(shard)
        cpu = torch.device("cpu")
        weights = load_weights(
            model.config, self.checkpoint, dtype, cpu, lambda done, total: None, shard
        )
        ops = TorchOps(config, config.max_context_tokens, cpu, shard)
        self.decoder = Decoder(config, weights, ops, ranks)
        self.cache = KVCache(config, num_blocks, block_size, dtype, cpu, kv_dtype=kv_dtype)
        for tensor in self.cache.tensors:  # unwritten slots must never be read
            tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
        self.allocator = BlockAllocator(num_blocks, block_size)
        self.scheduler = Scheduler(self.allocator, chunk_tokens, 16)
        self.held: list[list[int]] = []  # blocks that a test holds

    @torch.inference_mode()
    def step(self) -> dict[int, torch.Tensor]:
        """Compute one step; return logits by id for the sequences whose last token was computed."""
        step = self.scheduler.schedule()
        self.decoder.ops.copy_blocks(self.cache, step.copies)
        batch = Batch.pack(step.rows, self.allocator.block_size)
        own = self.decoder.forward(batch, self.cache)
        assert own is not None
        logits = self.decoder.ranks.all_gather(own, self.decoder.config.vocab_size)
        for row in step.rows:
            self.scheduler.advance(row)
        tables = [sequence.block_table for sequence in self.scheduler.running]
        self.allocator.check_integrity([*tables, *self.held])
        return {row.sequence.id: out for row, out in zip(batch.sampled_rows, logits, strict=True)}

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Compute the logits after each of the ids, token by token: [len(ids), vocab_size]."""
        sequence = TokenSequence(0, [ids[0]], SamplingParams())
        self.scheduler.add(sequence)
        rows = [self.step()[0]]
        for token in ids[1:]:
            sequence.tokens.append(token)
            rows.append(self.step()[0])
        self.scheduler.remove(sequence)
        return torch.stack(rows)

    def last_logits(self, ids: Sequence[int], sequence_id: int = 0) -> torch.Tensor:
        """Compute the logits after the last id by chunked prefill; the prefix stays cached."""
        sequence = TokenSequence(sequence_id, list(ids), SamplingParams())
        self.scheduler.add(sequence)
        result: dict[int, torch.Tensor] = {}
        while sequence_id not in result:
            result = self.step()
        self.scheduler.remove(sequence)
        return result[sequence_id]


def engine(folder: Path, **config: Any) -> Engine:
    settings = {"device": "cpu", "dtype": "float32", "block_size": BLOCK_SIZE, **config}
    return build_engine(folder, EngineConfig(**settings))


def run(
    engine: Engine, prompts: dict[int, Sequence[int]], params: SamplingParams
) -> tuple[dict[int, list[int]], dict[int, Finished | SwiftchatError]]:
    """Generate for all prompts together; return ids and final events by generation id."""
    ids: dict[int, list[int]] = {key: [] for key in prompts}
    ends: dict[int, Finished | SwiftchatError] = {}
    for key, prompt in prompts.items():
        engine.add(key, list(prompt), params)
    while engine.has_work:
        for key, event in engine.step():
            engine.scheduler.check_integrity()
            if key not in prompts:
                continue
            if isinstance(event, Tokens):
                ids[key] += event.ids
            elif isinstance(event, Finished | SwiftchatError):
                ends[key] = event
    return ids, ends


def logprobs(
    engine: Engine, prompt: Sequence[int], params: SamplingParams
) -> tuple[list[int], list[Logprob]]:
    """Generate together with the engine's other generations; return ids and their logprobs."""
    engine.add(1, list(prompt), params)
    ids: list[int] = []
    found: list[Logprob] = []
    while engine.has_work:
        for key, event in engine.step():
            if key == 1 and isinstance(event, Tokens):
                ids += event.ids
                found += event.logprobs
    return ids, found
