"""GPT-2 as published by OpenAI: a TensorFlow checkpoint, `hparams.json` and the vocabulary.

Tensor and hyperparameter names are those of OpenAI's program (gpt-2, `src/model.py`). The model
is described in "Language Models are Unsupervised Multitask Learners" (Radford et al., 2019).
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.tensors import canonical_tensors, expected_tensors, tensor_name
from swiftchat.weights.files.reading import encode_json, read_json, read_side_file
from swiftchat.weights.formats.arrays import Floats
from swiftchat.weights.formats.tensorflow_checkpoint import read_tensorflow_checkpoint
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.quantization.rounding import WIRE_NAMES
from swiftchat.weights.sources.plan import Plan, parse_config
from swiftchat.weights.sources.sharded import chunks_of_rows

_HPARAMS = "hparams.json"
_LATEST = "checkpoint"
_END_OF_TEXT = "<|endoftext|>"
_FIELDS = ("n_vocab", "n_ctx", "n_embd", "n_head", "n_layer")
_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "embed": "model/wte",
        "positions": "model/wpe",
        "final_norm": "model/ln_f/g",
        "final_norm_bias": "model/ln_f/b",
        "attn_norm": "model/h{i}/ln_1/g",
        "attn_norm_bias": "model/h{i}/ln_1/b",
        "mlp_norm": "model/h{i}/ln_2/g",
        "mlp_norm_bias": "model/h{i}/ln_2/b",
        "qkv": "model/h{i}/attn/c_attn/w",
        "qkv_bias": "model/h{i}/attn/c_attn/b",
        "o": "model/h{i}/attn/c_proj/w",
        "o_bias": "model/h{i}/attn/c_proj/b",
        "up": "model/h{i}/mlp/c_fc/w",
        "up_bias": "model/h{i}/mlp/c_fc/b",
        "down": "model/h{i}/mlp/c_proj/w",
        "down_bias": "model/h{i}/mlp/c_proj/b",
    }
)


def is_openai_gpt2(source: Path) -> bool:
    """Return whether the directory has the files of OpenAI's GPT-2."""
    return (source / _HPARAMS).is_file() and any(source.glob("*.index"))


def plan(source: Path, dtype: str | None) -> Plan:
    """Plan the conversion of `source`; `dtype` None: float32, its own.

    Takes the one of several checkpoints that the file `checkpoint` names. The tokenizer files are
    copied under Hugging Face's names.

    Raises `BadModelFile` if `hparams.json` describes no GPT-2, for a tensor that is missing or
    has the wrong shape, and for a damaged checkpoint.
    """
    index = _index(source)
    dtype = dtype or "float32"
    checkpoint = Checkpoint(source, read_tensorflow_checkpoint(index))
    config_json = _config_json(source, dtype, _end_id(source))
    config = parse_config(config_json, str(source / _HPARAMS))
    shapes = expected_tensors(config)
    stored_names = {}
    for canonical, layer, _ in canonical_tensors(config):
        name = tensor_name(config, canonical, layer)
        stored_names[name] = _NAMES[canonical].format(i=layer)
        _check(index, checkpoint, stored_names[name], shapes[name])

    def chunks(name: str) -> Iterator[Floats]:
        return chunks_of_rows([checkpoint.read(stored_names[name]).reshape(shapes[name])])

    files = {"config.json": encode_json(config_json), **_tokenizer_files(source)}
    sources = [source / _HPARAMS, index, *sorted({i.file for i in checkpoint.tensors.values()})]
    return Plan(files, shapes, dtype, chunks, sources, checkpoint.release_pages)


def _index(source: Path) -> Path:
    found = sorted(source.glob("*.index"))
    latest = source / _LATEST
    if len(found) == 1:
        return found[0]
    if not latest.is_file():
        raise BadModelFile(f"{source}: {len(found)} checkpoints, and {_LATEST} is missing")
    # A line of a protobuf text message: model_checkpoint_path: "NAME"
    text = read_side_file(latest)[:4096].decode(errors="replace")
    match = re.search(r'^model_checkpoint_path:\s*"([^"]*)"', text, re.MULTILINE)
    name = match[1] if match else ""
    if source / f"{name}.index" not in found:
        raise BadModelFile(f"{latest}: there is no checkpoint {name[:80]!r} beside it")
    return source / f"{name}.index"


def _check(index: Path, checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> None:
    info = checkpoint.tensors.get(name)
    if info is None:
        raise BadModelFile(f"{index}: no tensor {name}: expected {list(shape)}")
    # Matrices are stored as convolutions, with a first axis of size one.
    if info.shape not in (shape, (1, *shape)) or info.dtype not in WIRE_NAMES.values():
        raise BadModelFile(
            f"{index}: tensor {name}: expected {list(shape)} of floats, "
            f"found {list(info.shape)} of {info.dtype}"
        )


def _config_json(source: Path, dtype: str, end_id: int | None) -> dict[str, Any]:
    hparams = read_json(source / _HPARAMS)
    unknown = [name for name in hparams if name not in _FIELDS]
    if unknown:
        raise BadModelFile(f"{source / _HPARAMS}: the field {unknown[0][:80]} is unknown")
    missing = [name for name in _FIELDS if name not in hparams]
    if missing:
        raise BadModelFile(f"{source / _HPARAMS}: {missing[0]} is missing")
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": hparams["n_vocab"],
        "n_positions": hparams["n_ctx"],
        "n_embd": hparams["n_embd"],
        "n_head": hparams["n_head"],
        "n_layer": hparams["n_layer"],
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": end_id,
        "eos_token_id": end_id,
        "torch_dtype": dtype,
    }


def _end_id(source: Path) -> int | None:
    """Return the id of <|endoftext|>, or None without a vocabulary."""
    if not (source / "encoder.json").is_file():
        return None
    found = read_json(source / "encoder.json").get(_END_OF_TEXT)
    return found if isinstance(found, int) else None


def _tokenizer_files(source: Path) -> dict[str, bytes]:
    encoder, merges = source / "encoder.json", source / "vocab.bpe"
    if not (encoder.is_file() and merges.is_file()):
        return {}
    config = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}
    config |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), _END_OF_TEXT)
    return {
        "vocab.json": read_side_file(encoder),
        "merges.txt": read_side_file(merges),
        "tokenizer_config.json": encode_json(config),
    }
