"""What is fuzzed: a format with its valid files, its reader and perhaps a reference."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swiftchat.errors import SwiftchatError
from tests.fuzz.mutations import mutate_bytes

Mutate = Callable[[random.Random, bytes], bytes]


class Difference(Exception):
    """The program accepted an input and read something else than it contains."""


class NoReferenceError(Exception):
    """The reference refuses an input, so there is nothing to compare."""


@dataclass(frozen=True)
class Target:
    """A format.

    `seeds` returns valid inputs, the same ones at every call. `mutate` changes the structure of an
    input; bytes are changed by `mutate_bytes`, in `byte_share` of the cases. `load(data, folder)`
    reads an input with the program, as deeply as a user's command does, and returns its values;
    `folder` is empty. Only `refusals` may leave it.

    `compare(data, folder, loaded)` raises `Difference` if the reference has other values, and
    `NoReferenceError` if it refuses the input. It runs only for accepted inputs.

    `cases` is the number of cases in CI, chosen by the time that one takes.
    """

    name: str
    seeds: Callable[[], Sequence[bytes]]
    mutate: Mutate
    load: Callable[[bytes, Path], Any]
    cases: int
    compare: Callable[[bytes, Path, Any], None] | None = None
    refusals: tuple[type[BaseException], ...] = (SwiftchatError,)
    byte_share: float = 0.35
    _seeds: list[bytes] = field(default_factory=list, compare=False)

    def inputs(self) -> Sequence[bytes]:
        """Return the seeds, made once in a process and inherited by the workers."""
        if not self._seeds:
            self._seeds.extend(self.seeds())
        return self._seeds


def case(target: Target, seed: int, index: int) -> bytes:
    """Return a mutated input, which depends only on the arguments."""
    chance = random.Random(f"{seed} {target.name} {index}")
    inputs = target.inputs()
    data = chance.choice(inputs)
    if chance.random() < target.byte_share:
        return mutate_bytes(chance, data, chance.choice(inputs))
    return target.mutate(chance, data)
