"""Configs of models with other fields in some of their parts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swiftchat.weights.architectures.parts.layers import LayerConfig
from swiftchat.weights.architectures.parts.model import ModelConfig

Fields = Mapping[str, Any]


def changed(config: ModelConfig, **parts: Fields) -> ModelConfig:
    """Return a config with other fields of the named parts: `changed(config, mlp={"bias": True})`.

    Parts of layers, and of these, change in all layers: `layer`, `attention`, `scores`, `mlp`,
    `moe` and `activation`.
    """
    for name, fields in parts.items():
        if hasattr(config, name) and name not in _OF_LAYERS:
            config = replace(config, **{name: replace(getattr(config, name), **fields)})
        else:
            layers = tuple(_OF_LAYERS[name](layer, fields) for layer in config.layers)
            config = replace(config, layers=layers)
    return config


def _layer(layer: LayerConfig, fields: Fields) -> LayerConfig:
    return replace(layer, **fields)


def _attention(layer: LayerConfig, fields: Fields) -> LayerConfig:
    own = layer.attention
    return layer if own is None else replace(layer, attention=replace(own, **fields))


def _scores(layer: LayerConfig, fields: Fields) -> LayerConfig:
    own = layer.attention
    return layer if own is None else _attention(layer, {"scores": replace(own.scores, **fields)})


def _mlp(layer: LayerConfig, fields: Fields) -> LayerConfig:
    return layer if layer.mlp is None else replace(layer, mlp=replace(layer.mlp, **fields))


def _moe(layer: LayerConfig, fields: Fields) -> LayerConfig:
    return layer if layer.moe is None else replace(layer, moe=replace(layer.moe, **fields))


def _activation(layer: LayerConfig, fields: Fields) -> LayerConfig:
    for name, change in (("mlp", _mlp), ("moe", _moe)):
        part = getattr(layer, name)
        if part is not None:
            layer = change(layer, {"activation": replace(part.activation, **fields)})
    return layer


_OF_LAYERS = {
    "layer": _layer,
    "attention": _attention,
    "scores": _scores,
    "mlp": _mlp,
    "moe": _moe,
    "activation": _activation,
}
