"""The defaults of sampling parameters, and the values that a model recommends for them."""

import contextlib
from dataclasses import fields
from typing import Any

from swiftchat.chat.options.chat_options import MODEL_NAMES
from swiftchat.engine.api.params import SamplingParams
from swiftchat.errors import UsageError


def model_defaults(generation_config: dict[str, Any]) -> dict[str, Any]:
    """Return the valid sampling parameters of `generation_config.json`, by our names."""
    if generation_config.get("do_sample") is False:
        return {"temperature": 0.0}
    found = {ours: _model_default(generation_config, ours) for ours in MODEL_NAMES}
    # Invalid values are ignored: the model can run without them.
    return {name: value for name, value in found.items() if value is not None}


def invalid_model_defaults(generation_config: dict[str, Any]) -> list[str]:
    """Return the keys of `generation_config.json` whose values are ignored because of an error."""
    return [
        theirs
        for ours, theirs in MODEL_NAMES.items()
        if generation_config.get(theirs) is not None
        and _model_default(generation_config, ours) is None
    ]


def _model_default(generation_config: dict[str, Any], name: str) -> int | float | None:
    """Return the model's value of a sampling parameter, None if there is no valid one."""
    value = generation_config.get(MODEL_NAMES[name])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = int(value) if SamplingParams.__annotations__[name] is int else float(value)
        options: dict[str, Any] = {name: number}
        SamplingParams(**options)
    except (UsageError, ValueError, OverflowError):  # the last two: NaN, infinity
        return None
    return number


def defaults(model: str | None) -> dict[str, tuple[Any, str]]:
    """Return the default (value, origin) of each sampling option.

    The origin is `model` for values from the generation_config.json of an installed model.
    """
    from swiftchat.errors import SwiftchatError
    from swiftchat.weights.hub.known_models import DEFAULT_MODEL
    from swiftchat.weights.model.directory import Model
    from swiftchat.weights.store import default_store

    from_model: dict[str, Any] = {}
    name = model or DEFAULT_MODEL
    # `resolve` might convert the model first; a listing must not do that.
    with contextlib.suppress(SwiftchatError):
        path = default_store().find(name, offline=True)
        from_model = model_defaults(Model.open(path).generation_config)
    values = {field.name: (field.default, "default") for field in fields(SamplingParams)}
    values |= {name: (value, "model") for name, value in from_model.items()}
    return values
