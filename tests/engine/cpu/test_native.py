"""What Python reads from the headers of the kernels is what compilers read."""

import shutil
import subprocess
import sys
from ctypes import Structure, Union, c_void_p, sizeof
from enum import IntEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from swiftchat.engine.cpu import native
from swiftchat.engine.cpu.c_header import declarations
from swiftchat.engine.cpu.compile_kernels import INTERFACE, KERNELS

HEADERS = [(KERNELS / name).read_text() for name in INTERFACE]
DECLARED = declarations(HEADERS)


def assertions() -> list[str]:
    """Return C code that compiles if all sizes, offsets and constants are those of Python."""
    lines = []
    for name, declared in DECLARED.items():
        if isinstance(declared, int):
            lines.append(f"{name} == {declared}")
        elif issubclass(declared, IntEnum):
            lines += [f"{constant(name, m.name)} == {m.value}" for m in declared]
        elif issubclass(declared, Structure | Union):
            lines.append(f"sizeof({name}) == {sizeof(declared)}")
            for field in declared.c_types:
                found = getattr(declared, field)
                lines.append(f"offsetof({name}, {field}) == {found.offset}")
                lines.append(f"sizeof((({name} *)0)->{field}) == {found.size}")
    return [f'_Static_assert({line}, "{line}");' for line in lines]


def constant(enumeration: str, member: str) -> str:
    """Return the constant of C by its place in the header."""
    text = next(text for text in HEADERS if f"enum {enumeration} " in text)
    start = text.index(f"enum {enumeration} ")
    prefix = text[text.index("{", start) + 1 :].split("_")[0].strip()
    return f"{prefix}_{member}"


def test_sizes_offsets_and_constants_are_the_compilers(tmp_path: Path) -> None:
    compiler = [sys.executable, "-m", "ziglang", "cc"] if find_spec("ziglang") else ["cc"]
    if shutil.which(compiler[0]) is None:
        pytest.skip("needs a C compiler")
    includes = ["#include <stddef.h>", *(f'#include "{name}"' for name in INTERFACE)]
    lines = assertions()
    assert len(lines) > 300
    (tmp_path / "check.c").write_text("\n".join([*includes, *lines, ""]))
    command = [*compiler, "-std=c11", f"-I{KERNELS}", "-c", "check.c", "-o", "check.o"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_header_of_all_declarations() -> None:
    """Of the second header's structure a field has the type of the first one's."""
    first = """/* Text; with { and }. */
    #pragma once
    #include <stdint.h>
    enum { SIZE = 16, NEXT };
    enum Color { COLOR_RED, COLOR_DARK_BLUE = 7, COLOR_GREEN, NUM_COLORS };
    typedef int32_t Count, Place;
    typedef struct {
        Count number; /* of things */
        const float *x, *const *y;
    } Thing;
    """
    second = "typedef union { Thing thing; const Thing *things; int64_t wide; } Any;"
    found: dict[str, Any] = dict(declarations([first, second]))
    assert (found["SIZE"], found["NEXT"]) == (16, 17)
    assert [(m.name, m.value) for m in found["Color"]] == [
        ("RED", 0),
        ("DARK_BLUE", 7),
        ("GREEN", 8),
    ]
    thing = found["Thing"](number=3)
    assert (thing.number, thing.x, sizeof(thing)) == (3, None, 24)
    assert found["Thing"].c_types == {"number": "Count", "x": "float", "y": "float"}
    thing.y = (c_void_p * 2)(5, 6)
    assert thing.y[1] == 6
    things = (found["Thing"] * 2)(thing, found["Thing"](number=4))
    assert found["Any"](things=things).things[1].number == 4
    assert found["Any"](thing=thing).thing.number == 3


@pytest.mark.parametrize(
    "text",
    [
        "int add(int a, int b);",
        "typedef struct { int32_t x; } Named; int y;",
        "struct Tagged { int32_t x; };",
        "typedef struct { int32_t (*call)(void); } Function;",
        "typedef struct { int32_t many[3]; } Array;",
        "typedef struct { Unknown x; } Other;",
        "enum Open { OPEN_A",
    ],
)
def test_other_declarations_are_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        declarations([text])


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="no FlightOp"):
        native.FlightOp  # noqa: B018


def test_operations_as_unions() -> None:
    op = native.RotaryOp(header=native.OpHeader(row_set=native.RowSet.LOGITS), qkv=5, head_dim=64)
    union = native.op_union(op)
    assert union.header.kind == native.OpKind.ROTARY
    assert (union.header.row_set, union.rotary.qkv, union.rotary.head_dim) == (1, 5, 64)


def test_every_operation_has_a_kind_and_a_target() -> None:
    kinds = [name for name in native.Op.c_types if name != "header"]
    assert [name.upper() for name in kinds] == [kind.name for kind in native.OpKind]
    for c_type in [native.Op.c_types[name] for name in kinds]:
        assert native.target_field(getattr(native, c_type)) in ("out", "qkv", "x")
