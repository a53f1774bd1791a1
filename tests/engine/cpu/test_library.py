"""The choice of a variant: environment, features of the processor, missing and damaged files."""

import shutil
from pathlib import Path

import pytest

from swiftchat.engine.cpu import compile_kernels as compiling
from swiftchat.engine.cpu import library
from swiftchat.engine.cpu.compile_kernels import (
    LIBRARIES,
    PLAINEST,
    VARIANTS,
    host_target,
    library_path,
)
from swiftchat.engine.cpu.features import REQUIRED, Feature
from swiftchat.engine.cpu.library import VARIABLE, choose_kernels
from swiftchat.errors import DeviceError, UsageError
from tests.support.native.libraries import VARIANT_NAMES, compile_kernels, load

TARGET = host_target()
pytestmark = pytest.mark.skipif(TARGET is None, reason="no CPU kernels for this kind of machine")


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    compile_kernels()


def pretend(monkeypatch: pytest.MonkeyPatch, features: Feature) -> None:
    monkeypatch.setattr(library, "_features", lambda *_: features)


def copy(folder: Path, *variants: str) -> Path:
    """Copy the libraries of these variants to `folder`."""
    assert TARGET is not None
    for variant in variants:
        shutil.copy(library_path(LIBRARIES, TARGET, variant), folder)
    return folder


def test_every_variant_has_its_features() -> None:
    assert {v.name for variants in VARIANTS.values() for v in variants} == set(REQUIRED)
    for variants in VARIANTS.values():
        assert variants[0].name == PLAINEST
        needed = [REQUIRED[variant.name] for variant in variants]
        # A variant that needs more comes later.
        assert all(a & b != b for i, b in enumerate(needed) for a in needed[:i])


def test_features_of_this_processor_match_the_systems() -> None:
    flags = Path("/proc/cpuinfo")
    if not flags.exists() or TARGET is None or TARGET.architecture != "x86_64":
        pytest.skip("needs /proc/cpuinfo of x86-64")
    words = {
        "avx2": Feature.AVX2,
        "avx512f": Feature.AVX512,
        "avx512_vnni": Feature.AVX512VNNI,
        "avx512_bf16": Feature.AVX512BF16,
        "amx_tile": Feature.AMX,
        "avx_vnni": Feature.AVXVNNI,
    }
    listed = set(flags.read_text().split())
    expected = {feature for word, feature in words.items() if word in listed}
    assert set(Feature(load(PLAINEST).cpu_features())) == expected


@pytest.mark.parametrize("variant", VARIANT_NAMES)
def test_best_variant_is_chosen(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, REQUIRED[variant] | Feature.AMX)
    choice = choose_kernels({})
    if variant == PLAINEST:
        assert choice.library is None
        assert choice.reason == f"the processor lacks {REQUIRED[VARIANT_NAMES[1]].words}"
    else:
        assert choice.variant == variant
        assert choice.library is not None
        assert choice.reason.startswith("the processor has ")


def test_off() -> None:
    choice = choose_kernels({VARIABLE: "off"})
    assert choice.library is None
    assert choice.reason == "switched off by SWIFTCHAT_CPU_KERNELS=off"


@pytest.mark.parametrize("value", ["", "auto"])
def test_empty_means_auto(value: str) -> None:
    assert choose_kernels({VARIABLE: value}) == choose_kernels({})


def test_named_variant() -> None:
    choice = choose_kernels({VARIABLE: PLAINEST})
    assert (choice.variant, choice.library) == (PLAINEST, load(PLAINEST))
    assert choice.reason == "chosen by SWIFTCHAT_CPU_KERNELS"


def test_unknown_name() -> None:
    with pytest.raises(UsageError, match="SWIFTCHAT_CPU_KERNELS has the unknown value 'sse9'") as e:
        choose_kernels({VARIABLE: "sse9"})
    assert e.value.hint == f"use one of auto, off, {', '.join(VARIANT_NAMES)}"


def test_variant_that_the_processor_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, Feature(0))
    name = VARIANT_NAMES[1]
    with pytest.raises(UsageError) as e:
        choose_kernels({VARIABLE: name})
    lacking = REQUIRED[name].words
    assert e.value.message == f"SWIFTCHAT_CPU_KERNELS={name}: the processor lacks {lacking}"
    assert e.value.hint == "this processor has none; unset SWIFTCHAT_CPU_KERNELS"


def test_no_libraries(tmp_path: Path) -> None:
    choice = choose_kernels({}, tmp_path)
    assert choice.library is None
    assert choice.reason == "swiftchat was installed without compiled kernels"
    with pytest.raises(DeviceError, match="installed without compiled kernels"):
        choose_kernels({VARIABLE: PLAINEST}, tmp_path)


def test_damaged_library(tmp_path: Path) -> None:
    assert TARGET is not None
    library_path(tmp_path, TARGET, PLAINEST).write_text("not a library")
    choice = choose_kernels({}, tmp_path)
    assert choice.library is None
    assert "cannot be loaded" in choice.reason
    assert "\n" not in choice.reason


def test_library_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy(tmp_path, PLAINEST)
    monkeypatch.setattr(library, "interface_digest", lambda: 0)
    assert "is of another version of swiftchat" in choose_kernels({}, tmp_path).reason


def test_machine_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling.platform, "machine", lambda: "riscv64")
    choice = choose_kernels({})
    assert choice.library is None
    assert choice.reason == "there are no kernels for this kind of machine"
    with pytest.raises(UsageError) as e:
        choose_kernels({VARIABLE: "avx2"})
    assert e.value.hint == "use one of auto, off"
