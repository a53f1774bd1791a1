"""The faults that the program must survive, and the tests that provoke them.

A test has the marker `@pytest.mark.fault(N)` with the numbers of the faults that it provokes.
`python -m tests.faults` makes the page docs/faults.md of the table below and of the markers.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "faults.md"
_HEAD = """# Faults

What must happen if a process dies, a disk is full, a file is damaged or hostile, or a device is
missing. Every fault has tests that provoke it, which have the marker `fault` with its number:
`python -m pytest -m fault` runs all of them. `python -m tests.faults` makes this page from the
table in `tests/faults.py` and from the markers.

In all cases stderr has one `error:` line and one `hint:` line and no traceback (without `--debug`),
the terminal is restored, and files that existed before are intact. Limits of time in the table are
those for an idle machine. The tests wait up to a minute, because a busy machine is slower.
"""


@dataclass(frozen=True)
class Fault:
    """A fault and what the program must do about it."""

    name: str
    required: str

    @property
    def exit_codes(self) -> list[str]:
        """The exit codes that are required; none if the program goes on."""
        lists = re.findall(r"exit codes? (\d+(?:(?:, | and | or )\d+)*)", self.required)
        return list(dict.fromkeys(code for codes in lists for code in re.findall(r"\d+", codes)))


@dataclass(frozen=True)
class MarkedTest:
    """A test with the marker of one or several faults."""

    file: str
    name: str
    faults: list[int]
    needs_gpu: bool


FAULTS = {
    1: Fault(
        "a `.bin` or `.pth` file calls functions when it is unpickled",
        "nothing is called, no other reader is tried, exit code 7.",
    ),
    2: Fault(
        "the program is killed while it saves a conversation",
        "the store has the old or the new conversation, whole, and no message whose save has "
        "returned is lost.",
    ),
    3: Fault(
        "control characters or bidirectional overrides in an answer, a saved conversation, the "
        "name of a model or of a tensor, or the text of an error",
        "the terminal receives visible glyphs instead; one function, "
        "`swiftchat.chat.terminal.sanitize`, replaces them before the terminal.",
    ),
    4: Fault(
        "the process of a rank dies",
        "the error names the rank and the signal within 5 s, all ranks are gone, what was "
        "generated is saved, and the next message starts the ranks again.",
    ),
    5: Fault(
        "the process of the terminal is killed",
        "the engine's processes end within 5 s; what was generated is saved.",
    ),
    6: Fault(
        "a downloaded file has the right size and other content",
        "the SHA-256 or the hash of git is compared, the file is renamed and not used, exit "
        "code 7; the next run downloads that file again.",
    ),
    7: Fault(
        "a process listens on a network interface",
        "every socket that listens is on loopback; torch's own store would listen on all "
        "interfaces.",
    ),
    8: Fault(
        "a GGUF file is wrong about its counts, dimensions, offsets, alignment or nesting",
        "an error that names the file, after at most 5 s of processor time and with at most 512 "
        "MB of memory, exit code 7.",
    ),
    9: Fault(
        "a chat template reaches for Python's objects",
        "nothing of it is executed, exit code 7.",
    ),
    10: Fault(
        "a chat template never ends, or needs all memory",
        "it is stopped after 2 s, in a process of its own that does not outlive the program, "
        "exit code 7.",
    ),
    11: Fault(
        "Ctrl-C while an answer is generated",
        "the answer stops within 200 ms, its beginning is kept and marked as interrupted, the "
        "prompt is back, and the next turn has both in its prompt.",
    ),
    12: Fault(
        "the disk is full, or becomes full, while a model or a conversation is written",
        "`convert` and `download` end with the needed and the free space and exit code 8, and "
        "nothing has the final name; a download continues later with the bytes it has. A "
        "conversation goes on unsaved with one warning, and a command whose purpose is to save "
        "ends with exit code 8. What was saved before is whole.",
    ),
    13: Fault(
        "the process of a rank hangs",
        "after a limit of some seconds the error names the rank and why it is given up, all "
        "ranks are gone, what was generated is saved, and the next message starts the ranks "
        "again.",
    ),
    14: Fault(
        "a message or an attached file contains the text of a control token",
        "it becomes ordinary ids; only the template writes control tokens.",
    ),
    15: Fault(
        "a shard is truncated, its tensors overlap, or it is a web page or a git-lfs pointer",
        "an error that names the file, exit code 7.",
    ),
    16: Fault(
        "weights or KV cache do not fit into the memory of the device",
        "an error before the weights are loaded, with the needed and the free memory and the "
        "largest context that fits, exit code 4. That context then fits.",
    ),
    17: Fault(
        "the memory is exhausted in the middle of an answer",
        "that turn ends with an error and its beginning is kept; the same engine answers the "
        "next turn.",
    ),
    18: Fault(
        "the prompt does not fit into the context",
        "an error before prefill, with the numbers and the choices, exit code 5; nothing is cut "
        "silently. In a chat the question returns to the input line.",
    ),
    19: Fault(
        "the model computes logits that are NaN or infinite",
        "the answer stops, the error names the first layer with such values, exit code 7; "
        "another question is answered.",
    ),
    20: Fault(
        "a download is interrupted or killed",
        "nothing of the model is visible, exit code 130 after Ctrl-C; the next run goes on with "
        "the byte where the first one ended, and then verifies the file.",
    ),
    21: Fault(
        "a conversion is interrupted or killed",
        "nothing has the final name; after Ctrl-C and SIGTERM nothing is left, exit codes 130 "
        "and 143. A rerun works and removes what a killed one has left.",
    ),
    22: Fault(
        "there is no GPU, or its driver is older than torch needs",
        "the CPU computes, with a note if there is a driver; where a GPU was asked for, an "
        "error with the found and the needed version and exit code 4.",
    ),
    23: Fault(
        "a kernel does not compile",
        "an error with the kernel, the architecture and the compiler's log, exit code 4.",
    ),
    24: Fault(
        "a file in the cache of compiled kernels is damaged",
        "the kernel is compiled again without a message; the damaged machine code is never loaded.",
    ),
    25: Fault(
        "two processes convert or download the same model",
        "one works, the other one says that it waits, and both end with the whole model.",
    ),
    26: Fault(
        "two processes write one conversation",
        "no message of either process is lost, each process has a branch of its own, and a "
        "reader never sees half of a save.",
    ),
    27: Fault(
        "the database of conversations is damaged",
        "the file is kept under another name, one warning has that name, and the chat works and "
        "is saved in a new file.",
    ),
    28: Fault(
        "other users of the machine read conversations, because the umask allows it",
        "the history of the input line, conversations, reports of errors and every other file "
        "of the user have mode 0600, their folders 0700, whatever the umask.",
    ),
    29: Fault(
        "the user's token for the hub is shown",
        "it is sent to the hub only, and is in no message, log, file or list of processes, also "
        "with `--debug`.",
    ),
    30: Fault(
        "the names of a repository or of a shard index lead out of the model's folder",
        "exit code 7 with the name, nothing outside the folder is read or written.",
    ),
    31: Fault(
        "a torch file has tensors that are sparse, repeat one element, or are compressed",
        "exit code 7 with the file and the reason, within 1 GiB of address space; nothing is "
        "left under the name of the output.",
    ),
    32: Fault(
        "`config.json` has absurd values",
        "exit code 7 with the name of the field and the value, before anything is loaded.",
    ),
    33: Fault(
        "a tensor of a model is missing, occurs twice, or has another shape",
        "exit code 7 with the name of the tensor, what was expected and what was found.",
    ),
    34: Fault(
        "`tokenizer.json` is made to hang the program",
        "exit code 7 with the reason, or the right ids, after a few seconds of processor time "
        "and within 2 GiB of address space.",
    ),
    35: Fault(
        "what reads the output ends before all of it is written",
        "the program ends without a message, exit code 141.",
    ),
    36: Fault(
        "SIGHUP, SIGTERM, or the terminal is closed",
        "what has been generated is saved, the engine's processes end, the terminal is "
        "restored, exit codes 129 (SIGHUP) and 143 (SIGTERM).",
    ),
    37: Fault(
        "the locale is ASCII or Latin-1, or arguments and input are not in its encoding",
        "what cannot be encoded or decoded is replaced, nothing crashes.",
    ),
    38: Fault(
        "the terminal is resized, has one column and one row, is dumb, or is none",
        "nothing crashes, no word of an answer is lost, a dumb terminal and a pipe get no "
        "escape sequence.",
    ),
    39: Fault(
        "an answer is a giant code fence, a table of 20,000 rows, or a line of a megabyte",
        "no frame takes more than 100 ms, and Ctrl-C stops the answer.",
    ),
    40: Fault(
        "the hub refuses, fails, stalls or cannot be reached",
        "each cause has an error line of its own, exit codes 3 and 6 (3: no such model); a "
        "model that is installed works without the hub.",
    ),
    41: Fault(
        "the user's folders cannot be written",
        "a chat works, one warning says that it is not saved, what was saved before can be "
        "read; what asks for a file explicitly is an error, exit code 8.",
    ),
    42: Fault(
        "the program hangs, and the user types Ctrl-C twice within 2 s",
        "the program ends at the second one, whatever hangs, with exit code 130; the terminal "
        "is restored and no process of the engine remains.",
    ),
    43: Fault(
        "text is pasted or typed while an answer, a load or a command runs",
        "typed lines wait for the end of the answer, everything else is kept as a draft; a paste "
        "is never sent and nothing is left to the shell; Ctrl-C works behind a full input queue.",
    ),
    44: Fault(
        "a slash command raises an unforeseen exception",
        "one `error:` line and one `hint:` line, which names a report file with the traceback; "
        "the conversation goes on.",
    ),
    45: Fault(
        "files of the user or of the model's settings are damaged",
        "an error or a warning names each of them, the rest works; exit code 2 for the "
        "configuration, a role and an import, 7 for a file of the model, never a traceback.",
    ),
    46: Fault(
        "an engine sends damaged, oversized or endless frames",
        "the connection is dropped, the error says so, and the chat goes on with a new connection.",
    ),
    47: Fault(
        "a file of the KV cache on disk is damaged, of another model, or half written",
        "it is removed with one warning, the prompt is computed as usual, and the answer is the "
        "same.",
    ),
    48: Fault(
        "an adapter, a soft prompt or a draft model belongs to another model",
        "exit code 7 with the tensor and both shapes, before the model is loaded. A draft model "
        "has no shape in common with its model but the vocabulary: exit code 2 with the first "
        "other token.",
    ),
    49: Fault(
        "a schema or a grammar cannot be met, or asks for what is not supported",
        "exit code 2 with the place in the schema, before anything is loaded; an answer never "
        "violates a schema that was accepted.",
    ),
    50: Fault(
        "the prompt is long and the processor slow",
        "progress is shown within a second and at least every second after it; Ctrl-C brings "
        "the prompt back within half a second.",
    ),
    51: Fault(
        "an attached document is damaged, encrypted, unpacks to too much, or has no text",
        "its process ends within limits of time and memory; exit code 2; a pattern leaves it out "
        "with a note.",
    ),
    52: Fault(
        "the program is interrupted or killed while it indexes a folder of knowledge",
        "what was indexed stays so, and the next question goes on with the rest; a message at the "
        "prompt returns to the input line.",
    ),
    53: Fault(
        "the index of a folder of knowledge is damaged",
        "it is made again when it is opened; damage that shows later is exit code 8 with the "
        "command that removes it.",
    ),
}


def marked_tests() -> list[MarkedTest]:
    """Return all tests with the marker `fault`, by file and place."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [test for file in files for test in marked_tests_of(file)]


def marked_tests_of(file: Path) -> Iterator[MarkedTest]:
    """Yield the tests of a file that have the marker `fault`.

    Only decorators count. Raises ValueError for a marker whose arguments are not numbers of faults.
    """
    text = file.read_text("utf-8")
    if "mark.fault" not in text:  # parsing all tests would take seconds
        return
    place = file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else file.name
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
        markers = [text for text in decorators if text.startswith("pytest.mark.fault")]
        numbers = [number for text in markers for number in _numbers(text, f"{place}: {node.name}")]
        if numbers:
            needs_gpu = any(re.match(r"pytest\.mark\.gpus?\b", text) for text in decorators)
            yield MarkedTest(place, node.name, numbers, needs_gpu)


def _numbers(marker: str, test: str) -> list[int]:
    found = re.fullmatch(r"pytest\.mark\.fault\((\d+(?:, \d+)*)\)", marker)
    numbers = [int(number) for number in found[1].split(", ")] if found else [0]
    if not FAULTS.keys() >= set(numbers):
        raise ValueError(f"{test}: {marker} does not name faults of the table")
    return numbers


def page() -> str:
    """Return the content of the page."""
    tests = marked_tests()
    lines = [["", "fault", "required", "exit code", "tests"], ["---"] * 5]
    for number, fault in FAULTS.items():
        by_file: dict[str, list[str]] = {}
        for test in tests:
            if number in test.faults:
                name = f"`{test.name}`" + (" (needs a GPU)" if test.needs_gpu else "")
                by_file.setdefault(test.file, []).append(name)
        cell = "<br>".join(f"`{file}`: {', '.join(names)}" for file, names in by_file.items())
        codes = ", ".join(fault.exit_codes) or "—"
        lines.append([str(number), fault.name, fault.required, codes, cell])
    rows = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return _HEAD + "\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
