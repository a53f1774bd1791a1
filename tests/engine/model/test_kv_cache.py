"""Copies of blocks that one kernel makes in no defined order."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from swiftchat.engine.model.kv_cache import independent_copies

BLOCKS = st.integers(0, 4)


@given(st.lists(st.tuples(BLOCKS, BLOCKS), max_size=8), st.randoms())
def test_groups_of_copies_equal_the_copies_in_order(
    copies: list[tuple[int, int]], shuffled: Random
) -> None:
    expected, found = list("abcde"), list("abcde")
    for source, destination in copies:
        expected[destination] = expected[source]
    for group in independent_copies(copies):
        assert group
        shuffled.shuffle(group)
        for source, destination in group:
            found[destination] = found[source]
    assert found == expected
