"""Variants of kernels, their arguments, and the compiler, without a GPU.

`python -m tests.kernels` compiles every kernel for every architecture.
"""

import re
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import pytest

from swiftchat.cuda import nvrtc
from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import KernelSpec, parse_arguments
from swiftchat.cuda.quantized_kv import KV_SCHEMES
from swiftchat.errors import KernelCompileError
from tests.support.kernels.variants import all_variants, chosen_variants

NAMES = sorted(file.stem for file in nvrtc.KERNELS.glob("*/*.cu"))


VARIANTS = all_variants()


def test_each_kernel_has_variants_and_a_test_of_its_name() -> None:
    tests = {file.stem.removeprefix("test_") for file in Path(__file__).parent.glob("test_*.py")}
    assert sorted(VARIANTS) == NAMES
    assert set(NAMES) <= tests


def entry_parameters(spec: KernelSpec) -> list[tuple[str, str]]:
    """The names and types of an entry point's parameters, as in `KernelSpec.arguments`."""
    source = nvrtc.source(spec.name).read_text()
    if "KV_SCHEME" not in spec.defines:
        source = re.sub(r"#ifdef KV_SCHEME\n.*?(#else\n|#endif\n)", "", source, flags=re.DOTALL)
    if "ROTARY" not in spec.defines:
        source = re.sub(r"#ifdef ROTARY\n.*?(#else\n|#endif\n)", "", source, flags=re.DOTALL)
    if spec.defines.get("KV_SCHEME") != KV_SCHEMES["int5"]:
        source = re.sub(r"#ifdef PACKED_KV\n.*?(#else\n|#endif\n)", "", source, flags=re.DOTALL)
    if spec.defines.get("SCHEME") != "PLAIN":
        source = re.sub(r"#if SCHEME == PLAIN\n.*?#endif\n", "", source, flags=re.DOTALL)
    if spec.defines.get("STREAM_X") == "0":
        source = re.sub(r"#if STREAM_X\n.*?#endif\n", "", source, flags=re.DOTALL)
    if spec.defines.get("SPLIT") == "0":
        source = re.sub(r"#if SPLIT\n.*?(#else\n|#endif\n)", "", source, flags=re.DOTALL)
    source = re.sub(r"#\w+.*", "", source)
    found = re.search(rf"\b{spec.name}_kernel\((.*?)\)\s*{{", source, re.DOTALL)
    assert found, f"{spec.name}_kernel is not defined"
    kinds = {"int": "int", "i64": "int64", "float": "float", "TensorMap": "tensor_map"}
    parameters = []
    for parameter in found[1].split(","):
        kind, name = re.fullmatch(r"(.*?)(\w+)", parameter.strip(), re.DOTALL).groups()  # type: ignore[union-attr]
        parameters.append((name, "pointer" if "*" in kind else kinds[kind.split()[-1]]))
    return parameters


@pytest.mark.parametrize("name", NAMES)
def test_declared_arguments_are_the_entry_points_parameters(name: str) -> None:
    for spec in VARIANTS[name]:
        assert list(parse_arguments(spec.arguments).items()) == entry_parameters(spec)


def test_a_launch_needs_exactly_the_declared_arguments() -> None:
    spec = KernelSpec("scale", "pointer x, int n, float factor")
    spec.check_arguments(("factor", "x", "n"))
    with pytest.raises(TypeError, match=r"scale: missing arguments \['factor'\], unknown \['by'\]"):
        spec.check_arguments(("x", "n", "by"))


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
