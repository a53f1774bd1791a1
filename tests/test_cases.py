"""Cases in one test: each is called, and a failure names its own."""

import inspect

import pytest

from tests.support.cases import each_case


def test_all_cases_are_called_with_the_other_arguments() -> None:
    found: list[tuple[str, int, bool, str]] = []

    @each_case(("number", "is_even"), [(1, False), (2, True)])
    @each_case("letter", "ab")
    def test(kind: str, letter: str, number: int, is_even: bool) -> None:
        found.append((letter, number, is_even, kind))

    test(kind="k")
    numbers = ((1, False), (2, True))
    assert found == [(letter, *pair, "k") for pair in numbers for letter in "ab"]
    assert list(inspect.signature(test).parameters) == ["kind"]  # what pytest has to give


def test_a_failure_names_its_case() -> None:
    @each_case("divisor", [2, 0, 3])
    @each_case(("dividend", "name"), [(6, "six")])
    def test(dividend: int, name: str, divisor: int) -> None:
        assert dividend // divisor

    with pytest.raises(ZeroDivisionError) as caught:
        test()
    assert caught.value.__notes__ == ["dividend=6, name='six'", "divisor=0"]
