"""A Llama of transformers in the checkpoint layouts of other programs, from their descriptions."""

import argparse
import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers

from tests.support.gguf.tiny import rows_for_gguf

Llama = transformers.LlamaForCausalLM
State = dict[str, torch.Tensor]


def write_bin(folder: Path, model: Llama, shards: int = 1, *, zipped: bool = True) -> None:
    """Write `pytorch_model.bin`, one or several with an index, as old `save_pretrained` did."""
    model.config.architectures = ["LlamaForCausalLM"]
    model.config.save_pretrained(folder)
    state = OrderedDict((name, tensor.clone()) for name, tensor in model.state_dict().items())
    if model.config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    if shards == 1:
        file = folder / "pytorch_model.bin"
        torch.save(state, file, _use_new_zipfile_serialization=zipped)
        return
    names = list(state)
    weight_map = {}
    for shard in range(shards):
        file = f"pytorch_model-{shard + 1:05}-of-{shards:05}.bin"
        part = {name: torch.nn.Parameter(state[name]) for name in names[shard::shards]}
        torch.save(part, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def _interleaved(matrix: torch.Tensor, heads: int) -> torch.Tensor:
    # numpy has no bfloat16; the bits are moved as integers.
    bits = matrix.view(torch.int16 if matrix.element_size() == 2 else torch.int32)
    return torch.from_numpy(rows_for_gguf(bits.numpy(), heads)).view(matrix.dtype)


def write_meta(
    folder: Path,
    model: Llama,
    parts: int = 1,
    *,
    embed_rows: bool = False,
    params: dict[str, Any] | None = None,
) -> None:
    """Write `params.json` and `consolidated.NN.pth`; `params` changes or (None) removes entries."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    content = {
        "dim": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads,
        "norm_eps": config.rms_norm_eps,
        "vocab_size": -1,
        "multiple_of": 32,
        "rope_theta": config.rope_parameters["rope_theta"],
        **(params or {}),
    }
    content = {name: value for name, value in content.items() if value is not None}
    (folder / "params.json").write_text(json.dumps(content))
    for part in range(parts):
        state = _meta_part(model, part, parts, embed_rows)
        state["rope.freqs"] = torch.ones(config.head_dim // 2)
        torch.save(state, folder / f"consolidated.{part:02}.pth")


def _meta_part(model: Llama, part: int, parts: int, embed_rows: bool) -> State:
    config, state = model.config, model.state_dict()

    def rows(name: str, heads: int = 0) -> torch.Tensor:
        whole = _interleaved(state[name], heads) if heads else state[name]
        return whole.chunk(parts, 0)[part].clone()

    def columns(name: str) -> torch.Tensor:
        return state[name].chunk(parts, 1)[part].clone()

    embed = "model.embed_tokens.weight"
    found = {
        "tok_embeddings.weight": rows(embed) if embed_rows else columns(embed),
        "norm.weight": state["model.norm.weight"],
        "output.weight": rows("lm_head.weight"),
    }
    for i in range(config.num_hidden_layers):
        target, source = f"layers.{i}.", f"model.layers.{i}."
        found |= {
            f"{target}attention.wq.weight": rows(
                f"{source}self_attn.q_proj.weight", config.num_attention_heads
            ),
            f"{target}attention.wk.weight": rows(
                f"{source}self_attn.k_proj.weight", config.num_key_value_heads
            ),
            f"{target}attention.wv.weight": rows(f"{source}self_attn.v_proj.weight"),
            f"{target}attention.wo.weight": columns(f"{source}self_attn.o_proj.weight"),
            f"{target}feed_forward.w1.weight": rows(f"{source}mlp.gate_proj.weight"),
            f"{target}feed_forward.w2.weight": columns(f"{source}mlp.down_proj.weight"),
            f"{target}feed_forward.w3.weight": rows(f"{source}mlp.up_proj.weight"),
            f"{target}attention_norm.weight": state[f"{source}input_layernorm.weight"],
            f"{target}ffn_norm.weight": state[f"{source}post_attention_layernorm.weight"],
        }
    return found


def write_megatron(
    folder: Path,
    model: Llama,
    tp: int = 1,
    pp: int = 1,
    *,
    core: bool = True,
    padded_vocab: int | None = None,
    args: dict[str, Any] | None = None,
) -> None:
    """Write `iter_0000010/mp_rank_TT[_PPP]` with the names of Megatron-Core or the older ones."""
    config = model.config
    arguments = argparse.Namespace(
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        ffn_hidden_size=config.intermediate_size,
        kv_channels=config.head_dim,
        num_attention_heads=config.num_attention_heads,
        group_query_attention=True,
        num_query_groups=config.num_key_value_heads,
        norm_epsilon=config.rms_norm_eps,
        max_position_embeddings=config.max_position_embeddings,
        swiglu=True,
        normalization="RMSNorm",
        position_embedding_type="rope",
        rotary_percent=1.0,
        rotary_base=int(config.rope_parameters["rope_theta"]),
        params_dtype=torch.float32,
        untie_embeddings_and_output_weights=not config.tie_word_embeddings,
        add_bias_linear=config.attention_bias,
        vocab_size=config.vocab_size,
        padded_vocab_size=padded_vocab or config.vocab_size,
    )
    vars(arguments).update(args or {})
    (folder / "iter_0000010").mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("10")
    for stage in range(pp):
        for rank in range(tp):
            part = _MegatronRank(model, rank, tp, padded_vocab or config.vocab_size)
            table = part.stage(stage, pp, core)
            name = f"mp_rank_{rank:02}" + (f"_{stage:03}" if pp > 1 else "")
            content = {
                "args": arguments,
                "checkpoint_version": 3.0,
                "iteration": 10,
                "model": table,
                "rng_state": [{"np": torch.ones(2).numpy()}],
            }
            (folder / "iter_0000010" / name).mkdir()
            torch.save(content, folder / "iter_0000010" / name / "model_optim_rng.pt")


class _MegatronRank:
    """The tensors of one tensor-parallel rank."""

    def __init__(self, model: Llama, rank: int, tp: int, padded_vocab: int) -> None:
        self._config, self._state = model.config, model.state_dict()
        self._rank, self._tp, self._padded_vocab = rank, tp, padded_vocab

    def stage(self, stage: int, pp: int, core: bool) -> dict[str, Any]:
        per_stage = self._config.num_hidden_layers // pp
        layers: State = {}
        for local in range(per_stage):
            layers |= self._layer(local, stage * per_stage + local, core)
        embedding = self._vocab("model.embed_tokens.weight")
        last = stage == pp - 1
        final = {"final_layernorm.weight": self._state["model.norm.weight"]} if last else {}
        tied = self._config.tie_word_embeddings
        output = {"output_layer.weight": self._vocab("lm_head.weight")} if last else {}
        if core:
            found = {f"decoder.{name}": tensor for name, tensor in {**layers, **final}.items()}
            if stage == 0:
                found["embedding.word_embeddings.weight"] = embedding
            return found | ({} if tied else output)
        nested: dict[str, Any] = {"encoder": {**layers, **final}}
        if stage == 0:
            nested["embedding"] = {"word_embeddings": {"weight": embedding}}
        if last and not tied:
            nested["output_layer"] = {"weight": output["output_layer.weight"]}
        return {"language_model": nested}

    def _shard(self, whole: torch.Tensor, axis: int) -> torch.Tensor:
        return whole.chunk(self._tp, axis)[self._rank].clone()

    def _vocab(self, name: str) -> torch.Tensor:
        rows = self._state[name]
        padding = rows.new_full((self._padded_vocab - len(rows), rows.shape[1]), 7.0)
        return self._shard(torch.cat([rows, padding]), 0)

    def _layer(self, local: int, layer: int, core: bool) -> State:
        found = {}
        names = _CORE_NAMES if core else _LEGACY_NAMES
        prefix = f"model.layers.{layer}."
        for ending in ("weight", "bias"):
            if f"{prefix}self_attn.q_proj.{ending}" not in self._state:
                continue
            qkv, gate_up = self._qkv(prefix, ending), self._gate_up(prefix, ending)
            rows = {names["qkv"]: qkv, names["fc1"]: gate_up}
            for ours, theirs in ((names["o"], "self_attn.o_proj"), (names["fc2"], "mlp.down_proj")):
                whole = self._state[f"{prefix}{theirs}.{ending}"]
                rows[ours] = self._shard(whole, 1) if ending == "weight" else whole
            found |= {f"layers.{local}.{name}.{ending}": value for name, value in rows.items()}
        for ours, theirs in (("n1", "input_layernorm"), ("n2", "post_attention_layernorm")):
            found[f"layers.{local}.{names[ours]}"] = self._state[f"{prefix}{theirs}.weight"]
        return found

    def _qkv(self, prefix: str, ending: str) -> torch.Tensor:
        groups = self._config.num_key_value_heads
        q, k, v = (
            self._state[f"{prefix}self_attn.{name}_proj.{ending}"].unflatten(
                0, (groups, -1, self._config.head_dim)
            )
            for name in "qkv"
        )
        return self._shard(torch.cat([q, k, v], 1), 0).flatten(0, 2)

    def _gate_up(self, prefix: str, ending: str) -> torch.Tensor:
        halves = (self._state[f"{prefix}mlp.{name}_proj.{ending}"] for name in ("gate", "up"))
        return torch.cat([self._shard(half, 0) for half in halves])


_CORE_NAMES = {
    "qkv": "self_attention.linear_qkv",
    "o": "self_attention.linear_proj",
    "fc1": "mlp.linear_fc1",
    "fc2": "mlp.linear_fc2",
    "n1": "self_attention.linear_qkv.layer_norm_weight",
    "n2": "mlp.linear_fc1.layer_norm_weight",
}
_LEGACY_NAMES = {
    "qkv": "self_attention.query_key_value",
    "o": "self_attention.dense",
    "fc1": "mlp.dense_h_to_4h",
    "fc2": "mlp.dense_4h_to_h",
    "n1": "input_norm.weight",
    "n2": "post_attention_norm.weight",
}


def split_gguf(path: Path, parts: int, *, changes: dict[str, int] | None = None) -> Path:
    """Split the GGUF file `path` into files beside it; return the first. `changes`: metadata."""
    whole = gguf.GGUFReader(path)
    writers = []
    for part in range(parts):
        writer = gguf.GGUFWriter(
            path.with_name(f"{path.stem}-{part + 1:05}-of-{parts:05}.gguf"), "llama"
        )
        metadata = {
            "split.no": part,
            "split.count": parts,
            "split.tensors.count": len(whole.tensors),
        }
        for key, value in {**metadata, **(changes or {})}.items():
            writer.add_uint16(key, value)
        writers.append(writer)
    for key, field in whole.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            kind, *inner = field.types
            writers[0].add_key_value(key, field.contents(), kind, *inner[:1])
    for number, tensor in enumerate(whole.tensors):
        writers[number * parts // len(whole.tensors)].add_tensor(
            tensor.name, tensor.data, raw_dtype=tensor.tensor_type
        )
    for writer in writers:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return Path(path.with_name(f"{path.stem}-00001-of-{parts:05}.gguf"))
