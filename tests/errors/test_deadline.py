"""Work with a limit of time: results and errors pass, late work is given up."""

import threading

import pytest

from swiftchat.errors.deadline import within


def test_results_and_errors_pass() -> None:
    assert within(60, lambda: 5) == 5
    with pytest.raises(KeyError):
        within(60, lambda: {}[1])


def test_late_work_is_given_up() -> None:
    is_over = threading.Event()
    with pytest.raises(TimeoutError):
        within(0.05, is_over.wait)
    is_over.set()
