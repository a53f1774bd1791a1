"""What a terminal may ask of an engine, looked through before the engine sees it."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Message
from swiftchat.errors import UsageError

_MOST_STOP_IDS = 4096
_LARGEST = 2**31 - 1  # that GPUs count with


def checked(message: Message) -> Message:
    """The message, if it is a command of the protocol in every part; else `UsageError`.

    What is asked for may still be refused by the engine: ids outside the vocabulary, a prompt that
    is too long.
    """
    match message:
        case {"type": "generate", "id": id_, "prompt": list() as ids, "params": dict() as params}:
            require(_is_count(id_), "a generation's number")
            require(all(map(_is_count, ids)), "a prompt")
            _check_params(params)
        case {"type": "cancel", "id": id_}:
            require(_is_count(id_), "a generation's number")
        case {"type": "stats", "measure": bool()}:
            pass
        case _:
            require(False, f"a command called {message['type']!r:.40}")
    return message


def require(holds: bool, what: str) -> None:
    if not holds:
        hint = "use the same version of swiftchat on both sides"
        raise UsageError(f"the engine cannot read {what}", hint)


def _check_params(params: Mapping[str, Any]) -> None:
    known = {field.name: field for field in fields(SamplingParams)}
    require(params.keys() == known.keys(), "the sampling parameters")
    for name, value in params.items():
        if name == "stop_ids":
            is_right = isinstance(value, list) and len(value) <= _MOST_STOP_IDS
            is_right = is_right and all(map(_is_count, value))
        elif value is None:
            is_right = known[name].default is None
        elif type(value) is float:
            is_right = known[name].type is float
        else:
            is_right = type(value) is int and (name == "seed" or abs(value) <= _LARGEST)
        require(is_right, f"the sampling parameter {name}")
    SamplingParams.from_wire(dict(params))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST
