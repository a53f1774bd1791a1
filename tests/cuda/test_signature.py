"""Arguments of launches are what the kernel's source declares."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.declaration import declaration
from swiftchat.cuda.signature import KernelSpec
from tests.support.kernels.sources import declare

CPU = torch.device("cpu")
TABLE = """
x       T [n, width], rows x_stride elements apart: two
        lines
heads   T [n, num_heads, 8] or null, rows first_stride and heads second_stride elements apart
weight  fp32 [2 * width] with WIDE, T [width] with SCHEME PLAIN, else null: the first that holds
bytes   E [n, ...], unaligned
same    E [count, ...]
ids     int32 [n + 1]
flags   u64 [SIZE]
S       is no tensor; this line has a [ and a ]
"""
HEAD = """const T* x, const T* heads,
const void* weight,
const void* bytes, const void* same, const int* ids, u64* flags, i64 x_stride, i64 first_stride,
i64 second_stride, int n, int width, int num_heads
#ifdef WIDE
, float scale
#if SCHEME == PACKED
, const __grid_constant__ TensorMap map
#endif
#endif
"""
MACROS: dict[str, Any] = {"DTYPE": torch.bfloat16, "SIZE": 2}


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    declare(monkeypatch, tmp_path, "declared", TABLE, HEAD)


def bind(arguments: dict[str, Any], **macros: Any) -> dict[str, Any]:
    signature = KernelSpec.of("declared", **{**MACROS, **macros}).signature
    return dict(zip(signature.names, signature.bind(arguments, CPU), strict=True))


def tensors(**changes: Any) -> dict[str, Any]:
    """Arguments for 3 rows of 16 elements that are 24 apart."""
    wide = torch.zeros(3, 24, dtype=torch.bfloat16)
    found: dict[str, Any] = {
        "x": wide[:, :16],
        "weight": torch.zeros(16, dtype=torch.bfloat16),
        "bytes": torch.zeros(3, 2, 5)[:, :, :5],
        "same": torch.zeros(4, 2, 5),
        "ids": torch.zeros(4, dtype=torch.int32),
        "flags": torch.zeros(2, dtype=torch.int64),
    }
    return {**found, **changes}


def test_sizes_and_strides_come_from_the_tensors() -> None:
    given = tensors()
    bound = bind(given, SCHEME="PLAIN")
    assert [bound[name] for name in given] == [tensor.data_ptr() for tensor in given.values()]
    assert (bound["n"], bound["width"], bound["x_stride"]) == (3, 16, 24)
    assert (bound["heads"], bound["num_heads"], bound["second_stride"]) == (0, 0, 0)
    heads = torch.zeros(3, 4, 16, dtype=torch.bfloat16)[:, :, 8:]
    bound = bind(tensors(heads=heads), SCHEME="PLAIN")
    assert bound["heads"] == heads.data_ptr()
    assert (bound["num_heads"], bound["first_stride"], bound["second_stride"]) == (4, 64, 16)


def test_macros_choose_parameters_and_types() -> None:
    def names(**macros: Any) -> list[str]:
        return list(KernelSpec.of("declared", **MACROS, **macros).signature.names)

    plain = names(SCHEME="PLAIN")
    assert names(WIDE=0) == names(SCHEME="PACKED") == plain
    assert names(WIDE=1, SCHEME="PLAIN") == [*plain, "scale"]
    assert names(WIDE=True, SCHEME="PACKED") == [*plain, "scale", "map"]
    wide = tensors(weight=torch.zeros(32), scale=0.5)
    assert bind(wide, WIDE=1, SCHEME="PLAIN")["scale"] == 0.5
    assert bind(tensors(weight=None), SCHEME="PACKED")["weight"] == 0
    with pytest.raises(ValueError, match="declared: weight must be None in this variant"):
        bind(tensors(), SCHEME="PACKED")


def test_maps_are_made_of_checked_tensors() -> None:
    arguments = tensors(weight=torch.zeros(32), scale=0.5, map=lambda: "a map")
    assert bind(arguments, WIDE=1, SCHEME="PACKED")["map"] == "a map"
    arguments |= {"ids": torch.zeros(5, dtype=torch.int32), "map": lambda: pytest.fail("made")}
    with pytest.raises(ValueError, match="ids"):
        bind(arguments, WIDE=1, SCHEME="PACKED")


def shifted(tensor: Tensor) -> Tensor:
    """Return a copy that begins one element behind a multiple of 16 bytes."""
    found = tensor.new_zeros(tensor.numel() + 1)[1:].view(tensor.shape)
    return found.copy_(tensor)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(3, 16)}, r"x must be torch.bfloat16 \[n, width\], not torch.float32"),
        (
            {"weight": torch.zeros(8, dtype=torch.bfloat16)},
            r"weight must be .* \[16\], not .* \[8\]",
        ),
        ({"x": torch.zeros(3, dtype=torch.bfloat16)}, r"x must be .* \[n, width\], not .* \[3\]"),
        ({"x": torch.zeros(3, 32, dtype=torch.bfloat16)[:, ::2]}, "x must be contiguous"),
        ({"x": torch.zeros(3, 20, dtype=torch.bfloat16)[:, :16]}, "x must be in rows that are al"),
        ({"weight": torch.zeros(32, dtype=torch.bfloat16)[::2]}, "weight must be contiguous"),
        ({"same": torch.zeros(4, 5, 2)}, r"same must be of elements \[2, 5\], not \[5, 2\]"),
        ({"same": torch.zeros(4, 2, 5).double()}, "same must be torch.float32"),
        (
            {"ids": torch.zeros(3, dtype=torch.int32)},
            r"ids must be a tensor with n \+ 1 = 4, not 3",
        ),
        (
            {"ids": torch.zeros(4, dtype=torch.int32, device="meta")},
            "ids must be on cpu, not on meta",
        ),
        ({"ids": None}, r"ids must be a tensor \[n \+ 1\], not None"),
        ({"flags": torch.zeros(3, dtype=torch.int64)}, r"flags must be torch.int64 \[2\]"),
        ({"ids": shifted(torch.zeros(4, dtype=torch.int32))}, "ids must be aligned to 16 bytes"),
        ({"width": 8}, r"x must be torch.bfloat16 \[3, 8\], not torch.bfloat16 \[3, 16\]"),
    ],
)
def test_errors_name_the_kernel_the_argument_and_what_is_wanted(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"declared: {message}"):
        bind(tensors(**changes), SCHEME="PLAIN")


def test_a_tensor_may_be_unaligned_where_the_table_says_so() -> None:
    given = shifted(torch.zeros(3, 2, 5))
    assert bind(tensors(bytes=given), SCHEME="PLAIN")["bytes"] == given.data_ptr()


def test_missing_and_unknown_arguments_are_named() -> None:
    given = tensors(weight=torch.zeros(32), map=lambda: None)
    del given["flags"]
    with pytest.raises(TypeError, match=r"missing arguments \['flags', 'scale'\], unknown \[\]"):
        bind(given, WIDE=1, SCHEME="PACKED")
    with pytest.raises(TypeError, match=r"missing arguments \[\], unknown \['other'\]"):
        bind(tensors(other=1), SCHEME="PLAIN")
    with pytest.raises(ValueError, match=r"bf16, fp16 or fp32, not torch\.float64"):
        KernelSpec.of("declared", DTYPE=torch.float64)


@pytest.mark.parametrize(
    ("name", "table", "head", "message"),
    [
        ("no_table", "y  fp32 [n]", "float* x", "does not declare x"),
        ("no_shape", "x  fp32", "float* x", "does not declare x"),
        ("unknown_if", "x  fp32 [n]", "float* x\n#if A && B\n, int n\n#endif", "A && B"),
    ],
)
def test_an_incomplete_source_is_refused(
    name: str, table: str, head: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    declare(monkeypatch, tmp_path, name, table, head)
    with pytest.raises(ValueError, match=f"{name}: .*{message}"):
        declaration(name)
