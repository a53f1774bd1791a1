"""Messages on a `multiprocessing` connection: msgpack maps, never pickle.

Received values become dataclasses; every field is checked against its annotation.
"""

import contextlib
import dataclasses
import os
import socket
import threading
import types
import typing
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgpack

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
Message = dict[str, Any]

MAX_MESSAGE_BYTES = 1 << 23  # more than a prompt of a million tokens


class WireError(OSError):
    """A received value that does not have the expected type; the message names its place.

    An `OSError`, because the connection that it came from cannot be used any more.
    """


def send(connection: "Connection", message: Message) -> None:
    """Send a message; raises `OSError` if the connection is closed."""
    connection.send_bytes(msgpack.packb(message))


def receive(connection: "Connection", max_bytes: int | None = None) -> Message:
    """Receive a message; raises `EOFError` or `OSError` if the connection is closed.

    Also raises `OSError` for a message longer than `max_bytes`, and `WireError`, which is one, for
    an invalid message, after which the connection cannot be read any further.
    """
    data = connection.recv_bytes(max_bytes)
    try:
        message = msgpack.unpackb(data)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise WireError(f"not MessagePack: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise WireError("a message without a type")
    return message


def receive_within(connection: "Connection", seconds: float, max_bytes: int) -> Message:
    """Receive a message that is there completely after so many seconds; raises as `receive` does.

    Raises `TimeoutError` if it is not, even if parts of it come all the time; the connection is
    then shut down, and only then.
    """
    # Timer and reader decide by this lock which of them was first: a timer that fires while the
    # message arrives must not shut down a connection that the caller goes on with.
    decision = threading.Lock()
    with socket.socket(fileno=os.dup(connection.fileno())) as connected:

        def give_up() -> None:
            if decision.acquire(blocking=False):
                with contextlib.suppress(OSError):  # already closed
                    connected.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            message = receive(connection, max_bytes)
        except (EOFError, OSError) as error:
            if not decision.acquire(blocking=False):
                raise TimeoutError(f"no message within {seconds:.0f} s") from error
            raise
        finally:
            timer.cancel()
        if not decision.acquire(blocking=False):
            raise TimeoutError(f"no message within {seconds:.0f} s")
        return message


def several(messages: Sequence[Message]) -> Message:
    """Return one message with several ones, of which there must be one at least."""
    if len(messages) == 1:
        return messages[0]
    return {"type": "several", "messages": list(messages)}


def messages_of(message: Message) -> list[Message]:
    """Return the messages in one; raises `WireError`."""
    if message["type"] != "several":
        return [message]
    found = message.get("messages")
    if not isinstance(found, list):
        raise WireError("messages are not a list")
    for one in found:
        if not isinstance(one, dict) or not isinstance(one.get("type"), str):
            raise WireError("a message without a type")
    return found


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
