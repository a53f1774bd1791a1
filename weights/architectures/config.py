"""The reader of `config.json`."""

from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.multimodal import language_model
from swiftchat.weights.architectures.parts.fields import Fields, invalid, without_keys
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.registry import (
    ARCHITECTURES,
    CLASS_OF_TYPE,
    architecture_of,
)
from swiftchat.weights.architectures.unsupported_keys import ignored_keys


def read_model_config(config: Mapping[str, Any]) -> ModelConfig:
    """Return the model that a parsed `config.json` describes.

    Raises `BadModelFile` with the name of the first invalid or unsupported field.
    """
    if not isinstance(config, Mapping):
        raise BadModelFile("config.json is not a JSON object")
    config = language_model(config)
    name = class_name(config)
    architecture = architecture_of(name, config)
    config = architecture.standard_fields(config)
    ignored = ignored_keys(config, architecture.supported_keys, architecture.rejected_keys)
    fields = without_keys(config, ignored)
    return architecture.build(Keys(fields, architecture.name, name, ignored))


def class_name(config: Fields) -> str:
    """Return the class of transformers that computes the model.

    It is the first known one in `architectures`. If there is none, for example because another
    class was trained, `model_type` decides, as in transformers.
    """
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise invalid("architectures", "a list of names", names)
    for name in names:
        if name in ARCHITECTURES:
            generation = ARCHITECTURES[name].generation
            return str(name) if generation is None else generation(config)
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in CLASS_OF_TYPE:
        return CLASS_OF_TYPE[kind]
    if not names:
        raise invalid("architectures", "a list with the name of a class", None)
    return str(names[0])
