"""Every kernel compiles for every architecture, without a GPU."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from swiftchat.cuda import nvrtc, ops
from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import KernelSpec, parse_arguments
from swiftchat.errors import KernelCompileError

NAMES = sorted(file.stem for file in nvrtc.KERNELS.glob("*/*.cu"))


def all_variants() -> dict[str, list[KernelSpec]]:
    """The variants of every kernel, from the operations' modules."""
    found: dict[str, list[KernelSpec]] = {}
    for info in pkgutil.iter_modules(ops.__path__):
        module = importlib.import_module(f"{ops.__name__}.{info.name}")
        for spec in getattr(module, "VARIANTS", []):
            found.setdefault(spec.name, []).append(spec)
    return found


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
@pytest.mark.parametrize("arch", nvrtc.ARCHITECTURES)
def test_every_kernel_compiles(name: str, arch: str) -> None:
    # All variants for sm_90a; for other architectures every sixth, beginning with another one.
    chosen = VARIANTS[name]
    if arch != "sm_90a":
        chosen = chosen[nvrtc.ARCHITECTURES.index(arch) % len(chosen) :: 6]
    for spec in chosen:
        assert nvrtc.compile_cubin(name, arch, spec.defines)[:4] == b"\x7fELF"


def test_compile_error_names_file_and_line() -> None:
    with pytest.raises(KernelCompileError, match=r"(norm\.cu|common\.cuh)\(\d+\): error"):
        nvrtc.compile_cubin("norm", "sm_90a", {"DTYPE": "no_such_type", "LAYER_NORM": "0"})


def test_damaged_cache_entry_is_compiled_again(tmp_path: Path) -> None:
    cache, defines = CubinCache(tmp_path / "cubins"), VARIANTS["norm"][0].defines
    cubin = cache.get("norm", "sm_90a", defines)
    (file,) = (tmp_path / "cubins").iterdir()
    entry = file.read_bytes()
    for damaged in (b"", entry[:-1], entry[:100] + b"\0" + entry[101:]):
        file.write_bytes(damaged)
        assert cache.get("norm", "sm_90a", defines) == cubin
        assert file.read_bytes() == entry


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
