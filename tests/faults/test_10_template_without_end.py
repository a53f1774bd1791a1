"""Fault 10: a chat template never ends, or needs all memory.

Required: it is stopped after 2 s, in a process of its own that does not outlive the program, exit
code 7.

Provoked by: a power that Jinja computes when it compiles, nested loops, and a text that doubles
sixty times. Processor time is measured, because a busy machine needs more real time.
"""

import os

import pytest

from tests.support import fake_engine
from tests.support.program import Program, assert_error
from tests.support.worker_processes import running_programs

BOMBS = [
    "{{ 10**(10**8) }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set x = 'xx' %}" + "{% set x = x ~ x %}" * 60,
]
# The limit of 2 s, and the start of two processes.
_MAX_CPU_S = 10


def _children_cpu_s() -> float:
    return sum(os.times()[2:4])


@pytest.mark.parametrize("source", BOMBS)
def test_a_template_without_end_is_stopped(program: Program, source: str) -> None:
    fake_engine.make_folder(program.folder, template=source)
    before_s = _children_cpu_s()
    assert_error(program.run("-p", "x"), 7, "the chat template cannot be used")
    assert _children_cpu_s() - before_s < _MAX_CPU_S
    assert running_programs() == []
