"""Structures and enumerations of C headers, as ctypes has them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from ctypes import POINTER, Structure, Union, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from typing import Any

_COMMENTS_AND_DIRECTIVES = re.compile(r"/\*.*?\*/|^[ \t]*#.*?$", re.DOTALL | re.MULTILINE)
_DECLARATION = re.compile(
    r"(?:enum (?P<enum>\w*) ?\{(?P<constants>[^}]*)\};"
    r"|typedef (?P<kind>struct|union) \{(?P<fields>[^}]*)\} (?P<record>\w+);"
    r"|typedef (?P<type>\w+) (?P<names>[\w, ]+);)\s*"
)
_FIELDS = re.compile(r"(?:const )?(\w+) ((?:(?:\*(?:const )?)*\w+(?:,\s*|$))+)")
_NUMBERS = {"int32_t": c_int32, "int64_t": c_int64, "float": c_float}


def declarations(headers: Iterable[str]) -> Mapping[str, Any]:
    """Return what headers declare by name: classes of ctypes, enumerations, and constants.

    A header has enumerations, structures, unions, other names of types, comments and directives.
    The constants of an `enum` with a name are members of a class, without the prefix of the first
    one, and without those that do not have it, as a last one that counts the others. A structure
    or union has the names of its fields' types in `c_types`. A pointer to a structure is a
    `POINTER`, one to numbers a `c_void_p`. Raises `ValueError` for other text.
    """
    found: dict[str, Any] = dict(_NUMBERS)
    for header in headers:
        text = _COMMENTS_AND_DIRECTIVES.sub("", header).strip()
        end = 0
        while end < len(text):
            declaration = _DECLARATION.match(text, end)
            if declaration is None:
                raise ValueError(
                    f"not an enumeration, structure or union: {text[end : end + 60]!r}"
                )
            end = declaration.end()
            found.update(_declared(declaration, found))
    return found


def _declared(declaration: re.Match[str], known: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if (constants := declaration["constants"]) is not None:
        members = dict(_constants(constants))
        if name := declaration["enum"]:
            yield name, _enumeration(name, members)
        else:
            yield from members.items()
    elif name := declaration["record"]:
        yield name, _record(name, declaration["kind"], declaration["fields"], known)
    else:
        for name in declaration["names"].split(","):
            yield name.strip(), known[declaration["type"]]


def _constants(text: str) -> Iterator[tuple[str, int]]:
    number = -1
    for entry in filter(None, map(str.strip, text.split(","))):
        name, _, value = entry.partition(" = ")
        number = int(value) if value else number + 1
        yield name, number


def _enumeration(name: str, members: Mapping[str, int]) -> type[IntEnum]:
    prefix = next(iter(members)).partition("_")[0] + "_"
    named = {m.removeprefix(prefix): n for m, n in members.items() if m.startswith(prefix)}
    made: type[IntEnum] = IntEnum(name, named)  # type: ignore[misc]
    return made


def _record(name: str, kind: str, text: str, known: Mapping[str, Any]) -> type:
    fields, c_types = [], {}
    for statement in filter(None, map(str.strip, text.split(";"))):
        parts = _FIELDS.fullmatch(statement)
        if parts is None:
            raise ValueError(f"not the fields of a structure: {statement!r}")
        for declarator in parts[2].split(","):
            field = declarator.replace("const ", "").strip()
            fields.append((field.lstrip("*"), _field_type(parts[1], field.count("*"), known)))
            c_types[field.lstrip("*")] = parts[1]
    base = Structure if kind == "struct" else Union
    return type(name, (base,), {"_fields_": fields, "c_types": c_types})


def _field_type(name: str, num_pointers: int, known: Mapping[str, Any]) -> Any:
    if num_pointers == 2:
        return POINTER(c_void_p)
    if num_pointers == 0:
        return known[name]
    pointed = known.get(name)
    is_record = isinstance(pointed, type) and issubclass(pointed, Structure | Union)
    return POINTER(pointed) if is_record else c_void_p
