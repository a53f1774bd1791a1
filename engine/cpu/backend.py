"""The native kernels for one engine: its threads, the factory of its weights, its decoder."""

from collections.abc import Mapping
from dataclasses import dataclass

from swiftchat.engine.cpu.library import choose_kernels
from swiftchat.engine.cpu.native_weights import NativeWeights
from swiftchat.engine.cpu.program import Pool
from swiftchat.engine.cpu.self_test import self_test


@dataclass(frozen=True)
class NativeKernels:
    """The variant of the kernels that an engine computes with; `factory` makes its weights."""

    variant: str
    pool: Pool
    factory: NativeWeights

    @classmethod
    def open(cls, environ: Mapping[str, str], num_threads: int) -> "NativeKernels | str":
        """Choose the variant, start its threads and test it; return the reason without kernels.

        Raises as `choose_kernels` does, and `MemoryError`.
        """
        choice = choose_kernels(environ)
        if choice.library is None or choice.variant is None:
            return choice.reason
        pool = Pool(choice.library, num_threads)
        if fault := self_test(pool):
            pool.close()
            return f"the {choice.variant} kernels failed their test: {fault}"
        return cls(choice.variant, pool, NativeWeights(pool))
