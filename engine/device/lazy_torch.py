"""Import torch without the modules that only its compiler uses: 0.9 s instead of 1.1."""

import contextlib
import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Registrations for tensors without data and for kernels in Triton. They bring in torch's reference
# operators, which take a quarter of the time of `import torch`.
_COMPILER_MODULES = frozenset({"torch._meta_registrations", "torch._native"})


# What the deferred modules would have imported for others: torch 2.13 cannot make a generator of
# random numbers without it.
_NEEDED_MODULE = "torch._prims.rng_prims"


def import_torch() -> None:
    """Import torch; its compiler's modules are loaded when an attribute of theirs is accessed.

    For processes that do not use `torch.compile`: without these modules, most operators do not
    accept tensors on torch's "meta" device. A version of torch that has no such module, or accesses
    it when it is imported, works as before.
    """
    sys.meta_path.insert(0, _DeferringFinder())
    importlib.import_module("torch")
    with contextlib.suppress(ModuleNotFoundError):  # other versions of torch
        importlib.import_module(_NEEDED_MODULE)


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Import many modules without garbage collections, which take a tenth of the time.

    Later collections do not examine what exists at the end.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class _DeferringFinder(MetaPathFinder):
    """Finds the modules of torch's compiler, with a loader that runs them at first use."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _COMPILER_MODULES:
            return None
        sys.meta_path.remove(self)  # so that the other finders are asked
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec
