"""Received values as dataclasses: every field is checked against its annotation."""

import dataclasses
import types
import typing
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class WireError(OSError):
    """A received value that does not have the expected type; the message names its place.

    An `OSError`, because the connection that it came from cannot be used any more.
    """


def decode(value: object, kind: type[T], place: str = "") -> T:
    """Return a received value as `kind`.

    `kind` is a dataclass (received as a map), int, float, str, bytes, bool, None, or a union, list,
    sequence or tuple of these. Keys that a dataclass lacks are ignored. Raises `WireError`.
    """
    found: T = _decode(value, kind, place)
    return found


def _decode(value: Any, kind: Any, place: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _decode_fields(value, kind, place)
    if origin in (types.UnionType, typing.Union):
        return _decode_union(value, arguments, place)
    if origin in (list, Sequence, tuple):
        if not isinstance(value, list | tuple):
            raise WireError(f"{place or 'the value'} is not a list")
        if origin is tuple and arguments[-1] is not Ellipsis:
            if len(value) != len(arguments):
                raise WireError(f"{place} does not have {len(arguments)} items")
            return tuple(map(_decode, value, arguments, [place] * len(value)))
        items = [_decode(item, arguments[0], place) for item in value]
        return tuple(items) if origin is tuple else items
    if kind is float and type(value) in (int, float):
        return float(value)
    if type(value) is not (types.NoneType if kind is None else kind):
        raise WireError(f"{place or 'the value'} is of type {type(value).__name__}")
    return value


def _decode_union(value: Any, kinds: tuple[Any, ...], place: str) -> Any:
    for kind in kinds:
        try:
            return _decode(value, kind, place)
        except WireError as error:
            last = error
    raise last


def _decode_fields(value: Any, kind: Any, place: str) -> Any:
    if not isinstance(value, dict):
        raise WireError(f"{place or kind.__name__} is not a map")
    found = {}
    for field, annotation in _fields(kind):
        if field.name in value:
            found[field.name] = _decode(value[field.name], annotation, field.name)
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise WireError(f"{kind.__name__} without {field.name}")
    return kind(**found)


@cache
def _fields(kind: Any) -> list[tuple[dataclasses.Field[Any], Any]]:
    annotations = typing.get_type_hints(kind)
    return [(field, annotations[field.name]) for field in dataclasses.fields(kind)]
