"""A model directory in Hugging Face's layout, opened without reading its weights."""

import dataclasses
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from swiftchat.errors import BadModelFile, ModelNotFound
from swiftchat.errors.regular_file import open_regular
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.multimodal import MULTIMODAL, multimodal_class
from swiftchat.weights.architectures.parts.fields import token_ids
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import expected_tensors
from swiftchat.weights.files.reading import read_json
from swiftchat.weights.formats.tensor_info import ITEM_BYTES
from swiftchat.weights.gguf.source import GgufSource, gguf_file_of
from swiftchat.weights.model.separate_head import has_separate_head
from swiftchat.weights.quantization.settings_files import split_settings

# The modules that read weights are imported where they are used: they need numpy, which takes
# 0.1 s, and a chat with a running engine opens no weights.
if TYPE_CHECKING:
    from swiftchat.weights.model.checkpoint import Checkpoint
    from swiftchat.weights.parallel.tensor_parallel import Shard
    from swiftchat.weights.quantization.stored_tensor import StoredTensor

_MAX_CARD_BYTES = 1 << 16
_MAX_VOCAB_SIZE = 1 << 31


class Model:
    """A directory with `config.json` and weights; created by `open`.

    As in transformers, the end tokens of `generation_config.json` replace those of `config.json`
    in `config.eos_ids`. `quantization_config` are the settings of a quantized model, else None.
    `has_separate_head`: config.json ties the embeddings, but the files do not. `declared_class`
    is the class in config.json if `config` is computed by another one: that of a multimodal model
    of which this is only the language model, or one that is not known.
    """

    def __init__(
        self,
        path: Path,
        config: ModelConfig,
        generation_config: dict[str, Any],
        tokenizer_config: dict[str, Any],
        quantization_config: Mapping[str, Any] | None = None,
        *,
        has_separate_head: bool = False,
        declared_class: str | None = None,
    ) -> None:
        self.path = path
        self.config = config
        self.generation_config = generation_config
        self.tokenizer_config = tokenizer_config
        self.quantization_config = quantization_config
        self.has_separate_head = has_separate_head
        self.declared_class = declared_class

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read the JSON files of the directory `path`.

        Raises `ModelNotFound` if the directory does not exist, `BadModelFile` if it is not a
        model or a file is damaged.
        """
        if not path.is_dir():
            raise ModelNotFound(f"no model directory {path}")
        if not (path / "config.json").is_file():
            raise BadModelFile(f"{path} is not a model directory: config.json is missing")
        config_json, quantization_config = split_settings(path, read_json(path / "config.json"))
        config = read_model_config(config_json)
        generation = _read_optional(path / "generation_config.json")
        eos_ids = [i for i in _generation_eos_ids(generation) if i < config.vocab_size]
        if eos_ids:
            config = dataclasses.replace(config, eos_ids=tuple(eos_ids))
        has_own_head = config.head.tied and has_separate_head(path, config, quantization_config)
        if has_own_head:
            config = dataclasses.replace(config, head=dataclasses.replace(config.head, tied=False))
        tokenizer = _read_optional(path / "tokenizer_config.json")
        return cls(
            path,
            config,
            generation,
            tokenizer,
            quantization_config,
            has_separate_head=has_own_head,
            declared_class=_declared_class(config_json),
        )

    def checkpoint(self, shard: "Shard | None" = None) -> "Checkpoint":
        """Open the weights and check them against the config.

        `shard` selects the rank of files per rank. Raises as `Checkpoint.open` and `check` do, and
        as `gguf_file_of` for a GGUF file that has changed.
        """
        from swiftchat.weights.model.checkpoint import Checkpoint

        if (gguf_file := gguf_file_of(self.path)) is not None:
            # Imported here: most models need no code for GGUF.
            from swiftchat.weights.model.gguf_checkpoint import GgufCheckpoint

            return GgufCheckpoint.of_file(gguf_file, self.config)
        checkpoint = Checkpoint.open(self.path, shard)
        if self.quantization_config is None:
            checkpoint.check(self.config)
        else:
            checkpoint.check_quantized(self.config, self.quantization_config)
        return checkpoint

    @property
    def notes(self) -> tuple[str, ...]:
        """What the model's files say and this program leaves out, as transformers does."""
        config, notes = self.config, []
        if config.ignored_keys:
            names = ", ".join(config.ignored_keys)
            notes.append(f"config.json: no effect in {config.architecture}: {names}")
        if self.declared_class in MULTIMODAL:
            notes.append(
                f"only the language model of {self.declared_class} is supported: "
                "tensors of its vision and audio parts are skipped"
            )
        elif self.declared_class is not None:
            notes.append(
                f"config.json names the class {self.declared_class}, which is not known: "
                f"the model is computed as {config.architecture}, because of its model_type"
            )
        if self.has_separate_head:
            notes.append("the files have an output matrix of their own: embeddings are not tied")
        source = GgufSource.read(self.path)
        notes += () if source is None else source.notes
        for token_id in _generation_eos_ids(self.generation_config):
            if token_id >= config.vocab_size:
                notes.append(
                    f"generation_config.json: eos_token_id {token_id} is ignored: "
                    f"the vocabulary has {config.vocab_size} tokens"
                )
        return tuple(notes)

    @property
    def location(self) -> Path:
        """The GGUF file that holds the weights, or the model directory."""
        source = GgufSource.read(self.path)
        return self.path if source is None else source.files[0]

    @cached_property
    def num_parameters(self) -> int:
        """The number of parameters; tied embeddings count once."""
        return sum(math.prod(shape) for shape in expected_tensors(self.config).values())

    @cached_property
    def weights_bytes(self) -> int:
        """Stored bytes of the model's tensors."""
        return sum(nbytes for _, nbytes in self.stored_tensors.values())

    @cached_property
    def stored_tensors(self) -> Mapping[str, tuple[str, int]]:
        """Dtype or quantized format, and bytes, of every whole tensor by name."""
        from swiftchat.weights.parallel.rank_files import stored_tp_size
        from swiftchat.weights.parallel.tensor_parallel import shard_of

        size = stored_tp_size(self.path)
        # Every rank has a slice of every tensor.
        checkpoint = self.checkpoint(shard_of(self.config, size, 0) if size else None)
        tensors = checkpoint.tensors

        def stored(name: str, shape: tuple[int, ...]) -> tuple[str, int]:
            if name in checkpoint.quantized:
                return checkpoint.quantized[name].format, checkpoint.nbytes(name)
            dtype = tensors[name].dtype
            return dtype, math.prod(shape) * ITEM_BYTES[dtype]

        return {name: stored(name, s) for name, s in expected_tensors(self.config).items()}

    @cached_property
    def quantized_tensors(self) -> "Mapping[str, StoredTensor]":
        """The quantized tensors by name."""
        return {} if self.quantization_config is None else self.checkpoint().quantized

    @cached_property
    def license(self) -> str | None:
        """The `license:` in the front matter of the model card (README.md), or None."""
        card = self.path / "README.md"
        if not card.is_file():
            return None
        with open_regular(card) as file:
            lines = file.read(_MAX_CARD_BYTES).decode("utf-8", "replace").splitlines()
        if not lines or lines[0].strip() != "---":
            return None
        for line in lines[1:]:
            if line.strip() == "---":
                return None
            key, _, value = line.partition(":")
            if key == "license":
                return value.strip().strip("\"'") or None
        return None


def _declared_class(config_json: Mapping[str, Any]) -> str | None:
    """Return the class in `config.json` if another one computes the model."""
    names = config_json.get("architectures") or []  # checked
    if any(name in ARCHITECTURES for name in names):
        return None
    return multimodal_class(config_json) or next(iter(names), None)


def _generation_eos_ids(generation_config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the end tokens of `generation_config.json`, which may be outside the vocabulary."""
    try:
        return token_ids(generation_config, "eos_token_id", _MAX_VOCAB_SIZE)
    except BadModelFile as error:
        problem = str(error).removeprefix("config.json: ")
        raise BadModelFile(f"generation_config.json: {problem}", error.hint) from None


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
