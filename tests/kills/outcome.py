"""What one round has found, and the table of many rounds."""

import signal
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

SIGNALS = ("SIGKILL", "SIGTERM", "SIGHUP", "SIGSTOP")


@dataclass
class Outcome:
    """The findings of a round; all are empty if nothing is wrong.

    `exit_code` is that of the program: negative for the signal that ended it. `orphans` are
    processes that outlive the program, `lost` what it had completed and has no more, `left` files
    that the next run neither uses nor removes, `broken` settings of the terminal that are not
    restored, `failures` what the program could not do afterwards.
    """

    exit_code: int = 0
    num_completed: int = 0
    orphans: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        return [*self.orphans, *self.lost, *self.left, *self.broken, *self.failures]


def table(outcomes: Iterable[tuple[str, str, Outcome]]) -> str:
    """Return a Markdown table with a row for each target and signal."""
    rounds: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for target, name, outcome in outcomes:
        rounds[target, name].append(outcome)
    lines = [
        "| target | signal | rounds | completed before | orphans | lost | files left "
        "| terminal not restored | other failures | exit codes of the program |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (target, name), found in rounds.items():
        columns = [
            target,
            name,
            len(found),
            sum(one.num_completed for one in found),
            *(
                sum(len(getattr(one, kind)) for one in found)
                for kind in ("orphans", "lost", "left", "broken", "failures")
            ),
            _codes(one.exit_code for one in found),
        ]
        lines.append(f"| {' | '.join(map(str, columns))} |")
    return "\n".join(lines)


def _codes(codes: Iterable[int]) -> str:
    names = (signal.Signals(-code).name if code < 0 else str(code) for code in codes)
    return ", ".join(f"{name} ({count})" for name, count in sorted(Counter(names).items()))
