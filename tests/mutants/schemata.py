"""Mutants that are all in one tree, each behind a switch (`switch.py`)."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.places import PACKAGES, WITHOUT_SWITCH, Place, places


@dataclass(frozen=True)
class Sampled:
    """A mutant: at `column` of the line that is `context` without its indentation, `text` changes.

    `line` is where it was when it was chosen.
    """

    number: int
    file: str
    line: int
    context: str
    column: int
    text: str
    replacement: str
    change: str

    def offset(self, source: str) -> int | None:
        """Return where the text is in a file, nearest to `line`; None if it is gone."""
        found, start = [], 0
        for number, line in enumerate(source.splitlines(keepends=True), 1):
            offset = start + len(line) - len(line.lstrip()) + self.column
            if line.strip() == self.context and source.startswith(self.text, offset):
                found.append((abs(number - self.line), offset))
            start += len(line)
        return min(found)[1] if found else None

    def spliced(self) -> str:
        return f"({self.replacement} if __mutant__({self.number}) else {self.text})"


def choose(root: Path, seed: int, number: int) -> list[Sampled]:
    """Return mutants spread over the packages by lines, one at most of a line."""
    dice = random.Random(seed)
    files = {
        package: {
            file.relative_to(root).as_posix(): file.read_text("utf-8")
            for file in sorted((root / package).rglob("*.py"))
        }
        for package in PACKAGES
    }
    num_lines = {p: sum(s.count("\n") for s in files[p].values()) for p in PACKAGES}
    exact = {p: number * num_lines[p] / sum(num_lines.values()) for p in PACKAGES}
    shares = {p: max(1, int(exact[p])) for p in PACKAGES}
    by_remainder = sorted(PACKAGES, key=lambda p: exact[p] - shares[p], reverse=True)
    for package in by_remainder[: number - sum(shares.values())]:
        shares[package] += 1
    chosen: list[Sampled] = []
    for package in PACKAGES:
        lines: dict[tuple[str, int], list[Place]] = {}
        for name, source in files[package].items():
            for place in places(source) if name not in WITHOUT_SWITCH else []:
                lines.setdefault((name, place.line), []).append(place)
        taken: dict[str, set[int]] = {}
        for name, line in dice.sample(sorted(lines), len(lines)):
            place = dice.choice(lines[name, line])
            covered = range(line, line + place.text.count("\n") + 1)
            if not taken.setdefault(name, set()) & {*covered}:
                taken[name] |= {*covered}
                full = files[package][name].splitlines()[line - 1]
                column = place.column - (len(full) - len(full.lstrip()))
                texts = (place.text, place.replacement, place.change)
                mutant = Sampled(len(chosen) + 1, name, line, full.strip(), column, *texts)
                chosen.append(mutant)
                shares[package] -= 1
            if not shares[package]:
                break
    return chosen


def splice(root: Path, mutants: list[Sampled]) -> Iterator[Sampled]:
    """Put mutants into files, on the same lines; yield those whose text is gone."""
    by_file: dict[Path, list[tuple[int, Sampled]]] = {}
    for mutant in mutants:
        own = root / mutant.file
        candidates = (
            [own] if own.exists() else [f for p in PACKAGES for f in (root / p).rglob("*.py")]
        )
        for file in candidates:
            offset = mutant.offset(file.read_text("utf-8"))
            if offset is not None:
                by_file.setdefault(file, []).append((offset, mutant))
                break
        else:
            yield mutant
    for file, found in by_file.items():
        source = file.read_text("utf-8")
        for offset, mutant in sorted(found, key=lambda each: -each[0]):
            source = source[:offset] + mutant.spliced() + source[offset + len(mutant.text) :]
        file.write_text(source, "utf-8")
