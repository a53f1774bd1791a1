"""Variants of kernels, their arguments, and the compiler, without a GPU.

`python -m tests.kernels` compiles every kernel for every architecture.
"""

from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import pytest

from swiftchat.cuda import nvrtc
from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.declaration import declaration
from swiftchat.cuda.signature import KernelSpec
from swiftchat.errors import KernelCompileError
from tests.support.kernels.specs import all_variants
from tests.support.kernels.variants import chosen_variants

NAMES = sorted(file.stem for file in nvrtc.KERNELS.glob("*/*.cu"))


VARIANTS = all_variants()


def test_each_kernel_has_variants_and_a_test_of_its_name() -> None:
    tests = {file.stem.removeprefix("test_") for file in Path(__file__).parent.glob("test_*.py")}
    assert sorted(VARIANTS) == NAMES
    assert set(NAMES) <= tests


# The dtypes in tables for types of parameters; other types depend on macros.
DTYPES_OF = {
    "float": {"fp32"},
    "T": {"T"},
    "int": {"int32"},
    "unsigned": {"int32"},
    "u32": {"int32", "u8"},
    "u8": {"u8", "int8"},
    "i64": {"int64"},
    "u64": {"u64", "int64"},
}


@pytest.mark.parametrize("name", NAMES)
def test_tables_declare_what_parameters_point_to(name: str) -> None:
    declared = declaration(name)
    pointers = {each.name: each.c_type for each in declared.parameters if each.kind == "pointer"}
    for pointer, c_type in pointers.items():
        allowed = DTYPES_OF.get(c_type.replace("const ", "").removesuffix("*"))
        found = {tensor_type.dtype for _, tensor_type in declared.tensors[pointer]}
        assert found and (allowed is None or found <= allowed), (pointer, c_type, found)


@pytest.mark.parametrize("name", NAMES)
def test_every_variant_has_a_signature(name: str) -> None:
    for spec in VARIANTS[name]:
        signature = spec.signature
        assert len(set(signature.names)) == len(signature.names) == len(signature.kinds) > 0


@pytest.mark.parametrize("name", NAMES)
def test_every_value_and_every_pair_of_values_is_compiled(name: str) -> None:
    chosen = chosen_variants(VARIANTS[name])
    assert set(chosen) == set(nvrtc.ARCHITECTURES) and all(chosen.values())

    def values(specs: Iterable[KernelSpec]) -> set[tuple[str, str]]:
        return {value for spec in specs for value in spec.defines.items()}

    def pairs(specs: Iterable[KernelSpec]) -> set[frozenset[tuple[str, str]]]:
        return {frozenset(pair) for spec in specs for pair in combinations(spec.defines.items(), 2)}

    assert values(chosen["sm_90a"]) == values(VARIANTS[name])
    assert pairs(spec for specs in chosen.values() for spec in specs) == pairs(VARIANTS[name])


@pytest.mark.parametrize("arch", nvrtc.ARCHITECTURES)
def test_the_compiler_knows_every_architecture(arch: str) -> None:
    cubin = nvrtc.compile_cubin("advance", arch, VARIANTS["advance"][0].defines, optimized=False)
    assert cubin[:4] == b"\x7fELF"


def test_compile_error_names_file_and_line() -> None:
    with pytest.raises(KernelCompileError, match=r"(norm\.cu|common\.cuh)\(\d+\): error"):
        nvrtc.compile_cubin("norm", "sm_90a", {"DTYPE": "no_such_type", "LAYER_NORM": "0"})


def test_cached_kernel_is_not_compiled_again(tmp_path: Path, monkeypatch) -> None:
    cache, defines = CubinCache(tmp_path), VARIANTS["norm"][0].defines
    cubin = cache.get("norm", "sm_90a", defines)
    monkeypatch.setattr(nvrtc, "compile_cubin", lambda *_: pytest.fail("compiled again"))
    assert cache.get("norm", "sm_90a", defines) == cubin


def test_unwritable_cache_folder_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert CubinCache(tmp_path / "file" / "cubins").get(
        "norm", "sm_90a", VARIANTS["norm"][0].defines
    )
