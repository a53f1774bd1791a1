"""A choice of the variants of all kernels that `python -m tests.kernels` compiles.

`python -m tests.support.kernels.variants` compiles every variant for every architecture, which
takes five minutes of processor time for each architecture.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swiftchat.cuda import nvrtc
from swiftchat.cuda.signature import KernelSpec
from tests.support.kernels.specs import all_variants


def chosen_variants(specs: Sequence[KernelSpec]) -> dict[str, list[KernelSpec]]:
    """Return which variants of a kernel to compile for each architecture.

    Every value of every macro occurs for sm_90a, every pair of values of two macros for some
    architecture, and every architecture has a variant.
    """
    covering = _cover(specs, 1)
    others = [arch for arch in nvrtc.ARCHITECTURES if arch != "sm_90a"]
    chosen: dict[str, list[KernelSpec]] = {arch: [] for arch in others}
    for spec, arch in zip(_cover(specs, 2, covering), itertools.cycle(others), strict=False):
        chosen[arch].append(spec)
    for number, arch in enumerate(others):
        chosen[arch] = chosen[arch] or [specs[number % len(specs)]]
    return {"sm_90a": covering, **chosen}


@dataclass(frozen=True)
class Compilation:
    """A variant of a kernel and an architecture that it is compiled for."""

    name: str
    arch: str
    defines: Mapping[str, str]
    is_optimized: bool


def compilations() -> list[Compilation]:
    """Return the chosen variants of all kernels.

    One of each kernel is compiled for sm_90a as the program compiles it, with all optimization. All
    others are compiled without most of the optimization, which takes most of the time: what a
    compiler refuses does not depend on it.
    """
    found = []
    for name, specs in sorted(all_variants().items()):
        for arch, chosen in chosen_variants(specs).items():
            for number, spec in enumerate(chosen):
                is_optimized = arch == "sm_90a" and number == 0
                found.append(Compilation(name, arch, spec.defines, is_optimized))
    return found


def _cover(
    specs: Sequence[KernelSpec], size: int, known: Sequence[KernelSpec] = ()
) -> list[KernelSpec]:
    """Choose variants, greedily, so that with the known ones all tuples of `size` values occur."""
    missing = set().union(*(_tuples(spec, size) for spec in specs))
    missing -= set().union(*(_tuples(spec, size) for spec in known))
    chosen = []
    while missing:
        chosen.append(max(specs, key=lambda spec: len(_tuples(spec, size) & missing)))
        missing -= _tuples(chosen[-1], size)
    return chosen or ([] if known else [specs[0]])


def _tuples(spec: KernelSpec, size: int) -> set[tuple[tuple[str, str], ...]]:
    return set(itertools.combinations(sorted(spec.defines.items()), size))


def main() -> None:
    for name, specs in all_variants().items():
        for arch in nvrtc.ARCHITECTURES:
            for spec in specs:
                nvrtc.compile_cubin(name, arch, spec.defines)
            print(f"{name} for {arch}: {len(specs)} variants", flush=True)


if __name__ == "__main__":
    main()
