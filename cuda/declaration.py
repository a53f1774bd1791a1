"""What the source of a kernel declares: its parameters, and the tensors that they point to.

The parameters are those of the entry point `NAME_kernel` in `kernels/FOLDER/NAME.cu`, with the
conditions `#if MACRO`, `#ifdef MACRO` and `#if MACRO == VALUE` around them. The table in the
file's header declares each pointer in a line that is indented by three spaces:

    names  dtype [shape]: what follows a colon, or anything else, is for readers

A dtype is one of `DTYPES`, T for the macro DTYPE, or another capital letter for the dtype that the
argument has. A size is a number, a macro, a name, or a sum, product or quotient of these; names
are those of parameters, which need not be given then, or occur in tables only. "..." at the end
stands for any further sizes, which are those of all such tensors. After the shape may
follow, in this order,

    or null                                   the argument may be left out
    , rows NAME elements apart                rows (and heads) are apart: parameters get the strides
    , rows NAME and heads NAME elements apart
    , unaligned                               the address is no multiple of 16 bytes
    , maybe pinned                            it may be in pinned host memory

and conditions: `fp32 [n, k] with NORM, T [n] with SCHEME PLAIN, else null`. The first that holds
counts; MACRO alone means that it is not 0.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from swiftchat.cuda import nvrtc

DTYPES = {
    "fp32": "float32",
    "int32": "int32",
    "int64": "int64",
    "u64": "int64",
    "u8": "uint8",
    "int8": "int8",
    "e4m3": "float8_e4m3fn",
}
REST = "..."
_SCALARS = {"int": "int", "i64": "int64", "float": "float", "TensorMap": "tensor_map"}
_CONDITION = r"(?P<macro>[A-Z][A-Z0-9_]+)(?: (?P<value>[A-Z0-9_]+))?"
_ALTERNATIVE = re.compile(
    r"(?P<dtype>\w+) \[(?P<shape>[^\]]*)\](?P<null> or null)?"
    r"(?:, rows (?P<row>\w+)(?: and heads (?P<head>\w+))? elements apart)?"
    r"(?P<unaligned>, unaligned)?(?P<pinned>, maybe pinned)?"
    rf"(?: with {_CONDITION})?"
)
_ENTRY = re.compile(rf"(?P<names>\w+(?:, \w+)*) +(?={_ALTERNATIVE.pattern})")


@dataclass(frozen=True)
class Condition:
    """What the macros of a variant must be: `macro` is `value`, or with None not 0."""

    macro: str
    value: str | None = None

    def holds(self, defines: Mapping[str, str]) -> bool:
        found = defines.get(self.macro, "0")
        return found != "0" if self.value is None else found == self.value


@dataclass(frozen=True)
class Parameter:
    """A parameter of the entry point; `kind` is pointer, tensor_map, int, int64 or float."""

    name: str
    kind: str
    c_type: str
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class TensorType:
    """The dtype, as it is named in the table, and the shape of a tensor.

    `strides` are the parameters with the strides of the first dimensions.
    """

    dtype: str
    shape: tuple[str, ...]
    or_null: bool
    strides: tuple[str, ...]
    aligned: bool
    maybe_pinned: bool


@dataclass(frozen=True)
class Declaration:
    """The parameters of a kernel in order, and the alternatives for each of its tensors."""

    kernel: str
    parameters: tuple[Parameter, ...]
    tensors: Mapping[str, tuple[tuple[Condition | None, TensorType], ...]]

    def parameters_of(self, defines: Mapping[str, str]) -> list[Parameter]:
        """Return the parameters of a variant."""
        return [
            parameter
            for parameter in self.parameters
            if all(condition.holds(defines) for condition in parameter.conditions)
        ]

    def tensor_type(self, name: str, defines: Mapping[str, str]) -> TensorType | None:
        """Return what a pointer of a variant points to; None if it must be null."""
        for condition, tensor_type in self.tensors[name]:
            if condition is None or condition.holds(defines):
                return tensor_type
        return None


@cache
def declaration(kernel: str) -> Declaration:
    """Return the declaration of a kernel by its name; raise `ValueError` if it is incomplete."""
    text = nvrtc.source(kernel).read_text("utf-8")
    parameters, tensors = tuple(_parameters(kernel, text)), dict(_tensors(text))
    for parameter in parameters:
        if parameter.kind == "pointer" and parameter.name not in tensors:
            raise ValueError(f"{kernel}: the table of its source does not declare {parameter.name}")
    return Declaration(kernel, parameters, tensors)


def _parameters(kernel: str, text: str) -> Iterator[Parameter]:
    found = re.search(rf"\b{kernel}_kernel\(([^{{]*)\)\s*{{", text)
    if not found:
        raise ValueError(f"{kernel}: its source has no entry point {kernel}_kernel")
    conditions: list[Condition] = []
    for line in found[1].splitlines():
        if line.startswith("#endif"):
            conditions.pop()
        elif line.startswith("#"):
            match = re.fullmatch(r"#if(?:def)? (\w+)(?: == (\w+))?", line)
            if not match:
                raise ValueError(f"{kernel}: {line!r} around parameters is not understood")
            conditions.append(Condition(match[1], match[2]))
        else:
            for part in filter(None, map(str.strip, line.split(","))):
                parameter = re.fullmatch(r"(.*?)\s*(\w+)", part)
                if not parameter:
                    raise ValueError(f"{kernel}: the parameter {part!r} is not understood")
                c_type, name = parameter.groups()
                kind = "pointer" if "*" in c_type else _SCALARS[c_type.split()[-1]]
                yield Parameter(name, kind, c_type, tuple(conditions))


def _tensors(text: str) -> Iterator[tuple[str, tuple[tuple[Condition | None, TensorType], ...]]]:
    for entry in _entries(text):
        match = _ENTRY.match(entry)
        if match:
            alternatives = tuple(_alternatives(entry[match.end() :]))
            yield from ((name, alternatives) for name in match["names"].split(", "))


def _entries(text: str) -> Iterator[str]:
    """Yield the entries of the table in a source's header, each as one line."""
    entry = ""
    for line in text.splitlines():
        if entry and re.match(r"// {4}", line):
            entry += f" {line[2:].strip()}"
            continue
        if entry:
            yield entry
        if not line.startswith("//"):
            return
        entry = line[5:] if re.match(r"// {3}\w", line) else ""


def _alternatives(text: str) -> Iterator[tuple[Condition | None, TensorType]]:
    while match := _ALTERNATIVE.match(text):
        condition = Condition(match["macro"], match["value"]) if match["macro"] else None
        tensor_type = TensorType(
            match["dtype"],
            tuple(size.strip() for size in match["shape"].split(",")),
            match["null"] is not None,
            tuple(name for name in (match["row"], match["head"]) if name),
            match["unaligned"] is None,
            match["pinned"] is not None,
        )
        yield condition, tensor_type
        separator = re.match(r", (?:else )?", text[match.end() :])
        if condition is None or not separator:
            return
        text = text[match.end() + separator.end() :]
