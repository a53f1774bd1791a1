"""GPT-2 as OpenAI published it: TensorFlow's checkpoint, `hparams.json` and the vocabulary.

Names of tensors and hyperparameters are those of OpenAI's own program (gpt-2, `src/model.py`);
what they compute is in "Language Models are Unsupervised Multitask Learners" (Radford et al.).
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.tensors import canonical_tensors, expected_tensors, tensor_name
from swiftchat.weights.files.reading import read_json
from swiftchat.weights.formats.tensorflow_checkpoint import read_tensorflow_checkpoint
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.sources.merging import by_rows
from swiftchat.weights.sources.plan import WIRE_NAMES, Floats, Plan, json_bytes

__all__ = ["is_openai_gpt2", "plan"]

_SETTINGS = "hparams.json"
_NEWEST = "checkpoint"
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
    """Whether the directory has the files OpenAI published of a GPT-2."""
    return (source / _SETTINGS).is_file() and any(source.glob("*.index"))


def plan(source: Path, dtype: str | None) -> Plan:
    """What a conversion of `source` would write; `dtype` None keeps its own, float32.

    Of several checkpoints the one that `checkpoint` names is taken. The tokenizer's files are
    the same under the names of Hugging Face.

    Raises `BadModelFile` when `hparams.json` describes no GPT-2, for a tensor that is missing or
    misshapen, and for a damaged checkpoint.
    """
    index = _index(source)
    checkpoint = Checkpoint(source, read_tensorflow_checkpoint(index))
    files = _tokenizer_files(source)
    said = _config_json(source, dtype or "float32", _end_id(source))
    try:
        config = ModelConfig.from_hf(said)
    except BadModelFile as error:
        raise BadModelFile(
            f"{source / _SETTINGS} describes no model: {error.message}", error.hint
        ) from error
    shapes = expected_tensors(config)
    theirs = {}
    for canonical, layer, _ in canonical_tensors(config):
        name = tensor_name(config, canonical, layer)
        theirs[name] = _NAMES[canonical].format(i=layer)
        _check(index, checkpoint, theirs[name], shapes[name])

    def values(name: str) -> Iterator[Floats]:
        return by_rows([checkpoint.read(theirs[name]).reshape(shapes[name])])

    written = {"config.json": json_bytes(said), **files}
    sources = [source / _SETTINGS, index, *{info.file for info in checkpoint.tensors.values()}]
    return Plan(written, shapes, dtype or "float32", values, sources, checkpoint.release_pages)


def _index(source: Path) -> Path:
    found = sorted(source.glob("*.index"))
    newest = source / _NEWEST
    if len(found) == 1:
        return found[0]
    if not newest.is_file():
        raise BadModelFile(f"{source}: {len(found)} checkpoints, and {_NEWEST} is missing")
    # A line of a text message: model_checkpoint_path: "NAME"
    text = newest.read_bytes()[:4096].decode(errors="replace")
    match = re.search(r'^model_checkpoint_path:\s*"([^"]*)"', text, re.MULTILINE)
    name = match[1] if match else ""
    if source / f"{name}.index" not in found:
        raise BadModelFile(f"{newest}: names {name[:80]!r}, which is none of the checkpoints here")
    return source / f"{name}.index"


def _check(index: Path, checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> None:
    info = checkpoint.tensors.get(name)
    if info is None:
        raise BadModelFile(f"{index}: no tensor {name}: expected {list(shape)}")
    # Matrices have a first dimension of one: they are written as convolutions.
    if info.shape not in (shape, (1, *shape)) or info.dtype not in WIRE_NAMES.values():
        raise BadModelFile(
            f"{index}: tensor {name}: expected {list(shape)} of floats, "
            f"found {list(info.shape)} of {info.dtype}"
        )


def _config_json(source: Path, dtype: str, end_id: int | None) -> dict[str, Any]:
    said = read_json(source / _SETTINGS)
    unknown = [name for name in said if name not in _FIELDS]
    if unknown:
        raise BadModelFile(f"{source / _SETTINGS}: the field {unknown[0][:80]} is unknown")
    missing = [name for name in _FIELDS if name not in said]
    if missing:
        raise BadModelFile(f"{source / _SETTINGS}: {missing[0]} is missing")
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": said["n_vocab"],
        "n_positions": said["n_ctx"],
        "n_embd": said["n_embd"],
        "n_head": said["n_head"],
        "n_layer": said["n_layer"],
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": end_id,
        "eos_token_id": end_id,
        "torch_dtype": dtype,
    }


def _end_id(source: Path) -> int | None:
    """The id of the token that separates texts; None where there is no vocabulary."""
    if not (source / "encoder.json").is_file():
        return None
    found = read_json(source / "encoder.json").get(_END_OF_TEXT)
    return found if isinstance(found, int) else None


def _tokenizer_files(source: Path) -> dict[str, bytes]:
    encoder, merges = source / "encoder.json", source / "vocab.bpe"
    if not (encoder.is_file() and merges.is_file()):
        return {}
    said = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}
    said |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), _END_OF_TEXT)
    return {
        "vocab.json": encoder.read_bytes(),
        "merges.txt": merges.read_bytes(),
        "tokenizer_config.json": json_bytes(said),
    }
