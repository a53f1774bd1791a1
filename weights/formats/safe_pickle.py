"""A pickle reader that imports nothing and calls nothing.

The operations are those of Python's `pickletools`. Instead of calling anything, `load` takes the
value of a call from a function, which usually returns a `PickledObject`.
"""

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from swiftchat.errors import BadModelFile, DamagedModelFile

# Far above the pickles of the largest checkpoints, optimizer state included.
MAX_BYTES = 16 * 1024 * 1024
_MAX_OPERATIONS = 2_000_000

OTHER_FORMAT_HINT = "use a safetensors or GGUF version of the model"

_MARK = object()


@dataclass(frozen=True)
class GlobalName:
    """A reference to `module.name`, which is not imported."""

    name: str


@dataclass
class PickledObject:
    """An object that was not created: the name of the call, its arguments, the object's state."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


Call = Callable[[str, tuple[Any, ...]], Any]
LoadStorage = Callable[[Any], Any]


def load(
    data: io.BytesIO,
    where: str,
    is_known: Callable[[str], bool],
    call: Call,
    load_storage: LoadStorage,
) -> Any:
    """Return the content of a pickle: dicts, lists, tuples, numbers, strings, `GlobalName`.

    Reads one pickle from the position of `data`, and leaves `data` at its end.
    `call(name, arguments)` returns the value for a call, `load_storage(id)` the one for a
    persistent id.

    Raises `BadModelFile` that starts with `where` for a name that `is_known` does not accept, for
    a damaged pickle, and for operations that no checkpoint uses. Time and memory are
    proportional to `data`, which must not exceed 16 MiB.
    """
    if data.getbuffer().nbytes > MAX_BYTES:
        raise BadModelFile(f"{where}: a pickle of more than {MAX_BYTES} bytes")
    machine = _Machine(where, is_known, call, load_storage)
    try:
        for number, (operation, argument, _) in enumerate(pickletools.genops(data)):
            if number >= _MAX_OPERATIONS:
                raise machine.bad(f"more than {_MAX_OPERATIONS} operations")
            machine.step(operation.name, argument)
        return machine.stack.pop()
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        # The operations below raise these for missing operands and operands of another type.
        raise DamagedModelFile(f"{where}: a damaged pickle") from error


class _Machine:
    def __init__(
        self, where: str, is_known: Callable[[str], bool], call: Call, load_storage: LoadStorage
    ) -> None:
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._where = where
        self._is_known = is_known
        self._call = call
        self._load_storage = load_storage

    def bad(self, what: str) -> BadModelFile:
        return BadModelFile(f"{self._where}: {what}")

    def step(self, name: str, argument: Any) -> None:
        if name in _PUSHED:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _STEPS:
            _STEPS[name](self, argument)
        elif name not in _IGNORED:
            raise self.bad(f"the pickle operation {name}, which no checkpoint uses")

    def _popped(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError
        values = self.stack[len(self.stack) - count :]
        if any(value is _MARK for value in values):
            raise IndexError
        del self.stack[len(self.stack) - count :]
        return values

    def _to_mark(self) -> list[Any]:
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _MARK:
                values = self.stack[at + 1 :]
                del self.stack[at:]
                return values
        raise IndexError

    def _tuple(self, count: int) -> None:
        self.stack.append(tuple(self._popped(count)))

    def _set_items(self, flat: list[Any]) -> None:
        target = self.stack[-1]
        # Hashing nested tuples can take exponential time; checkpoints have plain keys.
        if not isinstance(target, dict) or len(flat) % 2:
            raise TypeError
        for key, value in zip(flat[::2], flat[1::2], strict=True):
            if not isinstance(key, str | int):
                raise self.bad(f"a dictionary with a key of type {type(key).__name__}")
            target[key] = value

    def _append(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise TypeError
        self.stack[-1].extend(values)

    def _push_global(self, name: str) -> None:
        if not self._is_known(name):
            raise BadModelFile(
                f"{self._where}: the pickle refers to {name[:120]}, which no checkpoint "
                "needs; nothing was executed",
                OTHER_FORMAT_HINT,
            )
        self.stack.append(GlobalName(name))

    def _stack_global(self) -> None:
        module, name = self._popped(2)
        if not isinstance(module, str) or not isinstance(name, str):
            raise TypeError
        self._push_global(f"{module}.{name}")

    def _reduce(self) -> None:
        function, arguments = self._popped(2)
        if not isinstance(function, GlobalName) or not isinstance(arguments, tuple):
            raise TypeError
        self.stack.append(self._call(function.name, arguments))

    def _build(self) -> None:
        (state,) = self._popped(1)
        # Other state, such as the version numbers of a state_dict, does not concern tensors.
        if isinstance(self.stack[-1], PickledObject):
            self.stack[-1].state = state

    def _memoize(self, index: int) -> None:
        self._memo[index] = self.stack[-1]

    def _push_storage(self) -> None:
        self.stack.append(self._load_storage(self._popped(1)[0]))


_IGNORED = frozenset({"PROTO", "FRAME", "STOP"})
_PUSHED = frozenset(
    {
        "INT",
        "BININT",
        "BININT1",
        "BININT2",
        "LONG",
        "LONG1",
        "LONG4",
        "FLOAT",
        "BINFLOAT",
        "STRING",
        "BINSTRING",
        "SHORT_BINSTRING",
        "UNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "BINUNICODE8",
        "BINBYTES",
        "SHORT_BINBYTES",
        "BINBYTES8",
    }
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "MARK": lambda: _MARK,
}
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine._to_mark())),
    "TUPLE1": lambda machine, _: machine._tuple(1),
    "TUPLE2": lambda machine, _: machine._tuple(2),
    "TUPLE3": lambda machine, _: machine._tuple(3),
    "SETITEM": lambda machine, _: machine._set_items(machine._popped(2)),
    "SETITEMS": lambda machine, _: machine._set_items(machine._to_mark()),
    "APPEND": lambda machine, _: machine._append(machine._popped(1)),
    "APPENDS": lambda machine, _: machine._append(machine._to_mark()),
    "GLOBAL": lambda machine, name: machine._push_global(name.replace(" ", ".")),
    "STACK_GLOBAL": lambda machine, _: machine._stack_global(),
    "REDUCE": lambda machine, _: machine._reduce(),
    "NEWOBJ": lambda machine, _: machine._reduce(),
    "BUILD": lambda machine, _: machine._build(),
    "BINPERSID": lambda machine, _: machine._push_storage(),
    "PUT": lambda machine, at: machine._memoize(at),
    "BINPUT": lambda machine, at: machine._memoize(at),
    "LONG_BINPUT": lambda machine, at: machine._memoize(at),
    "MEMOIZE": lambda machine, _: machine._memoize(len(machine._memo)),
    "GET": lambda machine, at: machine.stack.append(machine._memo[at]),
    "BINGET": lambda machine, at: machine.stack.append(machine._memo[at]),
    "LONG_BINGET": lambda machine, at: machine.stack.append(machine._memo[at]),
}
