"""What defines a tokenizer: what the files of a model directory say of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.core.pipeline import TokenizerPipeline
from swiftchat.tokenizer.huggingface.declared_tokens import DeclaredTokens
from swiftchat.tokenizer.huggingface.files import (
    parsed,
    parsed_object,
    text_of,
    vocabulary_name,
)
from swiftchat.tokenizer.huggingface.merges import class_defaults, merges_pipeline
from swiftchat.tokenizer.huggingface.tekken import TEKKEN_NAMES, is_tekken, tekken_pipeline
from swiftchat.tokenizer.huggingface.tiktoken import (
    is_tiktoken,
    rank_file_names,
    tiktoken_pipeline,
)
from swiftchat.tokenizer.huggingface.tokenizer_json import own_tokens, tokenizer_json_pipeline
from swiftchat.tokenizer.template.files import named_templates, template_files


@dataclass(frozen=True)
class TokenizerDefinition:
    """A checked vocabulary with its algorithm, and what other files add to it.

    `named_tokens` maps roles (`bos_token`, …) to token texts, `templates` names to sources of chat
    templates. `more_eos_ids` also end an answer.
    """

    pipeline: TokenizerPipeline
    named_tokens: Mapping[str, str]
    templates: Mapping[str, str]
    more_eos_ids: tuple[int, ...]

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Self:
        """Read the contents of a model directory's files, by name; see `Tokenizer.load`."""
        name = vocabulary_name(files)
        config = parsed_object(files, "tokenizer_config.json")
        if templates := template_files(files, config):
            config = {**config, "chat_template": templates}
        generation = parsed_object(files, "generation_config.json")
        special_tokens_map = parsed_object(files, "special_tokens_map.json")
        ids = parsed_object(files, "added_tokens.json")
        declare = partial(DeclaredTokens.read, config, special_tokens_map, ids)
        if is_tiktoken(files[name]):
            declared = declare(defaults=rank_file_names(name, config))
            pipeline = tiktoken_pipeline(files[name], name, config, declared)
        elif name == "vocab.json":
            declared = declare(defaults=class_defaults(config))
            merges = text_of(files, "merges.txt")
            pipeline = merges_pipeline(parsed(files, name), merges, config, declared)
        elif is_tekken(name):
            declared = declare(defaults=TEKKEN_NAMES)
            pipeline = tekken_pipeline(parsed(files, name), name, declared)
        elif name.endswith(".json"):
            spec = parsed(files, name)
            declared = declare(own=own_tokens(spec))
            pipeline = tokenizer_json_pipeline(spec, declared)
        elif name.endswith(".tiktoken"):
            raise BadModelFile(f"{name} does not begin with a token in base64 and its rank")
        else:
            return cls.from_sentencepiece(files[name], config, generation, ids, special_tokens_map)
        return cls._with(pipeline, declared, config, generation)

    @classmethod
    def from_json(
        cls,
        spec: Any,
        config: Mapping[str, Any] | None = None,
        generation_config: Mapping[str, Any] | None = None,
    ) -> Self:
        """Build from parsed `tokenizer.json`, `tokenizer_config.json`, `generation_config.json`.

        Raises `BadModelFile` naming the wrong field.
        """
        config = config or {}
        declared = DeclaredTokens.read(config, {}, {}, own_tokens(spec))
        pipeline = tokenizer_json_pipeline(spec, declared)
        return cls._with(pipeline, declared, config, generation_config)

    @classmethod
    def from_sentencepiece(
        cls,
        data: bytes,
        config: Mapping[str, Any] | None = None,
        generation_config: Mapping[str, Any] | None = None,
        added_tokens: Mapping[str, Any] | None = None,
        special_tokens_map: Mapping[str, Any] | None = None,
    ) -> Self:
        """Build from the bytes of a `tokenizer.model` and the parsed files beside it.

        `added_tokens` is the parsed `added_tokens.json`, ids by token. Raises `BadModelFile`.
        """
        # Imported here: most models do not need the library, which takes 45 ms to load.
        from swiftchat.tokenizer.sentencepiece.model import SentencePieceModel
        from swiftchat.tokenizer.sentencepiece.pipeline import sentencepiece_pipeline

        config = config or {}
        model = SentencePieceModel.read(data)
        defaults = {"bos_token": model.bos, "eos_token": model.eos}
        declared = DeclaredTokens.read(
            config,
            special_tokens_map or {},
            added_tokens or {},
            defaults={role: text for role, text in defaults.items() if text is not None},
        )
        pipeline = sentencepiece_pipeline(model, config, declared)
        return cls._with(pipeline, declared, config, generation_config)

    @classmethod
    def _with(
        cls,
        pipeline: TokenizerPipeline,
        declared: DeclaredTokens,
        config: Mapping[str, Any],
        generation_config: Mapping[str, Any] | None,
    ) -> Self:
        named = {role: token.content for role, token in declared.named.items()}
        more_eos = (generation_config or {}).get("eos_token_id")
        more_eos_ids = more_eos if isinstance(more_eos, list) else [more_eos]
        eos_ids = [token_id for token_id in more_eos_ids if type(token_id) is int]
        return cls(pipeline, named, named_templates(config), tuple(eos_ids))
