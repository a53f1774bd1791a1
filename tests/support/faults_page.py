"""The page docs/faults.md, made from the docstrings of tests/faults.

The docstring of a module `test_NN_<noun>.py` has the line `Fault NN: <fault>.` and paragraphs that
begin with `Required:` (what must happen, with the exit code), `Provoked by:` and, if a machine may
lack something, `Needs:`. `python -m tests.faults` writes the page.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "faults"
PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
NUM_FAULTS = 50
_HEAD = """# Faults

What must happen if a process dies, a disk is full, a file is damaged or hostile, or a device is
missing. Every fault has a file of tests in `tests/faults/` that provokes it in the real program.
`python -m tests.faults` makes this page from the docstrings of these files.

In all cases stderr has one `error:` line and one `hint:` line and no traceback (without `--debug`),
the terminal is restored, and files that existed before are intact. Limits of time in the table are
those for an idle machine. The tests wait up to a minute, because a busy machine is slower.
"""


@dataclass(frozen=True)
class Fault:
    """A fault as its test describes it; `exit_codes` is empty if the program goes on."""

    number: int
    name: str
    required: str
    exit_codes: list[str]
    provoked: str
    needs: str
    file: Path


def read(file: Path) -> Fault:
    """Return the fault that a file of tests describes; raises ValueError if it is incomplete."""
    docstring = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    title, *paragraphs = [" ".join(part.split()) for part in docstring.split("\n\n")]
    found = re.fullmatch(r"Fault (\d+): (.+)\.", title)
    parts = {label: text for label, _, text in (part.partition(": ") for part in paragraphs)}
    unknown = parts.keys() - {"Required", "Provoked by", "Needs"}
    if found is None or unknown or not {"Required", "Provoked by"} <= parts.keys():
        raise ValueError(f"{file.name}: its docstring is not that of a fault")
    number, name = int(found[1]), found[2]
    if not file.name.startswith(f"test_{number:02}_"):
        raise ValueError(f"{file.name}: its docstring has fault {number}")
    required = parts["Required"]
    lists = re.findall(r"exit codes? (\d+(?:(?:, | and | or )\d+)*)", required)
    codes = [code for each in lists for code in re.findall(r"\d+", each)]
    provoked = parts["Provoked by"]
    return Fault(number, name, required, codes, provoked, parts.get("Needs", ""), file)


def faults() -> list[Fault]:
    """Return all faults, in the order of their numbers."""
    return sorted(map(read, FOLDER.glob("test_*.py")), key=lambda fault: fault.number)


def page() -> str:
    """Return the content of the page."""
    lines = [["", "fault", "required", "exit code", "provoked by", "tests"], ["---"] * 6]
    for fault in faults():
        needs = f" **Needs {fault.needs}**" if fault.needs else ""
        codes = ", ".join(dict.fromkeys(fault.exit_codes)) or "—"
        file = f"`tests/faults/{fault.file.name}`"
        provoked = fault.provoked + needs
        lines.append([str(fault.number), fault.name, fault.required, codes, provoked, file])
    rows = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return _HEAD + "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)
