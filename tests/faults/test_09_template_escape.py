"""Fault 9: a chat template reaches for Python's objects.

Required: nothing of it is executed, exit code 7.

Provoked by: known ways out of Jinja's sandbox in the template of a model, which would create a
file. `tests/tokenizer/test_template_limits.py` has more of them.
"""

from pathlib import Path

import pytest

from tests.support import fake_engine
from tests.support.program import Program, assert_error
from tests.support.tiny_llama import entry_names

PROBES = [
    "{{ cycler.__init__.__globals__.os.system('touch escaped') }}",
    "{{ (messages|attr('__class__')).__mro__[1].__subclasses__() }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
]


@pytest.mark.parametrize("source", PROBES)
def test_a_template_cannot_reach_python(
    program: Program, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_engine.make_folder(program.folder, template=source)
    folder = tmp_path / "working"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert_error(program.run("-p", "x"), 7, "the chat template cannot be used")
    assert entry_names(folder) == []
