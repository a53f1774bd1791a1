"""The deliberate faults can still be made; `python -m tests.mutants` runs the tests on them."""

import ast
from pathlib import Path

import pytest

from tests.mutants.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.fault)
def test_the_text_occurs_once_and_the_tests_exist(mutant: Mutant) -> None:
    changed = mutant.apply((ROOT / mutant.file).read_text())
    ast.parse(changed)  # a syntax error would be noticed by any test
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).exists()
        assert f"def {name}(" in (ROOT / file).read_text() if name else True


def test_descriptions_differ() -> None:
    assert len({mutant.fault for mutant in MUTANTS}) == len(MUTANTS) >= 31
