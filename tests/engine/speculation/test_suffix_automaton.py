"""The suffix automaton against a search of all suffixes."""

from hypothesis import given
from hypothesis import strategies as st

from swiftchat.engine.speculation.suffix_automaton import SuffixAutomaton

TEXTS = st.integers(1, 4).flatmap(
    lambda size: st.lists(st.integers(0, size - 1), min_size=1, max_size=40)
)


def longest_repeated_suffix(ids: list[int]) -> int:
    """Return the length of the longest suffix that also ends before the last id."""
    for length in range(len(ids) - 1, 0, -1):
        suffix = ids[-length:]
        if any(ids[end - length : end] == suffix for end in range(length, len(ids))):
            return length
    return 0


@given(TEXTS)
def test_the_longest_repeated_suffix_is_found_after_every_id(ids: list[int]) -> None:
    automaton = SuffixAutomaton()
    for n, token in enumerate(ids, start=1):
        automaton.extend([token])
        assert automaton.match_length == longest_repeated_suffix(ids[:n])


@given(TEXTS, st.integers(1, 60))
def test_the_ids_after_an_earlier_occurrence_are_returned(ids: list[int], num: int) -> None:
    automaton = SuffixAutomaton()
    automaton.extend(ids)
    length, following = automaton.match_length, automaton.following(num)
    if not length:
        assert following == []
        return
    assert len(following) == num
    # For one earlier end of the suffix, `following` is the text from there, repeated.
    ends = [e for e in range(length, len(ids)) if ids[e - length : e] == ids[-length:]]
    repeated = [[*ids[end:] * num][:num] for end in ends]
    assert following in repeated


def test_ids_may_be_added_in_any_parts() -> None:
    ids = [1, 2, 3, 1, 2, 3, 4, 1, 2, 3]
    whole, parts = SuffixAutomaton(), SuffixAutomaton()
    whole.extend(ids)
    for part in (ids[:4], ids[4:9], ids[9:]):
        parts.extend(part)
    assert parts.match_length == whole.match_length == 3
    assert parts.following(2) == whole.following(2) == [4, 1]
