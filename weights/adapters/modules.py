"""The modules of a model as adapters name them, and the patterns that choose among them."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import regex

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import (
    canonical_tensors,
    shape_by_place,
    tensor_name,
)
from swiftchat.weights.parallel.tensor_parallel import TensorKey

_TIMEOUT_S = 1.0  # an adapter's pattern may need exponential time
_LAYER = re.compile(r".*?\.[^.]*\.(\d+)\.")


def model_tensors(config: ModelConfig) -> dict[str, tuple[TensorKey, tuple[int, ...]]]:
    """Return key and shape in the file of every tensor by name, with `lm_head` even if it is tied.

    A module's matrix has the module's name and `.weight`.
    """
    shape_of = shape_by_place(config)
    keys = list(canonical_tensors(config))
    if config.head.tied and "lm_head" in ARCHITECTURES[config.architecture].tensors:
        keys.append(("lm_head", None, None))
    return {tensor_name(config, *key): (key, shape_of(*key[:2])) for key in keys}


def matches(pattern: str, text: str, place: str) -> bool:
    """Return whether the whole text matches; `BadModelFile` for a bad or too slow expression."""
    try:
        return regex.fullmatch(pattern, text, timeout=_TIMEOUT_S) is not None
    except (regex.error, RecursionError, OverflowError) as error:
        raise BadModelFile(f"{place}: {pattern[:80]!r} is no regular expression") from error
    except TimeoutError as error:
        raise BadModelFile(f"{place}: {pattern[:80]!r} takes too long to match") from error


def pattern_value(patterns: Mapping[str, Any], module: str, default: Any, place: str) -> Any:
    """Return the value of the first pattern that matches the end of a module's name."""
    for pattern, value in patterns.items():
        if matches(rf"(.*\.)?({pattern})", module, place):
            return value
    return default


class Targets:
    """Which modules an adapter changes: `target_modules` and the keys that restrict it.

    Source of the rules: `check_target_module_exists` of PEFT.
    """

    def __init__(self, settings: Mapping[str, Any], place: str) -> None:
        self._place = place
        self.modules = _names(settings, "target_modules", place)
        self._excluded = _names(settings, "exclude_modules", place)
        saved = _names(settings, "modules_to_save", place) or []
        self._saved = [saved] if isinstance(saved, str) else saved
        layers = settings.get("layers_to_transform")
        layers = [layers] if type(layers) is int else layers or []
        if not isinstance(layers, list) or not all(type(layer) is int for layer in layers):
            raise BadModelFile(f"{place}: layers_to_transform: expected layer numbers")
        self._layers = frozenset(layers)
        patterns = _names(settings, "layers_pattern", place) or []
        self._layer_patterns = [patterns] if isinstance(patterns, str) else patterns

    @property
    def are_all(self) -> bool:
        return isinstance(self.modules, str) and self.modules.lower() == "all-linear"

    def include(self, module: str) -> bool:
        """Return whether the configuration names a module of the model, as PEFT decides it."""
        if self._is_excluded(module):
            return False
        if self.modules is None or self.are_all:
            return True
        if isinstance(self.modules, str):
            return matches(self.modules, module, f"{self._place}: target_modules")
        if module in self.modules:
            return True
        return _ends_with(module, self.modules) and self._is_chosen_layer(module)

    def _is_excluded(self, module: str) -> bool:
        if isinstance(self._excluded, str):
            if matches(self._excluded, module, f"{self._place}: exclude_modules"):
                return True
        elif self._excluded and (module in self._excluded or _ends_with(module, self._excluded)):
            return True
        place = f"{self._place}: modules_to_save"
        return any(matches(rf"(|.*\.){each}(|\..*)", module, place) for each in self._saved)

    def _is_chosen_layer(self, module: str) -> bool:
        if not self._layers:
            return True
        if not self._layer_patterns:
            found = _LAYER.match(module)
            return found is not None and int(found[1]) in self._layers
        place = f"{self._place}: layers_pattern"
        return any(
            matches(rf"(|.*?\.){pattern}\.{layer}\..*", module, place)
            for pattern in self._layer_patterns
            for layer in self._layers
        )


def unknown_module(place: str, module: str, known: Iterable[str], config: ModelConfig) -> str:
    """Return the message for a module that the model does not have."""
    count = sum(1 for _ in known)
    return (
        f"{place}: module {module[:200]} is not in the model, a {config.architecture} of "
        f"{config.num_layers} layers with {count} tensors"
    )


def _ends_with(module: str, names: Iterable[str]) -> bool:
    return any(module.endswith(f".{name}") for name in names)


def _names(settings: Mapping[str, Any], key: str, place: str) -> list[str] | str | None:
    """Return a list of names, a regular expression, or None."""
    value = settings.get(key)
    if not value:
        return None
    is_list = isinstance(value, list) and all(isinstance(name, str) for name in value)
    if not is_list and not isinstance(value, str):
        raise BadModelFile(f"{place}: {key}: expected names or an expression")
    return list(value) if isinstance(value, list) else str(value)
