"""Soft prompts in the layout of PEFT: prompt tuning, p-tuning and prefix tuning.

Lester et al., 2021 (arXiv:2104.08691); Liu et al., 2021 (arXiv:2103.10385); Li and Liang, 2021
(arXiv:2101.00190). PEFT saves what its encoders have computed, so there is nothing left to encode.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.adapters.adapter import Read, content_digest
from swiftchat.weights.adapters.files import (
    CONFIG_FILE,
    OTHER_BASE,
    AdapterFiles,
    find_adapter,
    read_config,
)
from swiftchat.weights.adapters.peft import SOFT_PROMPT_TYPES, reject_unsupported
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.formats.arrays import Floats

_TENSOR = "prompt_embeddings"
_KNOWN_KEYS = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "encoder_dropout",
        "encoder_hidden_size",
        "encoder_num_layers",
        "encoder_reparameterization_type",
        "inference_mode",
        "init_weights",
        "num_attention_heads",
        "num_layers",
        "num_transformer_submodules",
        "num_virtual_tokens",
        "peft_type",
        "peft_version",
        "prefix_projection",
        "prompt_tuning_init",
        "prompt_tuning_init_text",
        "revision",
        "task_type",
        "token_dim",
        "tokenizer_kwargs",
        "tokenizer_name_or_path",
    }
)


@dataclass(frozen=True)
class SoftPrompt:
    """A checked soft prompt for one model: `count` virtual tokens before the prompt.

    `read` returns their embeddings [count, embedding size], or with `is_prefix` the keys and values
    of every layer [count, num_layers, 2, num_kv_heads, head_dim], keys with their rotation.
    """

    path: Path
    kind: str  # "prompt tuning", "p tuning", "prefix tuning"
    count: int
    is_prefix: bool
    read: Read
    files: tuple[Path, ...]

    @cached_property
    def digest(self) -> bytes:
        """The SHA-256 of all files."""
        return content_digest(self.files)


def open_soft_prompt(path: Path, config: ModelConfig) -> SoftPrompt:
    """Open the soft prompt in a directory and check it against the model; reads headers only.

    Raises `ModelNotFound` if there is none, `BadModelFile` if it is damaged, is not supported or
    belongs to another base model.
    """
    directory = find_adapter(path)
    if directory.is_file():
        raise BadModelFile(f"{path} is no soft prompt", f"it is an adapter: use --lora {path}")
    settings, place = read_config(directory), f"{directory / CONFIG_FILE}"
    kind = settings.get("peft_type")
    if kind not in SOFT_PROMPT_TYPES:
        raise BadModelFile(
            f"{place}: peft_type {str(kind)[:40]!r} is no soft prompt",
            "use --lora for LoRA adapters",
        )
    reject_unsupported(settings, _KNOWN_KEYS, place)
    if settings.get("num_transformer_submodules") not in (None, 1):
        raise BadModelFile(f"{place}: num_transformer_submodules is for another kind of model")
    if config.prefix_lm is not None or config.embeddings.width is not None:
        raise BadModelFile(f"{place}: soft prompts are not supported for {config.architecture}")
    files, count = AdapterFiles(directory), _count(settings, config, place)
    is_prefix = kind == "PREFIX_TUNING"
    if is_prefix and config.attention.latent is not None:
        raise BadModelFile(
            f"{place}: the model's KV cache holds latents, the soft prompt has keys and values"
        )
    each = (config.num_layers, 2, config.attention.num_kv_heads, config.attention.head_dim)
    width = config.hidden_size
    if is_prefix:
        width = each[0] * each[1] * each[2] * each[3]
    files.require(_TENSOR, (count, width), OTHER_BASE)

    def shaped(values: Floats) -> Floats:
        return values.reshape(count, *each) if is_prefix else values

    return SoftPrompt(
        path=directory,
        kind=str(kind).lower().replace("_", " "),
        count=count,
        is_prefix=is_prefix,
        read=files.reader(_TENSOR, shaped),
        files=(directory / CONFIG_FILE, files.file),
    )


def _count(settings: Mapping[str, Any], config: ModelConfig, place: str) -> int:
    count, most = settings.get("num_virtual_tokens"), config.max_context_tokens
    if type(count) is not int or not 0 < count < most:
        raise BadModelFile(
            f"{place}: num_virtual_tokens: expected 1 to {most - 1}, found {str(count)[:40]}"
        )
    return count
