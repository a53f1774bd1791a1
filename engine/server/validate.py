"""Validation of the commands that terminals send."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.tuning import MAX_SCALE
from swiftchat.engine.api.wire import Message
from swiftchat.errors import UsageError

_MAX_IDS = 1 << 16  # in one parameter
_MAX_GRAMMAR = 1 << 20  # characters
_MAX_ADAPTERS = 64  # of one answer
_MAX_INT = 2**31 - 1  # GPU kernels use 32-bit integers


def validate_command(message: Message) -> Message:
    """Return the message if it is a well-formed command, else raise `UsageError`.

    The engine checks the rest: token ids within the vocabulary, the length of the prompt.
    """
    match message:
        case {"type": "generate", "id": id_, "prompt": list() as ids, "params": dict() as params}:
            _require(_is_count(id_), "generation id")
            _require(all(map(_is_count, ids)), "prompt")
            _validate_params(params)
            if (constraint := message.get("constraint")) is not None:
                _validate_constraint(constraint)
            if (tuning := message.get("tuning")) is not None:
                _validate_tuning(tuning)
        case {"type": "cancel", "id": id_}:
            _require(_is_count(id_), "generation id")
        case {"type": "stats", "measure": bool()}:
            pass
        case _:
            _require(False, f"command {message['type']!r:.40}")
    return message


def _validate_params(params: Mapping[str, Any]) -> None:
    known = {field.name: field for field in fields(SamplingParams)}
    _require(params.keys() == known.keys(), "set of sampling parameters")
    for name, value in params.items():
        if isinstance(known[name].default, tuple):
            is_valid = _is_list_of(_IS_ELEMENT.get(name, _is_count), value)
        elif value is None:
            is_valid = known[name].default is None
        elif name == "reasoning":
            is_valid = _is_reasoning(value)
        elif type(known[name].default) is bool:
            is_valid = type(value) is bool
        elif name == "pooling":
            is_valid = type(value) is str
        elif type(value) in (float, str):
            is_valid = known[name].type is type(value)
        else:
            is_valid = type(value) is int and (name == "seed" or abs(value) <= _MAX_INT)
        _require(is_valid, f"sampling parameter {name}")
    SamplingParams.from_wire(dict(params))


def _validate_constraint(constraint: object) -> None:
    match constraint:
        case {
            "grammar": str() as grammar,
            "begun": str(),
            "pieces": list() as pieces,
            "special": list() as special,
            "stop_ids": list() as stop_ids,
        }:
            _require(len(grammar) <= _MAX_GRAMMAR, "grammar")
            _require(all(type(piece) is bytes for piece in pieces), "vocabulary")
            _require(all(map(_is_count, [*special, *stop_ids])), "vocabulary")
        case _:
            _require(False, "constraint")


def _validate_tuning(tuning: object) -> None:
    match tuning:
        case {"adapters": list() as adapters, "prompt": None | str()} if (
            len(adapters) <= _MAX_ADAPTERS
        ):
            _require(all(map(_is_adapter, adapters)), "adapter")
        case _:
            _require(False, "tuning")


def _is_adapter(value: object) -> bool:
    match value:
        case [str(), float() as scale]:
            return abs(scale) <= MAX_SCALE
    return False


def _is_bias(value: object) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    return _is_count(value[0]) and type(value[1]) is float


def _is_word(value: object) -> bool:
    return _is_list_of(_is_count, value)


def _is_reasoning(value: object) -> bool:
    match value:
        case {
            "opens": list() as opens,
            "close": bytes(),
            "is_open": bool(),
            "pieces": list() as pieces,
            "ending": list() as ending,
            **others,
        }:
            are_texts = all(type(text) is bytes for text in opens)
            is_list = not others and are_texts and _is_list_of(_is_count, ending)
            return is_list and _is_list_of(_is_piece, pieces)
    return False


def _is_piece(value: object) -> bool:
    match value:
        case [token, bytes()]:
            return _is_count(token)
    return False


def _is_list_of(is_element: Callable[[object], bool], value: object) -> bool:
    return isinstance(value, list) and len(value) <= _MAX_IDS and all(map(is_element, value))


# Parameters that are lists of anything but ids.
_IS_ELEMENT = {"logit_bias": _is_bias, "bad_words": _is_word}


def _require(condition: bool, what: str) -> None:
    if not condition:
        hint = "use the same version of swiftchat on both sides"
        raise UsageError(f"the engine received an invalid {what}", hint)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_INT
