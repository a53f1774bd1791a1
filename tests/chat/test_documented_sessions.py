"""The sessions in the README and in docs/ equal the output of the program."""

import json
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pyte

from tests.support import fake_engine

ROOT = Path(__file__).parents[2]
_spec = spec_from_file_location("record_session", ROOT / "docs" / "record_session.py")
assert _spec and _spec.loader
record_session = module_from_spec(_spec)
_spec.loader.exec_module(record_session)

RECORDED = (ROOT / "docs" / "session.txt").read_text("utf-8")
# The answers of docs/session.txt before rendering.
ANSWERS = (
    "The capital of France is Paris.",
    "```python\ndef is_even(num):\n    return num % 2 == 0\n```\n\nThis function uses the modulus "
    "operator (`%`) to check if the remainder of the division of the input number by 2 is 0. If it "
    "is, the function returns `True`; otherwise, it returns `False`.",
)


def by_input(session: str) -> dict[str, str]:
    """Return the output after each input of a session (the lines with `>>> `)."""
    _, *parts = f"\n{session}".split("\n>>> ")
    found = {}
    for part in parts:
        typed, _, shown = part.partition("\n")
        found[typed] = shown.strip("\n")
    return found


def played(folder: Path, answers: tuple[str, ...], inputs: tuple[str, ...]) -> pyte.Screen:
    """Return the screen after a session with the fake engine."""
    command = [sys.executable, fake_engine.__file__, str(folder), json.dumps(answers), "--no-save"]
    screen: pyte.Screen = record_session.record(command, inputs)
    return screen


def test_the_recorded_session_equals_the_output(tmp_path: Path) -> None:
    """Except for the alternatives: the fake engine has other probabilities."""
    folder = fake_engine.make_folder(tmp_path / "SmolLM2-135M-Instruct")
    recorded = by_input(RECORDED)
    assert tuple(recorded) == record_session.INPUTS
    assert "90% and more" in recorded.pop("/show alternatives")
    screen = played(folder, ANSWERS, tuple(recorded))
    shown = record_session.text_of(screen)
    assert shown.splitlines()[0] == RECORDED.splitlines()[0]
    assert by_input(shown) == recorded
    picture = record_session.picture_of(screen).replace("&#160;", " ")
    assert "is_even" in picture and "/? for help" in picture and picture.startswith("<svg")


def test_the_session_in_the_readme_equals_the_output(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    block = readme.partition("In a conversation:\n\n```\n")[2].partition("```")[0]
    expected = by_input(block)
    assert len(expected) >= 3
    answers = tuple(shown for typed, shown in expected.items() if not typed.startswith("/"))
    screen = played(fake_engine.make_folder(tmp_path / "model"), answers, tuple(expected))
    assert by_input(record_session.text_of(screen)) == expected


def test_the_model_gives_the_recorded_answer(smollm2: Path, tmp_path: Path) -> None:
    """The first answer; percentages may be rounded differently on other machines."""
    folder = tmp_path / "SmolLM2-135M-Instruct"
    folder.symlink_to(smollm2)
    command = [sys.executable, "-m", "swiftchat.chat", "-m", str(folder), "--device", "cpu"]
    screen = record_session.record([*command, "--no-save"], record_session.INPUTS[:4])
    now, recorded = by_input(record_session.text_of(screen)), by_input(RECORDED)
    *settings, question, alternatives = record_session.INPUTS[:4]
    assert [now[typed] for typed in (*settings, question)] == [
        recorded[t] for t in (*settings, question)
    ]
    first, *_ = now[alternatives].splitlines()
    assert first == now[question] and re.search(
        r"^ +1 +\d+%  'The' ", now[alternatives], re.MULTILINE
    )


def test_the_first_commands_of_a_newcomer_work(smollm2_gguf: Path, tmp_path: Path) -> None:
    """In a shell with an empty home: choose a model, ask, ask the engine that stayed, stop it."""
    commands = [line.replace(" -p ", " -n 30 -p ") for line in record_session.FIRST_COMMANDS]
    screen = record_session.record_first_minutes(smollm2_gguf, tmp_path, tuple(commands))
    shown = record_session.text_of(screen, "$")
    assert "HERE" in shown and "error:" not in shown and "hint:" not in shown
    assert "is the default model now" in shown and "\nstopped Qwen2.5-Coder" in shown
    assert len(re.findall(r"\w.*\n\([\d.]+ s\)\n", shown)) == 2


def test_the_picture_shows_the_recorded_session() -> None:
    picture = (ROOT / "docs" / "session.svg").read_text("utf-8").replace("&#160;", " ")
    for typed in record_session.INPUTS:
        assert typed.split()[0] in picture
    assert "docs/session.svg" in (ROOT / "README.md").read_text("utf-8")
