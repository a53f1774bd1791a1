"""A writer of GPT-2 models in Megatron-LM's checkpoint layout."""

import argparse
from pathlib import Path
from typing import Any

import torch
import transformers

State = dict[str, torch.Tensor]


def tiny_gpt2(**changes: Any) -> transformers.GPT2LMHeadModel:
    """Return a random GPT-2 whose sizes are divisible by 4 ranks."""
    sizes = {
        "vocab_size": 104,
        "n_embd": 64,
        "n_layer": 4,
        "n_head": 8,
        "n_positions": 128,
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    torch.manual_seed(5)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "ln_" in name:
            torch.nn.init.normal_(parameter, mean=float("ln_" in name), std=0.2)
    return model.requires_grad_(False)


_OLDEST = {
    "qkv": "attention.query_key_value",
    "o": "attention.dense",
    "fc1": "mlp.dense_h_to_4h",
    "fc2": "mlp.dense_4h_to_h",
    "n1": "input_layernorm.",
    "n2": "post_attention_layernorm.",
}
_CORE = {
    "qkv": "self_attention.linear_qkv",
    "o": "self_attention.linear_proj",
    "fc1": "mlp.linear_fc1",
    "fc2": "mlp.linear_fc2",
    "n1": "self_attention.linear_qkv.layer_norm_",
    "n2": "mlp.linear_fc1.layer_norm_",
}


def write_megatron_gpt2(
    folder: Path,
    model: transformers.GPT2LMHeadModel,
    tp: int = 1,
    pp: int = 1,
    *,
    version: float | None = 3.0,
    core: bool = False,
    padded_vocab: int | None = None,
    args: dict[str, Any] | None = None,
) -> None:
    """Write the folders `mp_rank_TT[_PPP]` of checkpoint `version`; None: absent, meaning 0."""
    config = model.config
    arguments = argparse.Namespace(
        num_layers=config.n_layer,
        hidden_size=config.n_embd,
        num_attention_heads=config.n_head,
        max_position_embeddings=config.n_positions,
        layernorm_epsilon=config.layer_norm_epsilon,
        bias_gelu_fusion=config.activation_function == "gelu_new",
        vocab_size=config.vocab_size,
        add_bias_linear=True,
        swiglu=False,
        position_embedding_type="learned_absolute",
        untie_embeddings_and_output_weights=not config.tie_word_embeddings,
    )
    vars(arguments).update(args or {})
    for stage in range(pp):
        for rank in range(tp):
            rank_state = _RankState(
                model, rank, tp, version or 0, padded_vocab or config.vocab_size
            )
            content = {
                "args": arguments,
                "iteration": 10,
                "model": rank_state.stage(stage, pp, core),
            }
            if version is not None:
                content["checkpoint_version"] = version
            name = f"mp_rank_{rank:02}" + (f"_{stage:03}" if pp > 1 else "")
            (folder / name).mkdir(parents=True)
            torch.save(content, folder / name / "model_optim_rng.pt")


class _RankState:
    """The state of one tensor-parallel rank."""

    def __init__(
        self,
        model: transformers.GPT2LMHeadModel,
        rank: int,
        tp: int,
        version: float,
        padded_vocab: int,
    ) -> None:
        self._config, self._state = model.config, model.state_dict()
        self._rank, self._tp, self._version = rank, tp, version
        self._padded_vocab = padded_vocab

    def stage(self, stage: int, pp: int, core: bool) -> dict[str, Any]:
        per_stage = self._config.n_layer // pp
        layers: State = {}
        for local in range(per_stage):
            layers |= self._layer(local, stage * per_stage + local, _CORE if core else _OLDEST)
        embedding: dict[str, Any] = {}
        if stage == 0:
            embedding = {
                "word_embeddings": {"weight": self._vocab("transformer.wte.weight")},
                "position_embeddings": {"weight": self._state["transformer.wpe.weight"]},
            }
        output = {}
        if stage == pp - 1:
            for kind in ("weight", "bias"):
                layers[f"final_layernorm.{kind}"] = self._state[f"transformer.ln_f.{kind}"]
            if not self._config.tie_word_embeddings:
                output = {"output_layer": {"weight": self._vocab("lm_head.weight")}}
        if core:
            # Transformer Engine adds such an entry for each of its layers.
            layers["layers.0.mlp.linear_fc1._extra_state"] = torch.ones(3, dtype=torch.uint8)
            return {"decoder": layers, "embedding": embedding, **output}
        return {"language_model": {"transformer": layers, "embedding": embedding, **output}}

    def _shard_of(self, whole: torch.Tensor, axis: int = 0) -> torch.Tensor:
        return whole.chunk(self._tp, axis)[self._rank].clone()

    def _vocab(self, name: str) -> torch.Tensor:
        rows = self._state[name]
        padding = torch.full((self._padded_vocab - len(rows), rows.shape[1]), 7.0)
        return self._shard_of(torch.cat([rows, padding]))

    def _layer(self, local: int, layer: int, names: dict[str, str]) -> State:
        found = {}
        there = f"transformer.h.{layer}."
        for kind in ("weight", "bias"):
            transposed = {
                name: self._state[f"{there}{full}.{kind}"].t().contiguous()
                for name, full in {
                    "qkv": "attn.c_attn",
                    "o": "attn.c_proj",
                    "fc1": "mlp.c_fc",
                    "fc2": "mlp.c_proj",
                }.items()
            }
            cut = {"qkv": self._qkv(transposed["qkv"]), "fc1": self._shard_of(transposed["fc1"])}
            for name in ("o", "fc2"):
                cut[name] = (
                    self._shard_of(transposed[name], 1) if kind == "weight" else transposed[name]
                )
            found |= {f"{names[name]}.{kind}": tensor for name, tensor in cut.items()}
            for name, full in (("n1", "ln_1"), ("n2", "ln_2")):
                found[f"{names[name]}{kind}"] = self._state[f"{there}{full}.{kind}"]
        return {f"layers.{local}.{name}": tensor for name, tensor in found.items()}

    def _qkv(self, whole: torch.Tensor) -> torch.Tensor:
        """Divide [3, heads, head size, …] by heads; their order depends on the version."""
        shard = self._shard_of(whole.unflatten(0, (3, self._config.n_head, -1)), 1)
        if self._version == 1:
            shard = shard.permute(1, 2, 0, *range(3, shard.ndim))
        elif self._version >= 2:
            shard = shard.transpose(0, 1)
        return shard.flatten(0, 2).contiguous()
